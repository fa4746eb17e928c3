"""A submission's file: what a command or a job writes is read as it was written; anything else is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.base.decode import Damaged
from clusterrun.run_folder import safe_files, submissions
from clusterrun.run_folder.submissions import ACCEPTED, SUBMITTING, SubmissionRecord

TOKEN, OTHER = "abcdefgh22345672", "k3v7qaabcdefghij"
SENT = SubmissionRecord(
    token=TOKEN, state=ACCEPTED, job_id="101", cluster="lab", log_start=(3, -1), at=1_795_000_000,
    submitter=("login", 7, 99), script="script-abcdefgh.sh", task=4, final={"state": "COMPLETED"},
)  # fmt: skip
TEXT = st.text(max_size=20)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "submissions").mkdir()
    return tmp_path


def put(run_dir: Path, **changes: Any) -> None:
    """Write the file of SENT with other values, as another program might."""
    submissions.write(run_dir, SENT)
    path = submissions.path_of(run_dir, TOKEN)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_it_is_read_as_it_was_written(run_dir: Path) -> None:
    submissions.write(run_dir, SENT)
    assert submissions.read(run_dir, TOKEN) == SENT
    assert submissions.submitted_at(run_dir, TOKEN) == SENT.at
    submissions.write(run_dir, replace(SENT, job_id="102", final=None))
    assert submissions.read(run_dir, TOKEN) == replace(SENT, job_id="102", final=None)


def test_all_of_a_run_are_read_and_a_file_that_is_being_written_is_not(run_dir: Path) -> None:
    for token in (TOKEN, OTHER):
        submissions.write(run_dir, replace(SENT, token=token))
    (run_dir / "submissions" / f".{TOKEN}.json").write_text("{")
    with safe_files.open_folder(run_dir) as folder:
        assert {one.token for one in submissions.read_all(folder)} == {TOKEN, OTHER}


def test_the_next_one_is_later_and_inherits_no_end(run_dir: Path) -> None:
    last = replace(SENT, at=9_000_000_000)  # a clock was wrong
    following = submissions.next_after(last, ("node1", 12, 0), "--resume auto")
    assert following.resume_args == "--resume auto"
    assert following.at == last.at + 1 and following.token != last.token
    assert (following.state, following.job_id, following.final, following.task) == (SUBMITTING, "", None, None)
    submissions.write(run_dir, following)
    assert submissions.read(run_dir, following.token) == following


def test_keys_of_a_newer_version_are_ignored_and_missing_ones_have_their_default(run_dir: Path) -> None:
    put(run_dir, added_later=[1, 2])
    assert submissions.read(run_dir, TOKEN) == SENT
    submissions.path_of(run_dir, TOKEN).write_text(json.dumps({"token": TOKEN}))
    assert submissions.read(run_dir, TOKEN) == SubmissionRecord(token=TOKEN)


@pytest.mark.parametrize(
    "changes",
    [{"token": OTHER}, {"token": "../../etc"}, {"script": "../x.sh"}, {"script": "/bin/sh"}, {"task": 10**9},
     {"job_id": "1; rm"}, {"at": "now"}],
)  # fmt: skip
def test_a_value_that_clusterrun_never_writes_is_damage(run_dir: Path, changes: dict[str, Any]) -> None:
    put(run_dir, **changes)
    with pytest.raises(Damaged):
        submissions.read(run_dir, TOKEN)


def test_a_link_is_not_followed(run_dir: Path, tmp_path: Path) -> None:
    submissions.write(run_dir, SENT)
    path = submissions.path_of(run_dir, TOKEN)
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(OSError):
        submissions.read(run_dir, TOKEN)
    assert submissions.submitted_at(run_dir, TOKEN) == 0 and not submissions.is_cancelled(run_dir, TOKEN)


OBJECTS = st.dictionaries(TEXT, TEXT | st.integers()).map(json.dumps)


@settings(max_examples=settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=60) | st.dictionaries(TEXT, TEXT | st.integers()).map(lambda d: json.dumps(d).encode())
)
def test_whatever_the_file_holds_it_is_read_or_damaged(run_dir: Path, content: bytes) -> None:
    submissions.path_of(run_dir, TOKEN).write_bytes(content)
    with pytest.raises(Damaged):  # no token matches the name
        submissions.read(run_dir, TOKEN)
    assert submissions.submitted_at(run_dir, TOKEN) >= 0


def test_a_cancel_counts_while_the_job_may_still_be_ending(run_dir: Path) -> None:
    now = int(os.stat(run_dir).st_mtime)
    for asked, cancelled in ((0, False), (now, True), (now - 2 * int(submissions.CANCEL_S), False)):
        submissions.write(run_dir, replace(SENT, cancel_asked=asked))
        assert submissions.is_cancelled(run_dir, TOKEN) is cancelled
