"""`clusterrun logs --attempt`: the lines of one attempt, or of one launch of it."""

from __future__ import annotations

import json

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk
from tests.support.run_records import attempt, claim, end, submitted

PARTS = ["0: first\n", "0: again\n", "0: requeued\n"]
ERRORS = ["0: killed\n", "", "0: careful\n"]


@pytest.fixture
def run(desk: Desk) -> RunRecord:
    """A run of two launches in its first attempt and one in its second."""
    run = submitted(Store(desk.project, desk.state), cluster="desk", nodes=1, workers_per_node=2)
    claim(run, restart=1)
    desk.write("logs/train_101.out", "".join(PARTS))
    desk.write("logs/train_101.err", "".join(ERRORS))
    out = err = 0
    for number, (restart, launch) in enumerate([(0, 0), (0, 1), (1, 0)]):
        node = f"n{number}"
        start = {"ranks": [{"rank": 0, "node": node, "task": 0}, {"rank": 1, "node": node, "task": 1}]}
        folder = attempt(run, restart, launch, start=start, **({"end": end()} if restart else {}))
        (folder / "log-clock").write_text(f"{number}.00 {out} {err}\n")
        if launch == 0:
            (folder / "log-start").write_text(f"{out} {err}\n")
        out, err = out + len(PARTS[number]), err + len(ERRORS[number])
    return run


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--attempt", "0"], "0: first\n0! killed\n0: again\n"),
        (["--attempt", "0.0"], "0: first\n0! killed\n"),
        (["--attempt", "0.1"], "0: again\n"),
        (["--attempt", "1"], "0: requeued\n0! careful\n"),
        (["--attempt", "0.0", "--stream", "err"], "0! killed\n"),
        (["--attempt", "0", "-n", "1", "--stream", "out"], "0: again\n"),
        (["--attempt", "1", "--node", "n2", "--stream", "out"], "0: requeued\n"),
        (["--attempt", "0.1", "--raw"], "0: again\n"),
    ],
)
def test_only_the_lines_of_the_attempt_are_shown(desk: Desk, run: RunRecord, words: list[str], shown: str) -> None:
    found = desk.type("logs", "101", *words)
    assert (found.status, found.err, found.out) == (0, "", shown)


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (["--attempt", "2"], "job 101 has no attempt 2", "available attempts: 0.0, 0.1, 1.0"),
        (["--attempt", "0.7"], "job 101 has no attempt 0.7", "0.1"),
        (["--attempt", "x"], "'x' is not a valid attempt", "--attempt 0.2"),
        (["--attempt", "1", "--node", "n0"], "no node n0", "n2"),
        (["--attempt", "1", "-f"], "cannot be combined", "one of them"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(desk: Desk, run: RunRecord, words: list[str], says: str, hint: str) -> None:
    found = desk.type("logs", "101", *words)
    line, advice = found.err.splitlines()
    assert found.status == 2 and says in line and hint in advice


def test_the_supervisors_record_is_exact_and_comes_before_the_clock(desk: Desk, run: RunRecord) -> None:
    folder = run.run_dir / "attempts" / f"{run.submission.token}.0.1"
    (folder / "log-clock").write_text(f"1.00 {len(PARTS[0]) + 9} {len(ERRORS[0])}\n")
    (folder / "launch.json").write_text(json.dumps({"began": 1.0, "log_start": [len(PARTS[0]), len(ERRORS[0])]}))
    assert desk.type("logs", "101", "--attempt", "0.1").out == "0: again\n"


@pytest.mark.parametrize("sizes", [None, 3, [1], [-1, 0], ["a", "b"]])
def test_a_damaged_record_of_sizes_is_left_out(desk: Desk, run: RunRecord, sizes: object) -> None:
    folder = run.run_dir / "attempts" / f"{run.submission.token}.0.1"
    (folder / "launch.json").write_text(json.dumps({"began": 1.0, "log_start": sizes}))
    assert desk.type("logs", "101", "--attempt", "0.1").status == 0


def test_a_launch_without_a_clock_is_refused(desk: Desk, run: RunRecord) -> None:
    (run.run_dir / "attempts" / f"{run.submission.token}.0.1" / "log-clock").unlink()
    found = desk.type("logs", "101", "--attempt", "0.1")
    assert found.status == 2 and "do not show where attempt" in found.err
