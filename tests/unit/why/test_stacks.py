"""`why --stacks`: one srun for each node, py-spy's answers by rank, and groups of ranks with the same stack."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.base.job import JobId
from clusterrun.records.progress import RankProgress
from clusterrun.why.stacks import RankStack, describe, read_stacks

RANKS = [RankProgress(rank, f"n{1 + rank // 2}", 0.0, pid=100 + rank) for rank in range(4)]
THREADS = """[{"pid": %(pid)s, "os_thread_id": 7, "frames": [
  {"name": "wait", "short_filename": "threading.py", "line": 1}]},
 {"pid": %(pid)s, "os_thread_id": %(pid)s, "frames": [
  {"name": "%(name)s", "short_filename": "t.py", "filename": "/p/t.py", "line": 4},
  {"name": "run_script", "short_filename": "clusterrun/worker/rank/user_code.py", "line": 59}]}]"""


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, py_spy: str | None) -> None:
    """Make an srun that runs its command here, and a py-spy with this shell code in the folder of the job's Python."""
    (folder / "bin").mkdir()
    (folder / "env").mkdir()
    files = {folder / "bin" / "srun": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'}
    if py_spy is not None:
        files[folder / "env" / "py-spy"] = f"pid=$4\n{py_spy}"
    for path, code in files.items():
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


def read(folder: Path) -> list[RankStack]:
    return read_stacks(JobId.parse("5"), RANKS, str(folder / "env" / "python"), os.environ)


def test_the_main_thread_of_each_rank_without_the_frames_that_start_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = THREADS % {"pid": "'$pid'", "name": "step"}
    programs(tmp_path, monkeypatch, f"printf '%s' '{answer}'")
    found = read(tmp_path)
    assert [(one.rank, one.node, one.pid) for one in found] == [
        (rank, f"n{1 + rank // 2}", 100 + rank) for rank in range(4)
    ]
    assert {one.frames for one in found} == {("step (t.py:4)",)}


@pytest.mark.parametrize(("py_spy", "problem"), [
    (None, "py-spy is not installed in the job's environment: run `{python} -m pip install py-spy`;"),
    ("echo 'Error: Operation not permitted (os error 1)'; exit 1", "py-spy cannot read the process"),
    ("echo 'Error: Failed to find python version from target process'; exit 1", "Error: Failed to find python version"),
    ("exit 124", "py-spy did not finish within 20 s"),
    ("true", "py-spy printed nothing"),
    ("echo '[]'", "[]"),
    ("echo '[1]'", "[1]"),
    ("""echo '[{"pid": '$pid', "os_thread_id": '$pid', "frames": []}]'""",
     "the main thread is not running Python code"),
])  # fmt: skip
def test_a_stack_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, py_spy: str | None, problem: str
) -> None:
    programs(tmp_path, monkeypatch, py_spy)
    for one in read(tmp_path):
        assert not one.frames and one.problem.startswith(problem.format(python=tmp_path / "env" / "python"))


def test_srun_that_fails_is_the_reason_for_all_ranks_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, "true")
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\necho 'srun: error: Job step creation refused' >&2; exit 1\n")
    assert {one.problem for one in read(tmp_path)} == {"srun: error: Job step creation refused"}


def test_equal_stacks_are_one_group_and_the_smallest_group_comes_first() -> None:
    stacks = [RankStack(rank, f"n{1 + rank // 2}", rank, ("all_reduce (d.py:1)", "step (t.py:4)")) for rank in range(3)]
    stacks.append(RankStack(3, "n2", 3, ("load (t.py:9)",)))
    assert describe(stacks, 0) == [
        ["rank 3 on n2:", "  load (t.py:9)"],
        ["ranks 0-2 on n[1-2]:", "  all_reduce (d.py:1)", "  step (t.py:4)"],
    ]


def test_a_deep_stack_is_cut_and_ranks_that_were_not_read_are_counted() -> None:
    deep = RankStack(0, "n1", 1, tuple(f"f{n} (t.py:{n})" for n in range(25)))
    lines = describe([deep], 8)
    assert lines[0][-1] == "  ... and 5 outer frames" and len(lines[0]) == 22
    assert lines[1] == ["stacks not read: 8 ranks (py-spy runs only on the first 32 nodes)"]
