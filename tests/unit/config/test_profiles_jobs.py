"""Job files: where they are found, what they run, and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.base.errors import ConfigError, RequestError
from clusterrun.base.fields import FIELD
from clusterrun.config.profiles import list_jobs, load_job, merge
from clusterrun.config.toml_lines import parse
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Task, build_spec
from tests.support.folders import PACKAGE
from tests.support.profile_folders import job, make_root, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def test_job_file(root: Path) -> None:
    found = job(root, 'script = "src/train.py"\nargs = ["--lr", "1e-4"]\nnodes = 2\n[env]\nA = "1"')
    assert (found.kind, found.target, found.args) == ("script", str(root / "src/train.py"), ("--lr", "1e-4"))
    assert found.values == {"nodes": Value(2, "jobs/x.toml"), "env": Value({"A": "1"}, "jobs/x.toml")}
    assert (found.source, found.path) == ("jobs/x.toml", root / "jobs/x.toml")
    assert job(root, 'module = "pkg.train"').target == "pkg.train"
    assert job(root, 'command = "prog"').target == "prog"
    assert job(root, 'command = "bin/prog"').target == str(root / "bin/prog")
    assert job(root, 'task = "lm"\n[set]\nsteps = 3').values["set"].value == {"steps": 3}
    many = job(root, 'task = "classify"\n[set]\ntarget_cols = ["a", "b"]')
    assert many.values["set"].value == {"target_cols": ["a", "b"]}


def test_options_about_starting_again_may_be_in_a_table(root: Path) -> None:
    found = job(
        root, 'script = "t.py"\n[restart]\nmax-restarts = 2\ntotal_time = "5d"\nhelper-job = false\non-failure = "hold"'
    )
    assert {name: value.value for name, value in found.values.items()} == {
        "max-restarts": 2, "total-time": "5d", "helper-job": False, "on-failure": "hold",
    }  # fmt: skip


def test_notifications_may_be_a_table_or_options(root: Path) -> None:
    expected = {"notify": "https://h/x", "notify-on": ["failed"]}
    for text in ('[notify]\ntarget = "https://h/x"\non = ["failed"]', 'notify = "https://h/x"\nnotify-on = ["failed"]'):
        found = job(root, f'script = "t.py"\n{text}')
        assert {name: value.value for name, value in found.values.items()} == expected, text


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
    assert list_jobs(root) == ["classify", "diffusion", "lm", "sft", "smollm2"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("nodes = 1", None, "the file does not say what to run"),
        ("tsk = 'lm'", 1, "unknown key 'tsk'"),
        ("task = 'lm'\nscript = 'x.py'", 2, "task and script conflict"),
        ("task = 'lm'\nargs = ['x']", 2, "a task takes no args"),
        ("script = 'x.py'\nargs = 'x'", 2, "args must be a list"),
        ("script = 3", 1, "script must be a string"),
        ("script = 'x.py'\n[set]\na = 1", 2, "[set] is only for tasks"),
        ("task = 'lm'\njob = 'x'", 2, "the job key belongs in clusterrun.toml"),
        ("task = 'lm'\n[profile.x]", 2, "the profile key belongs in clusterrun.toml"),
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
    assert "available: classify, diffusion, lm, sft" in caught.value.hint
    assert name != "lmm" or "did you mean lm?" in caught.value.hint


def test_a_script_is_no_job(root: Path) -> None:
    write(root / "train.py", "print()")
    for name in ("train.py", "./train.py"):
        with pytest.raises(RequestError) as caught:
            load_job(name, root)
        assert caught.value.hint == f"to run a script, put it after `--`: clusterrun submit -- {name}"


def test_shipped_jobs_run_as_they_are(root: Path) -> None:
    folder = PACKAGE / "jobs"
    for file in folder.glob("*.toml"):
        found = load_job(file.stem, root)
        needed = {"gpus-per-node": Value(1, "default"), "python": Value("/usr/bin/python3", "default")}
        assert build_spec(merge([found.values, needed]), Task(found.target)).requeue
        lines = file.read_text().splitlines()
        for line in (t for t in lines if t.startswith("#") and not t.startswith("# ")):  # the suggestions
            parse(file.name, "\n".join([*lines, line[1:]]).encode())
            assert line[1:].split()[0].split(".")[0] in FIELD
