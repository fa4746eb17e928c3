"""A run's logs begin at its own first byte, and are read only where they are its owner's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.base.job import JobId
from clusterrun.logs.files import Source, Tick
from clusterrun.logs.follow import Notice, Timing
from clusterrun.logs.request import DisplayFormat, LineFilter, LogRequest
from clusterrun.logs.show import show, show_following
from clusterrun.records import launches
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.why import ended
from tests.support.command_desk import Desk
from tests.support.ended_runs import Slurm, over
from tests.support.run_records import AT, attempt, claim, end, submitted

OLD_OUT = "0: of a run before\n1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
OLD_ERR = "0: Traceback (most recent call last):\n0: torch.OutOfMemoryError: CUDA out of memory."
OUT, ERR = "0: mine\n1: loss 4\n", "1: ValueError: no such column\n"
STRANGER = 54321

LINES = st.lists(
    st.sampled_from([b"0: a\n", b"1: \x1b[1mb\n", b"Traceback (most recent call last):\n", b"ValueError: x\n", b"\n",
                     b"0: 10%|#\r0: 20%|##\r", b"c" * 2000 + b"\n", b"half"]), max_size=12,
).map(b"".join)  # fmt: skip


LOOKS = [DisplayFormat(), DisplayFormat(terminal=True, fold=True), DisplayFormat(raw=True)]
WANTS = [LineFilter(), LineFilter(errors=True), LineFilter(grep=re.compile("a|x"))]


@settings(max_examples=4 * settings().max_examples)
@given(
    old=LINES, new=LINES, more=LINES,
    look=st.sampled_from(LOOKS), want=st.sampled_from(WANTS), how=st.sampled_from([{}, {"tail": 2}, {"since": 1.0}]),
)  # fmt: skip
def test_what_stands_before_a_runs_first_byte_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    old: bytes,
    new: bytes,
    more: bytes,
    look: DisplayFormat,
    want: LineFilter,
    how: dict,
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    ticks = (Tick(0.5, len(new), 0),) if "since" in how else ()
    alone = Source(folder / "alone.out", folder / "alone.err", world_size=2, ticks=ticks)
    after = replace(alone, out=folder / "after.out", err=folder / "after.err", begin=(len(old), len(old)))
    for source, before in ((alone, b""), (after, old)):
        for path in (source.out, source.err):
            assert path is not None
            path.write_bytes(before + new + more)
    request = LogRequest(want, look, **how)
    assert b"".join(show([after], request)) == b"".join(show([alone], request))

    def followed(one: Source) -> list[bytes | Notice]:
        timing = Timing(sleep=lambda _: None, now=lambda: 0.0)
        return list(show_following([one], request, stop=lambda: True, timing=timing))

    assert followed(after) == followed(alone)


def test_a_log_that_was_cut_below_the_first_byte_is_read_whole(tmp_path: Path) -> None:
    source = Source(tmp_path / "a.out", begin=(1000, 0))
    source.out.write_text("all of it\n")
    assert b"".join(show([source], LogRequest())) == b"all of it\n"


def test_a_followed_log_that_is_cut_or_replaced_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    source = Source(tmp_path / "a.out", begin=(len(OLD_OUT), 0))
    source.out.write_text(OLD_OUT + "one\n")

    def replace_it() -> None:
        (tmp_path / "b").write_text("three\n" + "x" * 200 + "\n")
        (tmp_path / "b").rename(source.out)

    steps = [lambda: source.out.write_text("two\n"), lambda: None, replace_it, lambda: None]
    pieces = show_following(
        [source],
        LogRequest(),
        stop=lambda: not steps,
        timing=Timing(sleep=lambda _: steps.pop(0)() if steps else None),
    )
    said = [piece.text if isinstance(piece, Notice) else piece for piece in pieces]
    assert [one for one in said if isinstance(one, bytes)] == [b"one\n", b"two\n", b"three\n" + b"x" * 200 + b"\n"]


@pytest.fixture(params=["submitter", "script"])
def run(request: pytest.FixtureRequest, desk: Desk) -> RunRecord:
    """A run that failed, whose job id had been another run's before; who noted how long the logs were then."""
    for path, text in (("logs/train_101.out", OLD_OUT), ("logs/train_101.err", OLD_ERR)):
        desk.write(path, text)
        if request.param == "submitter":  # to the other, the job may have written already
            os.utime(desk.project / path, (AT - 60, AT - 60))
    run = submitted(Store(desk.project, desk.state), cluster="desk", workers_per_node=2)
    claim(run)
    folder = attempt(run, end=end(1))
    noise = 10 if request.param == "submitter" else 0  # what the node wrote before the script's first act
    (folder / "log-start").write_text(f"{len(OLD_OUT) + noise} {len(OLD_ERR) + noise}\n")
    desk.write("logs/train_101.out", OLD_OUT + OUT)
    desk.write("logs/train_101.err", OLD_ERR + ERR)
    return run


@pytest.mark.parametrize("words", [[], ["-n", "50"], ["--raw"], ["--json"], ["--errors"], ["-f"], ["--grep", "."]])
def test_no_mode_shows_a_line_of_the_run_before(desk: Desk, run: RunRecord, words: list[str]) -> None:
    said = desk.type("logs", "101", *words)
    assert "no such column" in said.out
    assert "memory" not in said.out + said.err and "before" not in said.out


def test_why_does_not_blame_the_run_before(run: RunRecord) -> None:
    cause = ended.explain(Slurm(), over(run))
    assert cause.sentence == "ValueError: no such column"
    assert cause.evidence[0].number is None  # lines before it were not counted


def test_a_run_begins_where_its_submitter_saw_the_logs_end_or_where_its_script_did(run: RunRecord) -> None:
    assert launches.log_begin(run, JobId("101")) == (len(OLD_OUT), len(OLD_ERR))


@pytest.mark.parametrize("words", ["", "1", "1 2 3", "-1 5", "x y", "9" * 30 + " 1"])
def test_a_note_of_the_script_that_is_damaged_hides_nothing(desk: Desk, words: str) -> None:
    desk.write("logs/train_101.out", OUT)  # the job may have written it
    run = submitted(Store(desk.project, desk.state), cluster="desk")
    (attempt(run) / "log-start").write_text(words)
    assert launches.log_begin(run, JobId("101")) == (0, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")  # chown refuses; CI is root
def test_a_log_of_another_user_is_named_in_one_line_and_the_rest_is_shown(desk: Desk, run: RunRecord) -> None:
    os.chown(desk.project / "logs/train_101.err", STRANGER, -1)
    for words in ([], ["-n", "5"], ["--raw"], ["-f"]):
        said = desk.type("logs", "101", *words)
        assert "loss 4" in said.out and "no such column" not in said.out
        (line,) = [line for line in said.err.splitlines() if "train_101.err" in line]
        assert "was not read: it belongs to user 54321, who does not own the job" in line
    said = desk.type("logs", "101", "--stream", "err")
    assert (said.status, said.out) == (2, "")
    notes = ended.explain(Slurm(), over(run)).notes
    assert any("belongs to user 54321" in note for note in notes)


def test_json_holds_the_lines_that_are_the_runs_own(desk: Desk, run: RunRecord) -> None:
    assert [line["text"] for line in json.loads(desk.type("logs", "101", "--json").out)["data"]] == [
        "mine", "loss 4", "ValueError: no such column",
    ]  # fmt: skip
