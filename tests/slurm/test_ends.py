"""How a run ends, and that its record tells the truth of it for good: Slurm forgets a job after some minutes.

One job for each way to end is submitted to both labs before the first test; nobody asks clusterrun how it stands
until the last tests, when Slurm has forgotten it. The tests between use that time.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, ONE_RANK, SCRIPTS, Job, Site, until
from tests.support.patience import HUNG

WAYS = {
    # way to end: (state, outcome, exit status, exit code of `wait`)
    "completed": ("COMPLETED", "done", 0, 0),
    "failed": ("FAILED", "failed", 7, 1),
    "cancelled": ("CANCELLED", "cancelled", 143, 1),
    "scancelled": ("CANCELLED", "cancelled", 143, 1),
    "requeued, then scancelled": ("CANCELLED", "cancelled", 143, 1),
    "timed out": ("TIMEOUT", "failed", 143, 1),
}
NEVER = "--sbatch-arg=--begin=now+1hour"
MakeSite = Callable[[Lab | None], Site]


class Ends:
    """The jobs of one lab, by the way they end."""

    def __init__(self, lab: Lab, site: Site) -> None:
        self.lab, self.site = lab, site
        self.jobs = {
            "timed out": site.rank("sleeps.sh", "--partition", "short"),
            "requeued, then scancelled": site.rank("sleeps.sh", "--requeue"),
            "scancelled": site.rank("sleeps.sh"),
            "cancelled": site.rank("sleeps.sh"),
            "completed": site.rank("says_hello.sh"),
            "failed": site.rank("fails.sh"),
        }

    def interrupt(self) -> None:
        """End those that do not end by themselves, each once its rank is at work."""
        twice = self.jobs["requeued, then scancelled"]
        for job in (twice, self.jobs["scancelled"], self.jobs["cancelled"]):
            self.site.wait_joined(job)
        assert self.lab.run(["scontrol", "requeue", twice.id]).returncode == 0
        self.lab.run(["scancel", self.jobs["scancelled"].id])
        self.site.cli("cancel", self.jobs["cancelled"].id)

    def interrupt_again(self) -> None:
        """End the one that was requeued in its second start."""
        twice = self.jobs["requeued, then scancelled"]
        until(lambda: len(twice.attempts()) == 2, 60, lambda: f"the second start of {twice.id}")
        self.site.wait_joined(twice)
        self.lab.run(["scancel", twice.id])

    def forgotten(self, way: str) -> Job:
        """A job once Slurm's controller has forgotten it."""
        job = self.jobs[way]
        over = lambda: self.lab.job(job.id).get("JobState", "") not in ("PENDING", "RUNNING", "COMPLETING")  # noqa: E731
        until(over, 150, lambda: f"{job.id} ({way}) has not ended", pause=0.5)
        if self.lab.job(job.id):
            self.lab.forget_ended()
        return job


@pytest.fixture(scope="module", autouse=True)
def both(lab: Lab, lab_no_accounting: Lab, new_site: MakeSite) -> dict[str, Ends]:
    """The jobs on both labs, at once."""
    made = {
        "accounting": Ends(lab, new_site(lab)),
        "no-accounting": Ends(lab_no_accounting, new_site(lab_no_accounting)),
    }
    for ends in made.values():
        ends.interrupt()
    for ends in made.values():
        ends.interrupt_again()
    return made


@pytest.fixture(params=["accounting", "no-accounting"])
def ends(both: dict[str, Ends], request: pytest.FixtureRequest) -> Ends:
    return both[request.param]


# -- end records -----------------------------------------------------------------------------------------------------


def test_scancel_leaves_an_end_record(ends: Ends) -> None:
    end = ends.site.wait_end(ends.jobs["scancelled"], 30)
    assert (end["signal"], end["status"], end["due"]) == ("TERM", 143, "")


def test_each_start_of_a_job_has_its_own_reason(ends: Ends) -> None:
    job = ends.jobs["requeued, then scancelled"]
    last = ends.site.wait_end(job, 30)
    first = json.loads((job.attempts()[0] / "end.json").read_text())
    assert (first["restart"], first["signal"], first["due"]) == (0, "TERM", "JOB REQUEUE")
    assert (last["restart"], last["signal"], last["due"]) == (1, "TERM", ""), "not what the log says of the first"


