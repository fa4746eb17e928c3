"""`resume`: the same run as a new job, once, and only after it has ended early."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from pwd import getpwuid

import pytest

from clusterrun.base.errors import Ambiguous
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import submissions
from tests.support.command_desk import Desk, shell_line, work_words
from tests.support.listed_jobs import rows, run_row
from tests.support.run_records import attempt, claim, end

ME = getpwuid(os.getuid()).pw_name
SUBMITTED = ("submit", "--json", "--nodes", "2", "--gpus-per-node", "4", "--resume-args", "--resume 'a b'",
             "--dependency", "afterok:7", "--", "train.py", "--lr", "1")  # fmt: skip


@pytest.fixture
def run(desk: Desk) -> RunRecord:
    """A run that was submitted as job 101; Slurm does not show it any more."""
    desk.slurm.answer("sbatch", "101\n")
    run_dir = Path(desk.type(*SUBMITTED).data["run_dir"])
    desk.slurm.answer("sbatch", "102\n")
    desk.slurm.forget()
    found = run_record.load(run_dir)
    assert found is not None
    return found


def ended(run: RunRecord, status: int = 143, **more: object) -> None:
    claim(run)
    attempt(run, end=end(status, signal="TERM" if status == 143 else "", **more))


def loaded(run: RunRecord) -> RunRecord:
    found = run_record.load(run.run_dir)
    assert found is not None
    return found


def test_a_run_whose_folder_others_can_change_by_now_is_not_resumed(desk: Desk, run: RunRecord) -> None:
    ended(run)
    desk.project.chmod(0o777)
    said = desk.type("resume", "101")
    assert said.status == 2 and f"cannot store records and logs in {desk.project}" in said.err
    assert len(loaded(run).submissions) == 1


def test_other_arguments_tell_the_script_where_to_start(desk: Desk, run: RunRecord) -> None:
    ended(run)
    assert desk.type("resume", "101", "--resume-args", "'").status == 2
    assert desk.type("resume", "101", "--resume-args", "--resume 'out/step 60.pt'").status == 0
    options = shell_line(loaded(run).script.read_text(), "CR_OPTIONS=")
    assert "--resume 'out/step 60.pt'" in " ".join(shlex.split(options)), options
    assert [one.resume_args for one in loaded(run).submissions] == ["", "--resume 'out/step 60.pt'"]


def test_a_changed_limit_is_that_of_all_later_jobs_of_the_run(desk: Desk, run: RunRecord) -> None:
    ended(run)
    assert desk.type("resume", "101", "--time", "2h", "--mem", "8G").status == 0
    again = loaded(run)
    ended(again)
    desk.slurm.answer("sbatch", "103\n")
    assert desk.type("resume", "102", "--mem", "16G").status == 0
    first, second, third = ((run.run_dir / one.script).read_text() for one in loaded(run).submissions)
    assert "--time" not in first and "--mem" not in first
    assert '#SBATCH --time="2:00:00"\n' in second and '#SBATCH --mem="8G"\n' in second
    assert '#SBATCH --time="2:00:00"\n' in third and '#SBATCH --mem="16G"\n' in third
    assert desk.type("status", "102", "--explain").out.count("time = '2h'  (--time)") == 1
    said = desk.type("resubmit", "103", "--dry-run", "--script")
    assert '#SBATCH --time="2:00:00"\n' in said.out and '#SBATCH --mem="16G"\n' in said.out, said.err


@pytest.mark.parametrize("words", [("--time", "soon"), ("--mem", "lots"), ("--partition", "auto"), ("--nodes", "2")])
def test_a_change_that_resume_cannot_make_leaves_the_run_as_it_was(
    desk: Desk, run: RunRecord, words: tuple[str, ...]
) -> None:
    ended(run)
    said = desk.type("resume", "101", *words)
    assert said.status == 2 and words[0] in said.err
    assert len(loaded(run).submissions) == 1


def test_what_a_typed_time_means_is_said_as_at_submit(desk: Desk, run: RunRecord) -> None:
    ended(run)
    err = desk.type("resume", "101", "--time", "8:00", "--mem", "64").err
    assert "--time 8:00 is 8 min 0 s" in err and "--mem 64 is 64 MB" in err


def test_an_option_that_an_sbatch_argument_of_the_run_sets_is_refused(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "101\n")
    run_dir = Path(desk.type(*SUBMITTED[:2], "--sbatch-arg=--mem-per-cpu=4G", *SUBMITTED[2:]).data["run_dir"])
    desk.slurm.forget()
    found = run_record.load(run_dir)
    assert found is not None
    ended(found)
    said = desk.type("resume", "101", "--mem", "64G")
    assert said.status == 2 and "--mem conflicts with --sbatch-arg=--mem-per-cpu=4G" in said.err
    assert desk.type("resume", "101", "--dry-run").status == 2  # no such option


def test_a_cancelled_run_becomes_a_new_job_with_the_same_options(desk: Desk, run: RunRecord) -> None:
    ended(run)
    said = desk.type("resume", "--json", "101")
    assert said.status == 0, said.err
    assert (said.data["job_id"], said.data["run_id"]) == ("102", run.run_id)
    first, second = loaded(run).submissions
    assert (first.token, first.job_id, second.state, second.job_id) == (
        run.submission.token, "101", submissions.ACCEPTED, "102",
    )  # fmt: skip
    before, script = ((run.run_dir / one.script).read_text() for one in (first, second))
    assert work_words(script) == work_words(before) and shell_line(script, "CR_OPTIONS=") in before
    assert "afterok:7" in before and "afterok:7" not in script, "it has waited for that"
    assert first.token not in script and f"export CLUSTERRUN_TOKEN={second.token}\n" in script
    (call,) = [call for call in desk.slurm.calls if call[0] == "sbatch"]
    assert call[-1] == str(run.run_dir / second.script)


def test_a_run_that_never_started_still_waits_for_its_dependency(desk: Desk, run: RunRecord) -> None:
    Store(desk.project, desk.state).save_submission(run, replace(run.submission, cancel_asked=1))
    assert desk.type("resume", "101").status == 0
    assert "afterok:7" in loaded(run).script.read_text()


@pytest.mark.parametrize(
    ("state", "verb"), [("PENDING", "cancel"), ("RUNNING", "cancel"), ("COMPLETING", "wait"), ("SUSPENDED", "cancel")]
)
def test_an_active_run_is_refused(desk: Desk, run: RunRecord, state: str, verb: str) -> None:
    desk.slurm.answer("squeue", rows(run_row(run, u=ME, T=state)))
    said = desk.type("resume", "101")
    assert said.status == 2
    assert said.err.splitlines()[-2:] == [
        f"clusterrun: job 101 is {state}: this run has not ended", f"  hint: clusterrun {verb} 101",
    ]  # fmt: skip
    assert desk.slurm.count("sbatch") == 0


def test_a_finished_run_is_refused(desk: Desk, run: RunRecord) -> None:
    ended(run, 0)
    said = desk.type("resume", run.run_id)
    assert (said.status, desk.slurm.count("sbatch")) == (2, 0)
    assert "job 101 is COMPLETED: there is nothing left to resume" in said.err


def test_an_unknown_job_and_one_of_another_tool_are_refused(desk: Desk) -> None:
    assert desk.type("resume", "55").status == 4
    desk.slurm.answer("squeue", rows({"i": "55", "u": ME}))
    said = desk.type("resume", "55")
    assert said.status == 2 and "job 55 is not a clusterrun job" in said.err
    assert desk.type("resume", "5 5").status == 2


def test_nothing_is_submitted_while_the_controller_is_silent(desk: Desk, run: RunRecord) -> None:
    desk.slurm.answer("squeue", err="squeue: error: Socket timed out", status=1)
    said = desk.type("resume", "101")
    assert (said.status, desk.slurm.count("sbatch")) == (3, 0)
    assert "cannot tell whether job 101 has ended" in said.err


def test_a_refusal_leaves_the_run_as_it_was(desk: Desk, run: RunRecord) -> None:
    ended(run)
    desk.slurm.answer("sbatch", err="sbatch: error: Batch job submission failed: Invalid account", status=1)
    before = {path for path in desk.files() if "/lock" not in path}
    said = desk.type("resume", "101")
    assert said.status == 3 and "Invalid account" in said.err
    assert {path for path in desk.files() if "/lock" not in path} == before
    assert len(loaded(run).submissions) == 1


def test_an_interrupted_submission_is_finished_with_its_token(desk: Desk, run: RunRecord) -> None:
    ended(run)
    store, before = Store(desk.project, desk.state), loaded(run)
    one = replace(before.submission, token="abcdefgh22345672", job_id="", state=submissions.SUBMITTING, final=None,
                  at=before.submission.at + 1, script="script-abcdefgh.sh", submitter=("", 0, 0))  # fmt: skip
    store.stage_again(replace(before, submissions=(*before.submissions, one)), "#!/bin/bash\n")
    moved = replace(before, submissions=(*before.submissions, one))
    desk.slurm.answer("squeue", rows(run_row(replace(moved, submissions=(replace(one, job_id="109"),)), u=ME)))
    said = desk.type("resume", "--json", "101")
    assert (said.status, said.data["job_id"], desk.slurm.count("sbatch")) == (0, "109", 0)


def test_two_commands_at_once_submit_one_job(desk: Desk, run: RunRecord) -> None:
    ended(run)
    with Store(desk.project, desk.state).submitting(run):
        said = desk.process("resume", "101")
    assert said.status == Ambiguous.exit_code and "another command is submitting" in said.err
    assert desk.slurm.count("sbatch") == 0
    assert desk.type("resume", "101").status == 0
    desk.slurm.answer("squeue", rows(run_row(loaded(run), u=ME, T="PENDING")))
    said = desk.type("resume", "101")
    assert said.status == 2 and "job 102 is PENDING" in said.err
    assert desk.slurm.count("sbatch") == 1


def test_why_names_resume_for_a_script_whose_total_time_is_used_up(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "101\n")
    words = ("--gpus-per-node", "0", "--total-time", "5h", "--signal", "TERM@300", "--", "train.py")
    run = run_record.load(Path(desk.type("submit", "--json", *words).data["run_dir"]))
    assert run is not None
    ended(run, 85)
    (why,) = desk.type("why", "--json", "101").data
    assert (why["outcome"], why["ended"]["command"]) == ("stopped", "clusterrun resume 101")
