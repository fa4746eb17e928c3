"""A run with several jobs, and names of several runs: each live job is seen by every verb, and `cancel` ends it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, ONE_RANK, SCRIPTS, Job, Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import NEVER, light, light_template

#: It fails unless the file `go` is in the project's folder, where the job starts.
FAILS_FIRST = "[ -e go ] || exit 3; sleep 600 & wait $!"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_template(tmp_path_factory.mktemp("template"), FAILS_FIRST)


@pytest.fixture
def closed_partition(lab: Lab) -> Iterator[str]:
    """A partition whose jobs wait while it is down."""
    yield "low"
    lab.run(["scontrol", "update", "PartitionName=low", "State=UP"])


def set_partition(lab: Lab, state: str) -> None:
    assert lab.run(["scontrol", "update", "PartitionName=low", f"State={state}"]).returncode == 0


@pytest.fixture
def requeued(site: Site, template: Path, closed_partition: str) -> tuple[Job, str]:
    """A job that failed and was requeued, and the id of a later job of its run that was cancelled while it waited."""
    lab = site.lab
    assert lab is not None
    (site.project / "go").unlink(missing_ok=True)
    job = light(site, template, "--job-name", "again", "--requeue", "--partition", closed_partition)
    site.wait_state(job, "FAILED")
    set_partition(lab, "DOWN")
    later = site.json("resume", job.id)["job_id"]
    assert site.cli("cancel", later).stdout == f"Cancelled {later}\n"
    (site.project / "go").touch()
    set_partition(lab, "UP")
    assert lab.run(["scontrol", "requeue", job.id]).returncode == 0
    lab.wait_job(job.id, "RUNNING")
    return job, later


def test_a_resumed_job_asks_slurm_for_what_was_changed_and_so_do_later_ones(
    site: Site, template: Path, closed_partition: str
) -> None:
    lab = site.lab
    assert lab is not None
    job = light(site, template, "--time", "5m")
    site.wait_state(job, "FAILED")
    set_partition(lab, "DOWN")
    node = lab.node_names[0]
    changed = site.json("resume", job.id, "--time", "10m", "--exclude", node, "--partition", closed_partition)["job_id"]
    assert site.cli("cancel", changed).stdout == f"Cancelled {changed}\n"
    later = site.json("resume", changed)["job_id"]
    for job_id in (changed, later):
        words = lab.run(["scontrol", "show", "job", "-o", job_id]).stdout.split()
        assert {"TimeLimit=00:10:00", f"ExcNodeList={node}", f"Partition={closed_partition}"} <= set(words)
    site.cli("cancel", later)


def test_a_requeued_job_of_an_earlier_submission_is_seen_by_every_verb(
    site: Site, requeued: tuple[Job, str], tmp_path: Path
) -> None:
    job, later = requeued
    run_id = job.run_dir.name
    assert [row["job_id"] for row in site.listed()] == [job.id]
    for word in (job.id, run_id):
        assert [(one["job_id"], one["state"]) for one in site.json("status", word)] == [(job.id, "RUNNING")]
    assert [(one["job_id"], one["state"]) for one in site.json("status", later)] == [(later, "CANCELLED")]
    assert site.json("why", job.id)[0]["kind"] == "running"
    assert [row["job_id"] for row in site.json("top")] == [job.id]
    for word in (job.id, "again"):
        assert site.cli("exec", word, "--", "sh", "-c", "echo $SLURM_JOB_ID").stdout.split() == [job.id]
    for word in (job.id, later, run_id):
        refusal = site.cli("resume", word, status=2).stderr
        assert f"job {job.id} is " in refusal and "this run has not ended" in refusal, refusal
    waiting = site.start("wait", job.id)
    followed = site.start("logs", job.id, "-f")
    # another state folder and another project: the run is known only by its script, and its end was recorded
    elsewhere = {"cwd": tmp_path, "env": {"CLUSTERRUN_STATE": str(tmp_path / "state")}}
    assert job.id in [row["job_id"] for row in site.json("list", **elsewhere)]
    assert site.cli("cancel", "--name", "again", "--yes", **elsewhere).stdout == f"Cancelled {job.id}\n"
    assert site.lab is not None and site.lab.job(job.id)["JobState"] in ("CANCELLED", "COMPLETING")
    for process in (waiting, followed):
        said, _ = process.communicate(timeout=HUNG)
        assert process.returncode == 1 and f"job {job.id}: CANCELLED" in said, said


def test_the_id_of_a_requeued_job_cancels_it(site: Site, requeued: tuple[Job, str]) -> None:
    job, later = requeued
    assert site.cli("cancel", later).stdout.startswith(f"Not cancelled {later}: already ended")
    assert site.state(job)["state"] == "RUNNING"
    assert site.cli("cancel", job.id).stdout == f"Cancelled {job.id}\n"
    assert {row["state"] for row in site.listed()} <= {"COMPLETING"}


def test_a_name_means_the_active_job_before_the_newest(site: Site, template: Path) -> None:
    running = light(site, template, "--job-name", "twice", NEVER)
    ended = light(site, template, "--job-name", "twice", NEVER)
    site.cli("cancel", ended.id)
    for verb in ("wait", "logs"):
        process = site.start(verb, "twice", *(["-f"] if verb == "logs" else []))
        assert process.stdout is not None
        until(lambda said=process.stdout: f"job {running.id}: PENDING" in said.readline(), 20)
        process.kill()
        process.communicate()
    assert site.cli("cancel", "twice").stdout == f"Cancelled {running.id}\n"
    both = [light(site, template, "--job-name", "twice", NEVER) for _ in range(2)]
    refusal = site.cli("cancel", "twice", status=2).stderr
    assert f"2 jobs are named twice: {both[0].id}, {both[1].id}" in refusal and "give one of these ids" in refusal
    assert site.cli("cancel", *(job.id for job in both)).stdout.count("Cancelled") == 2


def test_on_a_full_disk_every_job_of_both_schedulers_is_cancelled(site: Site, template: Path) -> None:
    jobs = [light(site, template, "--job-name", f"full-{number}", NEVER) for number in range(2)]
    local = site.json("submit", "--scheduler", "local", "--gpus-per-node", "0", "--job-name", "full-l", "--no-check",
                      "--", "sleep", "600")["job_id"]  # fmt: skip
    words = ["prlimit", "--fsize=0", *CLUSTERRUN, "cancel", *(job.id for job in jobs), local]
    done = subprocess.run(words, cwd=site.project, env=site.env, capture_output=True, text=True, timeout=HUNG)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and [line.split(":")[0] for line in lines] == [
        f"Cancelled {name}" for name in (jobs[0].id, jobs[1].id, local)
    ], done
    assert all("cannot be written" in line for line in lines[:2]) and "Traceback" not in done.stderr
    assert [
        row["state"] for row in json.loads(site.cli("list", "--json").stdout)["data"] if row["name"] == "full-l"
    ] == []
    assert site.lab is not None and all(site.lab.job(job.id)["JobState"] == "CANCELLED" for job in jobs)


def test_a_state_that_was_seen_stays_when_slurm_has_forgotten_the_job(site: Site) -> None:
    assert site.lab is not None
    job = site.rank("sleeps.sh")
    site.wait_joined(job)
    # a signal alone: Slurm calls the job FAILED, its own record has the signal of a cancel
    assert site.lab.run(["scancel", "--batch", "--signal=TERM", job.id]).returncode == 0
    site.wait_end(job)
    site.lab.wait_job(job.id, "FAILED")
    before = site.wait_state(job, "FAILED")
    assert site.cli("cancel", job.id).stdout.startswith(f"Not cancelled {job.id}: already ended")
    site.lab.forget_ended()
    after = site.state(job)
    for key in ("state", "outcome", "reason", "exit_status", "ended", "elapsed"):
        assert after[key] == before[key], key


def test_a_job_that_was_made_smaller_while_it_waited_ends_with_what_was_changed(site: Site) -> None:
    assert site.lab is not None
    job = site.submit(*ONE_RANK, "--nodes", "2", "--sbatch-arg=--hold", "--", str(SCRIPTS / "says_hello.sh"))
    assert site.lab.run(["scontrol", "update", f"JobId={job.id}", "NumNodes=1-1", "NumTasks=1"]).returncode == 0
    assert site.lab.run(["scontrol", "release", job.id]).returncode == 0
    site.wait_state(job, "FAILED", timeout=HUNG)
    (answer,) = site.json("why", job.id)
    assert answer["ended"]["cause"] == (
        "the job has 1 node, but was submitted for 2: its size was changed (scontrol update NumNodes),"
        " and its ranks were not started."
    )
    assert answer["ended"]["advice"] == f"submit it again: clusterrun resubmit {job.id} --nodes 1"