# Python runs it at the start of every process of the job: the supervisor gets SIGTERM a second after its ranks
LATE_SIGTERM = """
import signal, sys, threading
set_handler = signal.signal
def set_late_handler(signum, handler):
    late = signum == signal.SIGTERM and callable(handler)
    return set_handler(signum, (lambda *all: threading.Timer(1, handler, all).start()) if late else handler)
if "supervise" in sys.orig_argv:
    signal.signal = set_late_handler
"""


def test_sigterm_that_reaches_the_ranks_first_is_recorded(lab_no_accounting: Lab, new_site: MakeSite) -> None:
    site = new_site(lab_no_accounting)
    folder = site.project / "late"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(LATE_SIGTERM)
    job = site.rank("sleeps.sh", "--env", f"PYTHONPATH={folder}")
    site.wait_joined(job)
    lab_no_accounting.run(["scancel", job.id])
    assert site.wait_end(job, 30)["signal"] == "TERM"
    assert site.wait_state(job, "CANCELLED")["outcome"] == "cancelled"


def test_failed_job_leaves_an_end_record(ends: Ends) -> None:
    end = ends.site.wait_end(ends.jobs["failed"])
    assert (end["signal"], end["status"]) == ("", 7)


def test_first_failure_names_the_rank_and_what_it_did(ends: Ends) -> None:
    job = ends.jobs["failed"]
    ends.site.wait_end(job)
    first = json.loads((job.attempts()[0] / "first_failure.json").read_text())
    assert first["rank"] == 0
    assert first["error"].endswith("fails.sh exited with 7")


def test_requeued_job_runs_again_under_its_id(site: Site, lab: Lab) -> None:
    job = site.rank("sleeps_the_first_time.sh", "--requeue")
    site.wait_joined(job)
    until(lambda: "restart 0" in job.out.read_text(), 60, lambda: "the first words of its script")
    assert lab.run(["scontrol", "requeue", job.id]).returncode == 0
    until(lambda: len(job.attempts()) == 2, 60, lambda: "the second attempt")
    first, second = job.attempts()
    assert (first.name.partition(".")[2], second.name.partition(".")[2]) == ("0.0", "1.0")
    left = json.loads((first / "end.json").read_text())
    assert (left["signal"], left["due"], left["restart"]) == ("TERM", "JOB REQUEUE", 0)
    site.cli("wait", job.id)
    state = site.state(job)
    assert (state["job_id"], state["state"], state["restarts"]) == (job.id, "COMPLETED", 1)
    (owner,) = (job.run_dir / "claims").glob("*/owner")
    assert owner.read_text().split() == [lab.cluster_name, job.id, "1"]
    text = job.out.read_text()
    assert text.index("restart 0") < text.index("restart 1")  # appended: a requeue does not cut its own history


# -- cancel ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(lab: Lab, new_site: MakeSite) -> tuple[Site, list[Job]]:
    """A user with two waiting jobs and one that runs (its setup line does)."""
    site = new_site(lab)
    jobs = [
        site.rank("says_hello.sh", "--job-name", "sweep-1", NEVER),
        site.rank("says_hello.sh", "--job-name", "sweep-2", "--setup", "sleep 600"),
        site.rank("says_hello.sh", "--job-name", "final", NEVER),
    ]
    lab.wait_job(jobs[1].id, "RUNNING")
    return site, jobs


def states(lab: Lab, jobs: list[Job]) -> list[str]:
    return [lab.job(job.id).get("JobState", "") for job in jobs]  # none of one that Slurm has forgotten by now


