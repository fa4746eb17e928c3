"""Records: plain files, replaced atomically, readable by any version, found from anywhere."""

from __future__ import annotations

import json
import os
import pwd
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId
from clusterrun.records import run_record
from clusterrun.records import store as stores
from clusterrun.records.store import Store
from clusterrun.run_folder import files, submissions
from clusterrun.run_folder.claims import Claim
from tests.support.run_records import AT, attempt, claim, make_run, submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    root = tmp_path / "project"
    root.mkdir()
    return Store(root, tmp_path / "state")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_record_comes_back_as_it_was(store: Store) -> None:
    run = submitted(store, name='odd "é🙂\udcff\x1b', what="a\tb")
    me = {"owner": os.getuid(), "user": pwd.getpwuid(os.getuid()).pw_name}
    assert run_record.load(run.run_dir) == replace(run, **me)  # type: ignore[arg-type]
    assert run.job_id == JobId("101") and run.submission.state == submissions.ACCEPTED
    assert (run.run_dir / "script.sh").read_text() == "#!/bin/bash\n"
    assert run.world_size == 8 and run.logs == store.root / "logs"


@pytest.mark.parametrize(("shared", "folder", "file"), [(False, 0o700, 0o600), (True, 0o750, 0o640)])
def test_modes_whatever_the_umask(store: Store, shared: bool, folder: int, file: int) -> None:
    before = os.umask(0o000)
    try:
        run = submitted(store, shared=shared)
    finally:
        os.umask(before)
    assert mode(run.run_dir) == mode(run.run_dir / "submissions") == folder
    assert {mode(path) for path in run.run_dir.rglob("*.*") if path.is_file()} == {file}
    assert mode(store.index) == 0o600
    assert not list(run.run_dir.rglob(".*")), "no temporary file is left"


def test_a_write_that_fails_leaves_the_old_file(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    stores.write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        stores.write(path, "new \ud83d")
    assert path.read_text() == "old" and sorted(os.listdir(tmp_path)) == ["project", "x.json"]


def test_a_link_in_the_way_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "x.json").symlink_to(target)
    stores.write(tmp_path / "x.json", "new")
    assert target.read_text() == "mine" and not (tmp_path / "x.json").is_symlink()


def test_records_that_cannot_be_written_leave_nothing(store: Store) -> None:
    (store.root / ".clusterrun").write_text("a file in the way")
    with pytest.raises(RequestError, match="cannot write the run's records"):
        store.stage(make_run(store.root), {}, "")
    (store.root / ".clusterrun").unlink()
    run = make_run(store.root)
    run.run_dir.mkdir(parents=True)
    (run.run_dir / "script.sh").mkdir()
    with pytest.raises(RequestError):
        store.stage(run, {}, "")
    assert not run.run_dir.exists()


def test_logs_are_proved(store: Store) -> None:
    store.prepare(False)
    assert mode(store.root / "logs") == 0o700
    assert os.listdir(store.root / "logs") == []
    store.prepare(False)
    (store.root / "logs").chmod(0o777)
    with pytest.raises(RequestError, match="other users have write access"):
        store.prepare(False)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"run_id": 1}', '"text"', "\x00", '{"root": 7}', '{"root": "/x"}']
)
def test_a_damaged_record_is_no_record(store: Store, damage: str) -> None:
    run = submitted(store)
    (run.run_dir / "record.json").write_text(damage)
    assert run_record.load(run.run_dir) is None and store.all() == []


def test_a_record_without_its_submission_is_no_record(store: Store) -> None:
    run = submitted(store)
    path = next((run.run_dir / "submissions").iterdir())
    path.write_text('{"token": ')
    assert run_record.load(run.run_dir) is None
    path.unlink()
    assert run_record.load(run.run_dir) is None and run_record.load(store.root / "none") is None


def test_a_newer_versions_record_is_read(store: Store) -> None:
    run = submitted(store)
    for path in (run.run_dir / "record.json", next((run.run_dir / "submissions").iterdir())):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9, "novelty": [1]}))
    found = run_record.load(run.run_dir)
    assert found is not None and found.job_id == run.job_id


def test_the_newest_submission_counts(store: Store) -> None:
    run = submitted(store)
    later = replace(run.submission, token="zzzzzzzzzzzzzzzz", at=AT + 99, job_id="999")
    store.save_submission(run, later)
    found = run_record.load(run.run_dir)
    assert found is not None and found.job_id == JobId("999") and len(found.submissions) == 2
    assert (
        [r.run_id for r in store.by_job(JobId("101"))] == [r.run_id for r in store.by_job(JobId("999"))] == [run.run_id]
    )


