"""Causes that the job recorded itself: read as data, never from the words of its messages."""

# ruff: noqa: E501 (a record stays in one piece)

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterrun
from clusterrun.why.causes import Cause, EndFacts, Failure, Line, first_cause
from clusterrun.why.causes.scan import scan
from clusterrun.why.causes.table_recorded import RECORDED

WORKER = Path(clusterrun.__file__).parent / "worker"
OF_EXCEPTIONS = {
    "exception",
    "code-error",
    "collective-error",
    "lost-connection",
}  # the tables explain them by their text
OF_LAUNCHES = {"hang", "terminated", "step-ended", "ranks-lost"}  # other records, or the state, say more


def calls() -> Iterator[ast.Call]:
    for path in sorted(WORKER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                yield node


def name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def text(node: ast.expr) -> str:
    """A literal text, with X for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_each_kind_that_the_worker_records_has_a_sentence() -> None:
    kinds = {
        keyword.value.value
        for call in calls()
        for keyword in call.keywords
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant) and keyword.value.value
    }
    assert len(kinds) > 8
    assert kinds - OF_EXCEPTIONS - OF_LAUNCHES <= RECORDED.keys()


def test_no_row_of_the_tables_matches_a_message_of_our_own() -> None:
    own = [text(call.args[0]) for call in calls() if name(call).endswith("Error") and call.args]
    messages = [f"clusterrun: rank 0: {message}" for message in own if message]
    assert len(messages) > 100
    for message in messages:
        assert scan([Line("train_1.err", 1, 0, message)]) == [], message


def judge(failure: Failure, text: str = "", **facts: object) -> Cause:
    lines = [Line("train_1.err", number, None, line) for number, line in enumerate(text.splitlines(), 1)]
    return first_cause([lines], EndFacts(**{"state": "FAILED", "exit_status": 1, "failure": failure} | facts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "kind", "sentence", "advice"),
    [
        (Failure(3, error="the loss …", kind="nan-loss", values={"what": "the loss of ranks 1, 3", "where": "at step 5"}),
         "nan-loss", "the loss of ranks 1, 3 is not finite at step 5", "learning rate"),
        (Failure(0, error="out of memory …", kind="cuda-memory", values={"where": "cuda:0", "micro_batch": "8", "advice": "set x=4"}),
         "cuda-memory", "GPU memory ran out with a micro batch of 8 on cuda:0", "set x=4"),
        (Failure(0, error="no such script: my train.py (in /home/u)", kind="file-missing", values={"path": "/home/u/my train.py"}),
         "file-missing", "file not found: /home/u/my train.py", "compute nodes"),
        (Failure(2, error="checkpoint x is not valid", kind="worker"), "worker", "checkpoint x is not valid", ""),
        (Failure(2, error="lr must be a number", kind="refused"), "refused", "lr must be a number", ""),
        (Failure(2, error="the saved code is gone: x\nclusterrun: hint: run it", kind="refused"), "refused", "the saved code is gone: x", "run it"),
        (Failure(0, error="join barrier: …", kind="ranks-missing", values={"absent": "2", "all": "4", "names": "ranks 2-3 on n2"}),
         "ranks-missing", "2 of 4 ranks did not join the run: ranks 2-3 on n2", "--setup"),
        (Failure(1, error="train.sh was killed by SIGKILL", kind="command-killed"), "killed", "train.sh was killed by SIGKILL", "memory"),
        (Failure(1, error="KeyError: 'x'", kind="exception", place="/u/t.py:3"), "exception", "KeyError: 'x'", "traceback"),
        (Failure(1, error="ModuleNotFoundError: No module named 'x'", kind="code-error"), "import-error", "the module x is not installed", "install"),
    ],
    ids=lambda value: value.kind if isinstance(value, Failure) else "",
)  # fmt: skip
def test_record_of_a_rank_is_the_cause(failure: Failure, kind: str, sentence: str, advice: str) -> None:
    cause = judge(failure)
    assert (cause.kind, cause.sentence, cause.rank) == (kind, sentence, failure.rank)
    assert advice in cause.advice


@pytest.mark.parametrize(
    ("launch", "kind", "sentence"),
    [
        (Failure(error="x", kind="killed", values={"rank": "1", "node": "local0", "status": "137"}), "killed", "rank 1 on local0 was killed (SIGKILL)"),
        (Failure(error="x", kind="crashed", values={"rank": "1", "node": "n2", "status": "138"}), "crashed", "(exit status 138)"),
        (Failure(error="x", kind="setup", values={"number": "2", "status": "1", "command": "module load x"}), "setup", "setup line 2 failed with status 1: module load x"),
        (Failure(error="x", kind="address-in-use", values={"port": "29500", "node": "n1", "holder": " by process 7 (python)"}), "address-in-use", "port 29500 on n1 is in use by process 7 (python)"),
        (Failure(error="cannot start the ranks: srun: gone", kind="launch-failed"), "launch-failed", "the job could not start: cannot start the ranks"),
    ],
    ids=lambda value: value.kind if isinstance(value, Failure) else "",
)  # fmt: skip
def test_record_of_the_launch_is_the_cause(launch: Failure, kind: str, sentence: str) -> None:
    lost = Failure(0, error="lost the connection to another rank", kind="peer-lost")
    cause = judge(lost, launch=launch)
    assert cause.kind == kind and sentence in cause.sentence


def test_recorded_cause_shows_its_line_of_the_log() -> None:
    error = "checkpoint x is not valid: sizes differ"
    cause = judge(
        Failure(2, error=error, kind="worker", file="first_failure.json"), f"step 1\nclusterrun: rank 2: {error}"
    )
    assert [line.number for line in cause.evidence] == [2]
    cause = judge(Failure(2, error=error, kind="worker", file="first_failure.json"), "step 1")
    assert [(line.file, line.text) for line in cause.evidence] == [("first_failure.json", error)]


def test_step_that_lost_ranks_without_an_error_says_how_many() -> None:
    lines = [Line("train_1.err", 1, None, "step 5 loss 2")]
    facts = EndFacts(state="FAILED", exit_status=1, world_size=4, unmarked=1)
    assert "only 3 of 4 ranks reported that they exited" in first_cause([lines], facts).sentence


def test_job_whose_run_belongs_to_another_job_is_a_duplicate() -> None:
    cause = first_cause([], EndFacts(state="FAILED", exit_status=75, other_owner="41"))
    assert (cause.kind, cause.command) == ("duplicate", "clusterrun status 41")


def test_hint_below_the_last_line_of_clusterrun_is_the_advice() -> None:
    text = (
        "clusterrun: this script was not submitted, so nothing was started.\nclusterrun: hint: use 'clusterrun submit'"
    )
    lines = [Line("slurm-1.out", number, None, line) for number, line in enumerate(text.splitlines(), 1)]
    cause = first_cause([lines], EndFacts(state="FAILED", exit_status=2))
    assert cause.sentence.startswith("this script was not submitted") and cause.advice == "use 'clusterrun submit'"