def test_cancel_touches_what_is_meant_and_no_more(lab: Lab, three: tuple[Site, list[Job]]) -> None:
    site, jobs = three
    shown = [one for one in site.json("cancel", "--all", "--dry-run") if one["run_dir"].startswith(str(site.project))]
    assert [state["job_id"] for state in shown] == [job.id for job in jobs]
    assert states(lab, jobs) == ["PENDING", "RUNNING", "PENDING"], "a dry run touches nothing"

    assert "--yes" in site.cli("cancel", "--all", status=2).stderr
    assert states(lab, jobs) == ["PENDING", "RUNNING", "PENDING"], "nobody there to ask"

    site.cli("cancel", "--name", "sweep-*", "--state", "PENDING", "--yes")
    assert states(lab, jobs) == ["CANCELLED", "RUNNING", "PENDING"], "by name and state"

    site.cli("cancel", "--name", "sweep-*", "--state", "running", "--yes")
    lab.wait_job(jobs[1].id, "CANCELLED")
    assert states(lab, jobs) == ["CANCELLED", "CANCELLED", "PENDING"], "by state"

    site.cli("cancel", "--name", "final", "--yes")  # --all would mean other tests' jobs, too
    assert states(lab, jobs)[2] == "CANCELLED"
    assert site.listed() == []


def test_job_cancelled_in_its_setup_leaves_an_end_record(lab: Lab, site: Site) -> None:
    started = site.project / "started"
    job = site.rank("says_hello.sh", "--setup", f"touch {started}; sleep 600")
    until(started.exists, 60, lambda: "the setup line")
    site.cli("cancel", job.id)
    assert site.wait_end(job, 20)["status"] == 143


# -- surroundings ----------------------------------------------------------------------------------------------------

POLLUTION = {
    "SLURM_JOB_ID": "4242",
    "SLURM_NTASKS": "77",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_RESTART_COUNT": "5",
    "SBATCH_JOB_NAME": "another",
    "SBATCH_OUTPUT": "/nowhere/%j.out",
    "SBATCH_EXPORT": "NONE",
    "SQUEUE_USERS": "nobody",
    "SQUEUE_FORMAT": "%u",
    "SACCT_FORMAT": "user",
    "RANK": "3",
    "WORLD_SIZE": "9",
    "MASTER_ADDR": "198.51.100.7",
}


def environ_of(job: Job) -> dict[str, str]:
    """The environment that environ.sh showed."""
    lines = (line.partition(": ")[2] for line in job.out.read_text().splitlines())
    return {name: value for name, equals, value in (line.partition("=") for line in lines) if equals}


def test_shell_of_another_job_bends_nothing_and_leaks_nothing(site: Site, lab: Lab) -> None:
    job = site.rank("environ.sh", "--job-name", "mine", env={**POLLUTION, "SBATCH_PARTITION": "low", "MY_OWN": "kept"})
    site.cli("wait", job.id, env=POLLUTION)
    state = site.state(job, env=POLLUTION)
    assert (state["name"], state["state"], state["logs"]) == ("mine", "COMPLETED", [str(job.out), str(job.err)])
    assert state["partition"] == "low", "what a user has in SBATCH_PARTITION is a setting"
    found = environ_of(job)
    assert (found["MY_OWN"], found["SLURM_JOB_ID"], found["RANK"], found["WORLD_SIZE"]) == ("kept", job.id, "0", "1")
    leaked = {name: value for name, value in POLLUTION.items() if found.get(name) == value}
    assert leaked == {}
    assert not [name for name in found if name.startswith(("SBATCH_", "SQUEUE_", "SACCT_"))]


def test_partition_of_the_environment_is_the_lowest_level(site: Site) -> None:
    environ = {"SBATCH_PARTITION": "low"}
    words = ("render", *site.scheduler, "--explain")
    asked = ("--partition", "gpu", *ONE_RANK, "--", str(SCRIPTS / "says_hello.sh"))
    below = site.cli(*words, *asked[2:], env=environ)
    assert '#SBATCH --partition="low"\n' in below.stdout and "partition = 'low'  (SBATCH_PARTITION)" in below.stderr
    above = site.cli(*words, *asked, env=environ)
    assert '#SBATCH --partition="gpu"\n' in above.stdout and '"low"' not in above.stdout


