"""Profiles and job files: what is read, what wins, what is refused and where the message points."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun import profile_files, profiles
from clusterrun.errors import ConfigError, RequestError
from clusterrun.fields import FIELD, FIELDS, Value
from clusterrun.profiles import find_root, list_jobs, load_job, load_profiles, merge, nearest
from clusterrun.spec import Task, build_spec
from clusterrun.toml_lines import MAX_BYTES, line_of, parse


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project" / "jobs").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "clusterrun").mkdir(parents=True)
    return tmp_path / "project"


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def project(root: Path, text: str, mode: int = 0o644) -> Path:
    return write(root / "clusterrun.toml", text, mode)


def user(root: Path, text: str) -> Path:
    return write(root.parent / "home" / ".config" / "clusterrun" / "config.toml", text)


def load(root: Path, profile: str | None = None, **environ: str) -> profiles.Profiles:
    return load_profiles(root, {"HOME": str(root.parent / "home"), **environ}, profile)


def merged(root: Path, profile: str | None = None, **environ: str) -> dict[str, Value]:
    return merge(load(root, profile, **environ).levels)


def job(root: Path, text: str, name: str = "x") -> profiles.JobFile:
    write(root / "jobs" / f"{name}.toml", text)
    return load_job(name, root, environ={"HOME": str(root.parent / "home")})


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
        with pytest.raises(RequestError, match="does not exist any more"):
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
    assert some.value.hint == "did you mean a100? there are: a100, h100"
    project(root, 'default-profile = "zzz"\n[profile.a100]')
    with pytest.raises(RequestError, match=r"'zzz' \(clusterrun.toml\)"):
        load(root)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("\nnodez = 2", 2, "unknown key 'nodez'", "did you mean nodes?"),
        ("[profile.a]\n# nodez\n\nnodez = 2", 4, "unknown key 'nodez'", "did you mean nodes?"),
        ("gpus_per_nod = 2", 1, "unknown key 'gpus_per_nod'", "did you mean gpus-per-node?"),
        ("zzzzzz = 2", 1, "unknown key 'zzzzzz'", "`clusterrun submit --help` lists the names, as flags"),
        ("gpus-per-node = 2\ngpus_per_node = 4", 2, "gpus-per-node is there twice", "keep one of them"),
        ("nodes = '2'", 1, "nodes must be a whole number, not the text '2'", "write nodes = 2"),
        ("nodes = 2.0", 1, "nodes must be a whole number, not the number 2.0", ""),
        ("nodes = true", 1, "nodes must be a whole number, not true", ""),
        ("time = 02:00:00", 1, "time must be a text, not the time 02:00:00", 'write time = "02:00:00"'),
        ("time = 90", 1, "time must be a text, not the number 90", 'write time = "90"'),
        ("requeue = 'true'", 1, "requeue must be true or false, not the text 'true'", "write requeue = true"),
        ("setup = 'module load x'", 1, "setup must be a list of texts", 'write setup = ["…"]'),
        ("setup = [\n'a',\n1]", 1, "setup must be a list of texts", ""),
        ("partition = ['a', 'b']", 1, "partition must be a text, not a list", 'write partition = "…"'),
        ("env = 'A=1'", 1, "env must be a table", "write [env]"),
        ("[env]\nA = '1'\nB = 2", 3, "env: B must be a text, not the number 2", 'write B = "2"'),
        ("[env]\nA = '1'\npartition = 'x'", 3, "partition stands below [env]", "move it above"),
        ("[set]\nlr = nan", 2, "set: lr must be a text, a number, true or false", ""),
        ("[set]\nx = [1]", 2, "set: x must be", ""),
        ("job = 3", 1, "job must be a text, not the number 3", 'write job = "3"'),
        ("job = ''", 1, "job must be a text", 'write job = "…"'),
        ("[profile.a]\ndefault-profile = 'b'", 2, "default-profile stands at the top", ""),
        ("profile = 'a'", 1, "profile is not a set of tables", 'default-profile = "NAME"'),
        ("task = 'lm'", 1, "task belongs in a job file", "jobs/NAME.toml"),
        ("[profile.a]\nargs = []", 2, "args belongs in a job file", "jobs/NAME.toml"),
        ("nodes = 2\npartition = gpu", 2, "Invalid value (column 13)", "in quotes"),
        ("a = [\n1,\n", 2, "(the file ends there)", "in quotes"),
        ("nodes = 1\nnodes = 2", 2, "Cannot overwrite a value", ""),
    ],
)
def test_wrong_profiles(root: Path, text: str, line: int, message: str, hint: str) -> None:
    project(root, text)
    with pytest.raises(ConfigError) as caught:
        load(root)
    assert caught.value.message.startswith(f"clusterrun.toml:{line}: ")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"# ok\npartition = '\xff'", "clusterrun.toml:2: not UTF-8 text"),
        (b"a = " + b"[" * 50_000, "clusterrun.toml: nested too deeply"),
        (b"nodes = " + b"9" * 5000, "clusterrun.toml: "),
        (b"#" * (MAX_BYTES + 1), "clusterrun.toml: larger than"),
        (b"partition = 'a\0b'", "clusterrun.toml:1: "),
    ],
)
def test_files_that_are_no_toml(root: Path, raw: bytes, message: str) -> None:
    (root / "clusterrun.toml").write_bytes(raw)
    (root / "clusterrun.toml").chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        load(root)
    assert caught.value.message.startswith(message)


def test_a_windows_editor(root: Path) -> None:
    (root / "clusterrun.toml").write_bytes(b"\xef\xbb\xbfnodes = 2\r\npartition = 'x'\r\n")
    (root / "clusterrun.toml").chmod(0o644)
    assert {k: v.value for k, v in merged(root).items()} == {"nodes": 2, "partition": "x"}


def test_paths_in_files_are_taken_from_the_project(root: Path) -> None:
    project(root, 'template = "my.j2"\npython = "~/venv/bin/python"')
    values = merged(root)
    assert values["template"].value == str(root / "my.j2")
    assert values["python"].value == str(root.parent / "home" / "venv" / "bin" / "python")
    project(root, 'template = "/t/my.j2"\npython = "python3"')
    values = merged(root)
    assert (values["template"].value, values["python"].value) == ("/t/my.j2", "python3")


def owned(uid: int, mode: int, gid: int = 54321) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 0, 0, 1, uid, gid, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (owned(1000, 0o644), ""),
        (owned(0, 0o644), ""),
        (owned(1000, 0o600), ""),
        (owned(54321, 0o644), "it belongs to user 54321"),
        (owned(1000, 0o666), "others may write it (chmod o-w)"),
        (owned(1000, 0o664), "its group may write it (chmod g-w)"),
        (owned(0, 0o664, gid=0), ""),  # the owner's own private group
    ],
)
def test_trust(info: os.stat_result, why: str) -> None:
    assert profile_files.why_not(info, 1000) == why


def test_an_untrusted_profile_is_ignored_with_a_notice(root: Path) -> None:
    project(root, "nodes = 9", mode=0o666)
    known = load(root)
    assert known.notices == [f"{root}/clusterrun.toml is not used: others may write it (chmod o-w)"]
    assert merge(known.levels) == {}
    (root / "a").mkdir()
    assert find_root(root / "a") == root / "a"  # nor does it say where our records stand
    assert load(root / "a").notices == known.notices
    user(root, "nodes = 8").chmod(0o666)
    assert load(root).notices[1].startswith("~/.config/clusterrun/config.toml is not used")


# chown to another user needs root; the rule itself (`why_not`) is tested below for everybody
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_foreign_profile_is_ignored(root: Path) -> None:
    os.chown(project(root, "setup = ['evil']"), 54321, 54321)
    known = load(root)
    assert merge(known.levels) == {}
    assert "it belongs to user 54321" in known.notices[0]


def test_a_job_others_may_write_runs_by_its_path_only(root: Path) -> None:
    write(root / "jobs" / "lm.toml", 'command = "evil"', 0o666)
    with pytest.raises(RequestError, match="not used by its name alone: others may write it") as caught:
        load_job("lm", root)
    assert f"{root}/jobs/lm.toml" in caught.value.hint
    assert load_job("jobs/lm.toml", root).target == "evil"


def test_job_file(root: Path) -> None:
    found = job(root, 'script = "src/train.py"\nargs = ["--lr", "1e-4"]\nnodes = 2\n[env]\nA = "1"')
    assert (found.kind, found.target, found.args) == ("script", str(root / "src/train.py"), ("--lr", "1e-4"))
    assert found.values == {"nodes": Value(2, "jobs/x.toml"), "env": Value({"A": "1"}, "jobs/x.toml")}
    assert (found.source, found.path) == ("jobs/x.toml", root / "jobs/x.toml")
    assert job(root, 'module = "pkg.train"').target == "pkg.train"
    assert job(root, 'command = "prog"').target == "prog"
    assert job(root, 'command = "bin/prog"').target == str(root / "bin/prog")
    assert job(root, 'task = "lm"\n[set]\nsteps = 3').values["set"].value == {"steps": 3}


def test_where_jobs_are_found(root: Path) -> None:
    write(root / "jobs" / "sft.toml", 'task = "sft"')
    sub = root / "sub"
    sub.mkdir()
    write(sub / "own.toml", 'task = "own"')
    for name in ("sft", "sft.toml", "jobs/sft.toml", str(root / "jobs" / "sft.toml"), "../jobs/sft.toml"):
        assert load_job(name, root, cwd=sub).target == "sft", name
    assert load_job("own.toml", root, cwd=sub).source == "sub/own.toml"
    assert load_job("lm", root).source == load_job("lm.toml", root).source == "lm (shipped)"
    assert load_job("lm", root).path is None
    write(root / "jobs" / "lm.toml", 'task = "mine"')
    assert load_job("lm", root).target == "mine"
    assert list_jobs(root) == ["lm", "sft"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("nodes = 1", None, "nothing says what to run"),
        ("tsk = 'lm'", 1, "unknown key 'tsk'"),
        ("task = 'lm'\nscript = 'x.py'", 2, "task and script both say what to run"),
        ("task = 'lm'\nargs = ['x']", 2, "a task takes no args"),
        ("script = 'x.py'\nargs = 'x'", 2, "args must be a list"),
        ("script = 3", 1, "script must be a text"),
        ("script = 'x.py'\n[set]\na = 1", 2, "[set] is for a task"),
        ("task = 'lm'\njob = 'x'", 2, "job belongs in clusterrun.toml"),
        ("task = 'lm'\n[profile.x]", 2, "profile belongs in clusterrun.toml"),
        ("task = 'lm'\nnodez = 1", 2, "unknown key 'nodez'"),
    ],
)
def test_wrong_job_files(root: Path, text: str, line: int | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(root, text)
    assert caught.value.message.startswith(f"jobs/x.toml{f':{line}' if line else ''}: {message}")


@pytest.mark.parametrize("name", ["lmm", "nope/lmm.toml", "", "a\0b", "a\0b/c", "x" * 5000, "x/" * 3000, "..", "/"])
def test_no_such_job(root: Path, name: str) -> None:
    write(root / "jobs" / "sft.toml", "task = 'sft'")
    with pytest.raises(RequestError, match="no job") as caught:
        load_job(name, root)
    assert "there are: lm, sft" in caught.value.hint
    assert name != "lmm" or "did you mean lm?" in caught.value.hint


def test_a_script_is_no_job(root: Path) -> None:
    write(root / "train.py", "print()")
    for name in ("train.py", "./train.py"):
        with pytest.raises(RequestError) as caught:
            load_job(name, root)
        assert caught.value.hint == f"to run a script, put it after two dashes: clusterrun submit -- {name}"


def test_shipped_jobs_run_as_they_are(root: Path) -> None:
    folder = Path(profiles.__file__).parent / "jobs"
    for file in folder.glob("*.toml"):
        found = load_job(file.stem, root)
        needed = {"gpus-per-node": Value(1, "default"), "python": Value("/usr/bin/python3", "default")}
        assert build_spec(merge([found.values, needed]), Task(found.target)).requeue
        lines = file.read_text().splitlines()
        for line in (t for t in lines if t.startswith("#") and not t.startswith("# ")):  # the suggestions
            parse(file.name, "\n".join([*lines, line[1:]]).encode())
            assert line[1:].split()[0].split(".")[0] in FIELD


# merge


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


# lines and hints


@given(st.text())
def test_free_text_never_breaks_the_reader(text: str) -> None:
    try:
        parse("f.toml", text.encode("utf-8", "replace"))
    except ConfigError as error:
        assert error.message.startswith("f.toml")


@given(
    st.lists(
        st.sampled_from(["", "# nodes = 3", "a.nodes = 1", "b = '''", "nodes", "'''", "c = 'nodes'", "[t]"]), max_size=8
    )
)
def test_the_line_is_where_the_key_is_set(before: list[str]) -> None:
    text = "\n".join([*before, "nodes = 2", ""])
    try:
        data = tomllib.loads(text)
    except ValueError:
        return
    path = next((p for p in (["nodes"], ["t", "nodes"]) if _at(data, p) == 2), None)
    if path:
        assert line_of(text, path) == len(before) + 1


def _at(data: dict[str, object], path: list[str]) -> object:
    value: object = data
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("x = [\n 1,\n]\n", ["x"], 1),
        ("[set]\nsteps = 1\n[profile.a.set]\nsteps = 2", ["profile", "a", "set", "steps"], 4),
        ("[profile.a]", ["profile", "a"], 1),
        ("a = {b = 1}", ["a", "b"], 1),
        ("a = 1", ["b"], None),
        ('"\\u0061" = 1', ["a"], None),
        ("a = 1", [], None),
    ],
)
def test_line_of(text: str, path: list[str], line: int | None) -> None:
    assert line_of(text, path) == line


@given(st.text(), st.lists(st.text()))
def test_nearest_is_one_of_the_choices(word: str, choices: list[str]) -> None:
    hint = nearest(word, choices)
    assert not hint or hint.removeprefix("did you mean ").removesuffix("?") in choices