def test_a_job_is_found_from_any_folder(store: Store, tmp_path: Path) -> None:
    run = submitted(store)
    elsewhere = Store(tmp_path, tmp_path / "state")
    assert [r.run_id for r in elsewhere.by_job(JobId("101"))] == [run.run_id]
    assert [r.run_id for r in elsewhere.by_job(JobId("101", task=3))] == [run.run_id]
    assert [r.run_id for r in elsewhere.by_job(JobId("101", cluster="lab"))] == [run.run_id]
    assert elsewhere.by_job(JobId("101", cluster="other")) == [] == elsewhere.by_job(JobId("10"))
    found = elsewhere.by_run_id(run.run_id)
    assert found is not None and found.run_dir == run.run_dir
    assert elsewhere.by_run_id("20261121-000000-zzzzzz") is None


def test_a_lost_index_is_mended(store: Store) -> None:
    run = submitted(store)
    store.index.unlink()
    assert [r.run_id for r in store.by_job(JobId("101"))] == [run.run_id], "jobs/<cluster>/<id> leads to it"
    (store.jobs / "lab" / "101").unlink()
    assert [r.run_id for r in store.by_job(JobId("101"))] == [run.run_id], "so do the runs themselves"
    assert str(run.run_dir) in store.index.read_text()


def test_a_torn_or_lying_index_is_not_believed(store: Store, tmp_path: Path) -> None:
    run, other = submitted(store, 1), submitted(store, 2)
    lies = [["lab", "101", str(other.run_dir)], ["lab", "101", str(tmp_path)], ["lab", "101", "/dev/null"]]
    torn = b'\n["lab", "1\n[]\n7\nnull\n\xff\n'
    store.index.write_bytes("\n".join(map(json.dumps, lies)).encode() + torn)
    assert [r.run_id for r in store.by_job(JobId("101"))] == [run.run_id]
    (store.jobs / "lab" / "101").write_text(f"{other.run_id}\n../../../etc\n\n{run.run_id}\n")
    assert [r.run_id for r in store.by_job(JobId("101"))] == [run.run_id]


def test_an_id_given_out_twice_has_two_runs(store: Store) -> None:
    one, two = submitted(store, 1, "55"), submitted(store, 2, "55")
    assert [r.run_id for r in store.by_job(JobId("55"))] == [one.run_id, two.run_id]
    assert (store.jobs / "lab" / "55").read_text().split() == [one.run_id, two.run_id]


def test_slurms_own_word_leads_to_a_run_too(store: Store, tmp_path: Path) -> None:
    run = submitted(store)
    elsewhere = Store(tmp_path, tmp_path / "other-state")
    assert elsewhere.by_job(JobId("101")) == []
    assert [r.run_id for r in elsewhere.by_job(JobId("101"), hint=[run.run_dir, tmp_path])] == [run.run_id]


def test_all_runs_oldest_first(store: Store) -> None:
    runs = [submitted(store, number) for number in (3, 1, 2)]
    assert [r.at for r in store.all()] == sorted(r.at for r in runs)
    store.discard(runs[0])
    assert len(store.all()) == 2


def test_attempts_and_claims(store: Store) -> None:
    run = submitted(store)
    assert run_record.attempts(run) == [] and run_record.claim_of(run) is None
    for restart, launch in ((10, 0), (2, 1), (2, 0)):
        attempt(run, restart, launch)
    (run.run_dir / "attempts" / "stranger.0.0").mkdir()
    (run.run_dir / "attempts" / f"{run.submission.token}.x.0").mkdir()
    assert [path.name.partition(".")[2] for path in run_record.attempts(run)] == ["2.0", "2.1", "10.0"]
    claim(run, restart=2)
    owner = run.run_dir / "claims" / run.submission.token / "owner"
    assert run_record.claim_of(run) == Claim("lab", "101", 2, int(owner.stat().st_mtime))
    for torn in ("", "lab", "lab 101", "lab 101 x", "a b c d"):
        owner.write_text(torn)
        assert run_record.claim_of(run) is None


@pytest.mark.parametrize("text", ["", "[1]", "{", "7", "null", '{"a": 1} x', "\x80"])
def test_what_a_job_half_wrote_is_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "end.json"
    path.write_bytes(text.encode("latin-1"))
    assert files.read_json(path) is None and files.read_json(tmp_path / "none.json") is None


def test_deep_json_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    assert files.read_json(tmp_path / "x.json") is None


def test_where_the_state_is() -> None:
    assert files.state_folder({"CLUSTERRUN_STATE": "/s", "HOME": "/h"}) == Path("/s")
    assert files.state_folder({"XDG_STATE_HOME": "/x", "HOME": "/h"}) == Path("/x/clusterrun")
    assert files.state_folder({"HOME": "/h"}) == Path("/h/.local/state/clusterrun")