def test_submit_works_from_inside_a_job(site: Site, lab: Lab) -> None:
    words = [*CLUSTERRUN, "submit", "--json", *site.scheduler, *ONE_RANK, "--", str(SCRIPTS / "environ.sh")]
    answer = site.project / "answer.json"
    outer = lab.run(
        ["sbatch", "--parsable", "--job-name=outer", "--ntasks=3", f"--output={answer}", f"--error={answer}.err",
         f"--chdir={site.project}", "--wrap", " ".join(words)], env=site.env,
    ).stdout.strip()  # fmt: skip
    lab.wait_job(outer, "COMPLETED", timeout=HUNG)
    data: dict[str, Any] = json.loads(answer.read_text())["data"]
    site.cli("wait", data["job_id"])
    out, err = map(Path, data["logs"])
    found = environ_of(Job(data["job_id"], Path(data["run_dir"]), out, err))
    assert (found["SLURM_JOB_ID"], found["SLURM_NTASKS"]) == (data["job_id"], "1")
    assert outer not in (found["SLURM_JOB_ID"], found["SLURM_JOBID"])
    assert "outer" not in (found["SLURM_JOB_NAME"], found.get("SBATCH_JOB_NAME"))


# -- after Slurm has forgotten them: keep these last -----------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_state_outlives_slurms_memory(ends: Ends, way: str) -> None:
    job = ends.forgotten(way)
    state = ends.site.state(job)
    expected = WAYS[way]
    assert (state["state"], state["outcome"], state["exit_status"]) == expected[:3]
    assert state["source"] == "record"
    *_, where = re.findall(r" ranks? on (\S+),", job.err.read_text())  # a requeued job may start on another node
    assert state["nodes"] == where and where in ends.lab.node_names
    assert state["elapsed"] is not None and state["elapsed"] >= (50 if way == "timed out" else 0)
    ends.site.cli("wait", job.id, status=expected[3])
    ends.site.cli("logs", job.id, "-f", status=expected[3])


def test_time_limit_leaves_an_end_record_that_says_so(ends: Ends) -> None:
    end = ends.site.wait_end(ends.jobs["timed out"], 150)
    assert (end["signal"], end["status"]) == ("TERM", 143)
    assert "TimeLimit" in end["reason"] or end["due"] == "TIME LIMIT"


def test_why_names_the_time_limit(ends: Ends) -> None:
    job = ends.forgotten("timed out")
    (told,) = ends.site.json("why", job.id)
    assert (told["kind"], told["ended"]["kind"]) == ("ended", "time-limit"), told
    assert "DUE TO TIME LIMIT" in told["ended"]["evidence"][0]["text"]


def test_record_agrees_with_accounting(both: dict[str, Ends]) -> None:
    ends = both["accounting"]
    for way in WAYS:
        ends.forgotten(way)
    ids = ",".join(job.id for job in ends.jobs.values())
    rows = ends.lab.run(["sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", ids]).stdout.split("\n")
    told = {row.partition("|")[0]: row.partition("|")[2].split(" ")[0] for row in rows if row}
    assert told == {job.id: WAYS[way][0] for way, job in ends.jobs.items()}


def test_forgotten_job_is_found_from_another_folder(ends: Ends) -> None:
    job = ends.forgotten("completed")
    assert ends.site.state(job, cwd=ends.site.home)["state"] == "COMPLETED"


def test_forgotten_job_is_found_without_the_index(ends: Ends) -> None:
    job = ends.forgotten("failed")
    index = Path(ends.site.env["CLUSTERRUN_STATE"], "index")
    index.unlink(missing_ok=True)
    assert ends.site.state(job)["state"] == "FAILED"


def test_forgotten_job_is_found_without_index_or_jobs_folder_and_the_index_is_mended(ends: Ends) -> None:
    job = ends.forgotten("completed")
    Path(ends.site.env["CLUSTERRUN_STATE"], "index").unlink(missing_ok=True)
    for path in (ends.site.project / ".clusterrun" / "jobs").rglob(job.id):
        os.unlink(path)
    assert ends.site.state(job)["state"] == "COMPLETED"
    assert ends.site.state(job, cwd=ends.site.home)["state"] == "COMPLETED"
