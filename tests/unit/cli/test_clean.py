"""clean: checkpoints and caches of runs that ended long ago are deleted, and nothing that somebody needs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from pwd import getpwuid

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from tests.support.command_desk import Desk
from tests.support.listed_jobs import rows, run, run_row
from tests.support.run_records import AT, attempt, claim, end
from tests.unit.cli.test_cancel import Keyboard

ME = getpwuid(os.getuid()).pw_name


def with_checkpoints(desk: Desk, number: int = 1, kind: str = "task") -> RunRecord:
    """A run with the folder of a checkpoint of one file."""
    made = run(Store(desk.project, desk.state), number)
    (made.run_dir / "spec.json").write_text(json.dumps({"version": 1, "work": {"kind": kind}}))
    step = made.run_dir / "checkpoints" / "step-100"
    step.mkdir(parents=True)
    (step / "model.safetensors").write_bytes(b"x" * 8192)
    (made.run_dir / "metrics.jsonl").write_text("{}\n")
    return made


def over(made: RunRecord, status: int = 0) -> RunRecord:
    claim(made)
    attempt(made, end=end(status))
    return made


def cache(desk: Desk, age: float) -> Path:
    """A data cache that was last used so many seconds after the runs ended."""
    folder = Store(desk.project, desk.state).base / ".clusterrun" / "cache" / f"text-{age:.0f}"
    folder.mkdir(parents=True)
    file = folder / "tensors.safetensors"
    file.write_bytes(b"x" * 8192)
    os.utime(file, (AT + age, AT + age))
    return folder


@pytest.mark.parametrize("status", [0, 1, 85], ids=["done", "failed", "stopped"])
def test_the_checkpoints_of_a_run_that_is_over_are_deleted_and_its_records_kept(desk: Desk, status: int) -> None:
    made = over(with_checkpoints(desk), status)
    said = desk.type("clean", "--older-than", "1h", "--yes")
    assert said.status == 0 and said.out == "Deleted 0.0 MiB in 1 folder\n", said
    assert not (made.run_dir / "checkpoints").exists()
    assert (made.run_dir / "metrics.jsonl").exists() and (made.run_dir / "record.json").exists()


@pytest.mark.parametrize(("status", "kept"), [(0, True), (1, False)], ids=["done", "failed"])
def test_the_checkpoints_of_a_script_that_succeeded_are_kept(desk: Desk, status: int, kept: bool) -> None:
    made = over(with_checkpoints(desk, kind="script"), status)
    assert desk.type("clean", "--older-than", "1h", "--yes").status == 0
    assert (made.run_dir / "checkpoints").exists() is kept


def test_the_empty_folder_of_a_run_that_saved_nothing_is_not_listed(desk: Desk) -> None:
    made = over(with_checkpoints(desk), 1)
    shutil.rmtree(made.run_dir / "checkpoints")
    (made.run_dir / "checkpoints").mkdir()
    said = desk.type("clean", "--older-than", "1h", "--dry-run")
    assert said.status == 0 and "train1" not in said.out, said


def test_a_run_with_another_active_job_is_kept(desk: Desk) -> None:
    made = over(with_checkpoints(desk), 85)
    desk.slurm.answer("squeue", rows(run_row(made, u=ME) | {"i": "105"}))
    desk.type("clean", "--older-than", "1h", "--yes")
    assert (made.run_dir / "checkpoints").exists()


def test_nothing_is_deleted_while_a_record_cannot_be_read(desk: Desk) -> None:
    made, damaged = over(with_checkpoints(desk, 1)), with_checkpoints(desk, 2)
    (damaged.run_dir / "record.json").write_text("{")
    said = desk.type("clean", "--older-than", "1h", "--yes")
    assert (made.run_dir / "checkpoints").exists()
    assert f"deleting nothing: cannot read {damaged.run_dir}/record.json, and its run may be active" in said.err


def test_a_run_submitted_during_the_question_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first = over(with_checkpoints(desk, 1))

    class Slow(Keyboard):
        def readline(self, *size: int) -> str:
            second = with_checkpoints(desk, 2)
            text = json.dumps({"set": {"resume": str(first.run_dir / "checkpoints")}})
            (second.run_dir / "spec.json").write_text(text)
            return super().readline(*size)

    monkeypatch.setattr("sys.stdin", Slow("y\n"))
    desk.type("clean", "--older-than", "1h")
    assert (first.run_dir / "checkpoints").exists()


def test_what_an_error_left_is_no_checkpoint_and_deleted_the_next_time(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = over(with_checkpoints(desk))

    def fail(*arguments: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", fail)
        said = desk.type("clean", "--older-than", "1h", "--yes")
    assert said.status == 1 and "deleted only part of" in said.err and not (made.run_dir / "checkpoints").exists()
    assert desk.type("clean", "--older-than", "1h", "--yes").status == 0
    assert not [path.name for path in made.run_dir.iterdir() if "checkpoints" in path.name]


def test_a_dry_run_lists_them_and_deletes_nothing(desk: Desk) -> None:
    made = over(with_checkpoints(desk))
    said = desk.type("clean", "--older-than", "1h", "--dry-run")
    assert said.status == 0 and "checkpoints" in said.out and "train1" in said.out and "101" in said.out
    assert "would delete 0.0 MiB; nothing was deleted" in said.err and (made.run_dir / "checkpoints").exists()


def test_recent_runs_are_kept(desk: Desk) -> None:
    made = over(with_checkpoints(desk))
    said = desk.type("clean", "--yes", "--older-than", "500w")
    assert said.status == 0 and (made.run_dir / "checkpoints").exists()
    assert "nothing to delete in runs that ended more than 500w ago" in said.err


def test_active_and_lost_runs_are_kept(desk: Desk) -> None:
    active, lost = with_checkpoints(desk, 1), with_checkpoints(desk, 2)
    desk.slurm.answer("squeue", rows(run_row(active, u=ME)))
    assert desk.type("clean", "--older-than", "1h", "--yes").status == 0
    assert all((made.run_dir / "checkpoints").exists() for made in (active, lost))


def test_nothing_is_deleted_while_slurm_is_silent(desk: Desk) -> None:
    made = with_checkpoints(desk)
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    desk.type("clean", "--older-than", "1h", "--yes")
    assert (made.run_dir / "checkpoints").exists()


@pytest.mark.parametrize("readable", [True, False])
def test_checkpoints_that_another_run_starts_from_are_kept(desk: Desk, readable: bool) -> None:
    first, second = over(with_checkpoints(desk, 1)), with_checkpoints(desk, 2)
    desk.slurm.answer("squeue", rows(run_row(second, u=ME)))
    spec = second.run_dir / "spec.json"
    spec.write_text(json.dumps({"set": {"resume": str(first.run_dir / "checkpoints" / "step-100")}}))
    if not readable:
        spec.unlink()
        spec.symlink_to("/dev/zero")
    said = desk.type("clean", "--older-than", "1h", "--yes")
    assert (first.run_dir / "checkpoints").exists()
    assert "keeping the checkpoints of job 101: job 102 starts from them" in said.err


def test_checkpoints_that_are_a_link_are_not_followed(desk: Desk) -> None:
    made = over(with_checkpoints(desk))
    precious = desk.project / "precious"
    (made.run_dir / "checkpoints").rename(precious)
    (made.run_dir / "checkpoints").symlink_to(precious)
    desk.type("clean", "--older-than", "1h", "--yes")
    assert (precious / "step-100" / "model.safetensors").exists()


def test_caches_that_were_used_lately_are_kept(desk: Desk) -> None:
    over(with_checkpoints(desk))
    old, used = cache(desk, 0), cache(desk, 10**9)
    said = desk.type("clean", "--older-than", "1h", "--yes", "--json")
    assert not old.exists() and used.exists()
    assert [one["run_id"] is None for one in said.data["deleted"]] == [False, True]


def test_caches_are_kept_while_a_run_is_active(desk: Desk) -> None:
    active, old = with_checkpoints(desk), cache(desk, 0)
    desk.slurm.answer("squeue", rows(run_row(active, u=ME)))
    said = desk.type("clean", "--older-than", "1h", "--yes")
    assert old.exists() and "keeping the data caches: job 101 is active, or its state is unknown" in said.err


def test_a_run_that_another_command_resumes_is_kept(desk: Desk) -> None:
    made = over(with_checkpoints(desk))
    with Store(desk.project, desk.state).submitting(made):
        pid = os.fork()  # a lock of this process would not stop this process
        if not pid:
            os._exit(0 if desk.type("clean", "--older-than", "1h", "--yes").status == 1 else 9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (made.run_dir / "checkpoints").exists()


@pytest.mark.parametrize(("answer", "deleted"), [("y\n", True), ("n\n", False)])
def test_it_asks_first(desk: Desk, monkeypatch: pytest.MonkeyPatch, answer: str, deleted: bool) -> None:
    made = over(with_checkpoints(desk))
    monkeypatch.setattr("sys.stdin", Keyboard(answer))
    assert desk.type("clean", "--older-than", "1h").status == 0
    assert (made.run_dir / "checkpoints").exists() is not deleted


def test_without_a_terminal_it_needs_yes(desk: Desk) -> None:
    made = over(with_checkpoints(desk))
    said = desk.type("clean", "--older-than", "1h")
    assert said.status == 2 and "without confirmation" in said.err and "--yes" in said.err
    assert (made.run_dir / "checkpoints").exists()


@pytest.mark.parametrize("age", ["30", "yesterday", "", "-1d", "1y", "2099-01-01", "14:05"])
def test_a_mistyped_age_is_refused(desk: Desk, age: str) -> None:
    said = desk.type("clean", f"--older-than={age}")
    assert said.status == 2 and f"--older-than: '{age}' is not a valid age" in said.err
