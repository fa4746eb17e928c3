"""Profiles: where they are found, their precedence, and the source of each value."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS
from clusterrun.config import profiles
from clusterrun.config.files import find_root
from clusterrun.config.profiles import load_profiles, merge
from clusterrun.jobspec.fields import Value
from tests.support.profile_folders import load, load_on, make_root, merged, project, user, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def test_root_is_the_nearest_folder_upward_with_a_profile(root: Path) -> None:
    deep = root / "a" / "b"
    deep.mkdir(parents=True)
    assert find_root(deep) == deep
    project(root, "")
    assert find_root(deep) == root == find_root(root)
    write(root / "a" / "clusterrun.toml", "")
    assert find_root(deep) == root / "a"


def test_a_folder_of_that_name_is_no_profile(root: Path) -> None:
    (root / "clusterrun.toml").mkdir()
    assert load(root).root == root


def test_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for cwd in (None, gone):
        with pytest.raises(RequestError, match="no longer exists"):
            find_root(cwd)


def test_nothing_there(root: Path) -> None:
    known = load(root)
    assert (known.root, known.default_job, known.levels, known.notices) == (root, Value("lm", "default"), [{}], [])


def test_order_and_sources(root: Path) -> None:
    project(root, 'partition = "p"\nnodes = 2\n[profile.big]\nnodes = 8\n')
    user(root, 'partition = "u"\naccount = "u"\nqos = "u"\n[profile.big]\nqos = "big"\n')
    values = merged(root, "big", SBATCH_ACCOUNT="e", SBATCH_PARTITION="e", SBATCH_TIMELIMIT="90", SLURM_ACCOUNT="no")
    mine = "~/.config/clusterrun/config.toml"
    assert values == {
        "nodes": Value(8, "clusterrun.toml [profile.big]"),
        "partition": Value("p", "clusterrun.toml"),
        "account": Value("u", mine),
        "qos": Value("big", f"{mine} [profile.big]"),
        "time": Value("90", "SBATCH_TIMELIMIT"),
    }
    assert merged(root)["nodes"].value == 2
    top = merge([{"nodes": Value(1, "--nodes")}, *load(root, "big").levels])
    assert top["nodes"] == Value(1, "--nodes")


@pytest.mark.parametrize(("name", "key"), profiles.ENVIRONMENT)
def test_environment(root: Path, name: str, key: str) -> None:
    assert merged(root, **{name: "x"}) == {key: Value("x", name)}
    assert merged(root, **{name: ""}) == {}


def test_sbatch_account_beats_slurm_account(root: Path) -> None:
    assert merged(root, SLURM_ACCOUNT="b", SBATCH_ACCOUNT="a")["account"] == Value("a", "SBATCH_ACCOUNT")
    assert merged(root, SLURM_ACCOUNT="b", SLURM_JOB_ID="7")["account"] == Value("b", "SLURM_ACCOUNT")


def test_user_file_follows_xdg(root: Path, tmp_path: Path) -> None:
    (tmp_path / "xdg" / "clusterrun").mkdir(parents=True)
    write(tmp_path / "xdg" / "clusterrun" / "config.toml", "nodes = 3")
    user(root, "nodes = 4")
    assert merged(root, XDG_CONFIG_HOME=str(tmp_path / "xdg"))["nodes"].value == 3
    assert merged(root, XDG_CONFIG_HOME="relative")["nodes"].value == 4  # the XDG rule: only absolute ones count


def test_default_job_and_default_profile(root: Path) -> None:
    user(root, 'job = "mine"\n[profile.a]\nnodes = 5\n[profile.b]\nnodes = 6\njob = "b"')
    assert load(root).default_job == Value("mine", "~/.config/clusterrun/config.toml")
    project(root, 'default-profile = "a"')
    assert merged(root)["nodes"].value == 5
    assert merged(root, "b")["nodes"].value == 6
    assert load(root, "b").default_job.value == "b"


def test_unknown_profile_names_those_there_are(root: Path) -> None:
    with pytest.raises(RequestError, match=r"no profile 'a10' \(--profile\)") as none:
        load(root, "a10")
    assert "[profile.a10]" in none.value.hint
    project(root, "[profile.a100]\n[profile.h100]")
    with pytest.raises(RequestError) as some:
        load(root, "a10")
    assert some.value.hint == "did you mean a100? available: a100, h100"
    project(root, 'default-profile = "zzz"\n[profile.a100]')
    with pytest.raises(RequestError, match=r"'zzz' \(clusterrun.toml\)"):
        load(root)


def test_paths_in_files_are_taken_from_the_project(root: Path) -> None:
    project(root, 'template = "my.j2"\npython = "~/venv/bin/python"')
    values = merged(root)
    assert values["template"].value == str(root / "my.j2")
    assert values["python"].value == str(root.parent / "home" / "venv" / "bin" / "python")
    project(root, 'template = "/t/my.j2"\npython = "python3"')
    values = merged(root)
    assert (values["template"].value, values["python"].value) == ("/t/my.j2", "python3")


def test_maps_are_joined_and_lists_replaced() -> None:
    upper = {"env": Value({"A": "1"}, "--env"), "setup": Value(["x"], "job")}
    lower = {"env": Value({"A": "2", "B": "3"}, "file"), "setup": Value(["y"], "file")}
    values = merge([upper, lower, {"env": Value({"A": "9"}, "never")}])
    assert values["env"] == Value({"A": "1", "B": "3"}, "--env, file")
    assert values["setup"] == Value(["x"], "job")
    assert upper["env"].value == {"A": "1"}  # nothing given is changed


@pytest.mark.parametrize(
    ("upper", "lower", "kept"),
    [
        ({"gres": "gpu:a100:4"}, {"gpus-per-node": 8}, {"gres"}),
        ({"gpus-per-node": 8}, {"gres": "gpu:a100:4"}, {"gpus-per-node"}),
        ({"gres": "nvme:1"}, {"gpus-per-node": 8}, {"gres", "gpus-per-node"}),
        ({"gpus-per-node": 8}, {"gres": "nvme:1"}, {"gres", "gpus-per-node"}),
        ({"gpus-per-node": 8, "gres": "gpu:4"}, {}, {"gres", "gpus-per-node"}),  # build_spec says no
    ],
)
def test_gpus_are_asked_for_once(upper: dict[str, object], lower: dict[str, object], kept: set[str]) -> None:
    levels = [{k: Value(v, "x") for k, v in level.items()} for level in (upper, lower)]
    assert set(merge(levels)) == kept


_SCALARS = st.sampled_from(
    [f.name for f in FIELDS if f.kind in ("int", "text", "flag") and f.name not in ("gres", "gpus-per-node")]
)
_LEVELS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"env": st.dictionaries(st.sampled_from("ABCD"), st.text()), "nodes": st.integers()}
    )
    | st.dictionaries(_SCALARS, st.text()),
    max_size=5,
)


@given(_LEVELS)
def test_the_highest_level_wins(raw: list[dict[str, object]]) -> None:
    levels = [{k: Value(v, str(n)) for k, v in level.items()} for n, level in enumerate(raw)]
    values = merge(levels)
    assert set(values) == {k for level in raw for k in level}
    for name, value in values.items():
        having = [level[name] for level in levels if name in level]
        if FIELD[name].kind != "map":
            assert value == having[0]
        else:
            for key, text in value.value.items():
                assert text == next(h.value[key] for h in having if key in h.value)
            assert set(value.value) == {k for h in having for k in h.value}
    assert merge([merge(levels[:2]), *levels[2:]]).keys() == values.keys()


TWO = """default-profile = "small"
nodes = 1
[profile.small]
nodes = 2
[profile.a]
cluster = "Alpha"
nodes = 3
[profile.b]
cluster = "beta"
nodes = 4
"""


def test_a_profile_for_the_cluster_at_hand_is_used_without_being_named(root: Path) -> None:
    project(root, TWO)
    on_alpha = load_on(root, "alpha")
    assert merge(on_alpha.levels)["nodes"] == Value(3, "clusterrun.toml [profile.a]")
    assert on_alpha.notices == ["using [profile.a], the profile for cluster alpha"]
    for cluster in ("gamma", "alpha,beta", None):
        elsewhere = load_on(root, cluster)
        assert (merge(elsewhere.levels)["nodes"].value, elsewhere.notices) == (2, []), cluster
    unknown = load_on(root, "")
    assert merge(unknown.levels)["nodes"].value == 2 and "the name of the cluster is unknown" in unknown.notices[0]


def test_a_named_profile_wins_unless_it_is_for_another_cluster(root: Path) -> None:
    project(root, TWO)
    for cluster, name, nodes in (("alpha", "small", 2), ("alpha", "a", 3), ("alpha,beta", "b", 4), (None, "b", 4)):
        assert merge(load_on(root, cluster, name).levels)["nodes"].value == nodes, (cluster, name)
    with pytest.raises(RequestError, match=r"^profile b is for cluster beta; this shell is configured for alpha$"):
        load_on(root, "alpha", "b")


def test_a_default_profile_for_another_cluster_is_not_used(root: Path) -> None:
    project(root, TWO.replace('"small"', '"b"'))
    known = load_on(root, "gamma")
    assert merge(known.levels)["nodes"].value == 1
    assert known.notices == ["profile b is for cluster beta; not used on gamma"]


def test_two_profiles_for_the_cluster_at_hand_need_a_choice(root: Path) -> None:
    project(root, TWO)
    user(root, '[profile.mine]\ncluster = "alpha"\n[profile.b]\ncluster = "alpha"\n')  # the project's b comes first
    with pytest.raises(RequestError, match=r"^several profiles match cluster alpha: a, mine$") as error:
        load_on(root, "alpha")
    assert "--profile a" in error.value.hint
    assert merge(load_on(root, "alpha", "mine").levels)["nodes"].value == 1
    assert merge(load_on(root, "beta").levels)["nodes"].value == 4
    assert merge(load_on(root, "Beta").levels)["nodes"].value == 4, "as typed in SLURM_CLUSTERS"


def test_the_cluster_is_looked_up_only_for_profiles_that_have_one(root: Path) -> None:
    def fail() -> str:
        raise AssertionError

    project(root, "[profile.a]\nnodes = 2\n")
    load_profiles(root, {"HOME": str(root.parent / "home")}, None, fail)
