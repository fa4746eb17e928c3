"""A run continues after its time limit and after preemption: links of one run, the same weights as without them.

`make faults` repeats them, with real time limits; here an administrator moves the end of the job.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.faults_table import Figure
from tests.support.installed_command import Job, Site, until
from tests.support.lm_runs import LIMIT, ONE, SHAPE, STEPS, final_weights, lm, slow, wait_saved, weights
from tests.support.patience import HUNG

TIMES = 5  # of a preemption, by partition
RUNS = 3  # with real time limits, at once
LAUNCHED = Path(__file__).parents[1] / "data" / "launched"
PARTITIONS = {"low": "REQUEUE", "lowc": "CANCEL"}


@pytest.fixture(scope="module")
def site(lab: Lab, new_site: Callable[[Lab | None], Site]) -> Iterator[Site]:
    """A user of a lab that also has a partition whose jobs preemption cancels; both leave time to save under load."""
    made = lab.run(["scontrol", "create", "PartitionName=lowc", "Nodes=ALL", "PriorityTier=1", "PreemptMode=CANCEL",
                    "GraceTime=20", "MaxTime=INFINITE", "DefaultTime=60", "State=UP"])  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert lab.run(["scontrol", "update", "PartitionName=low", "GraceTime=20"]).returncode == 0
    yield new_site(lab)
    lab.run(["scontrol", "update", "PartitionName=low", "GraceTime=5"])
    lab.run(["scancel", "--partition=lowc"])
    until(lambda: not lab.run(["squeue", "-h", "-p", "lowc"]).stdout, 60, lambda: "jobs of lowc")
    lab.run(["scontrol", "delete", "PartitionName=lowc"])


def links(job: Job) -> list[Path]:
    return [folder for folder in job.attempts() if (folder / "log-start").exists()]


def resumed_at(job: Job) -> list[int]:
    """The steps that the starts after the first one continued from."""
    return [int(line.rpartition("(step ")[2].rstrip(")\n")) for line in job.out.read_text().splitlines()
            if "resumed from" in line]  # fmt: skip


def stopped_at(folder: Path) -> int:
    return int(json.loads((folder / "stopped").read_text())["step"])


def time_is_up(site: Site, job: Job) -> None:
    lab = site.lab
    assert lab is not None
    # refused if the controller reads it a second later than scontrol has meant "now"
    until(lambda: lab.run(["scontrol", "update", f"JobId={job.id}", "EndTime=now"]).returncode == 0, 30)


def done(site: Site, job: Job, timeout: float = LIMIT) -> None:
    state = site.wait_state(job, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "PREEMPTED", timeout=timeout)
    assert state["state"] == "COMPLETED", job.err.read_text()[-3000:]


# -- the time limit ----------------------------------------------------------------------------------------------------


def test_a_run_continues_after_its_time_limit(site: Site) -> None:
    job = site.rank("sleeps_the_first_time.sh", "--total-time", "1h", "--time", "60")
    site.wait_joined(job)
    time_is_up(site, job)
    done(site, job)
    first, _ = links(job)
    assert "the job was requeued (the time limit); helper job " in job.err.read_text()
    assert json.loads((first / "requeue.json").read_text())["why"] == "the time limit"


def test_words_in_a_comment_and_a_name_are_no_facts_of_the_job(site: Site) -> None:
    words = "JobState=CANCELLED Restarts=3 Reason=None\n   JobState=CANCELLED Restarts=3"
    job = site.rank(
        "sleeps_the_first_time.sh", "--total-time", "1h", "--time", "60", "--comment", words.split("\n", maxsplit=1)[0]
    )
    site.wait_joined(job)
    assert site.lab is not None
    changed = [f"JobName=x {words}", f"Comment={words}"]
    assert site.lab.run(["scontrol", "update", f"JobId={job.id}", *changed]).returncode == 0
    time_is_up(site, job)
    done(site, job)
    assert "the job was requeued (the time limit); helper job " in job.err.read_text()


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_task_stops_by_the_limit_that_was_raised_or_put_off_by_a_suspension(site: Site) -> None:
    lab = site.lab
    assert lab is not None
    raised, suspended = (lm(site, 200_000, "--nodes", "1", "--time", "2", save_every=1000) for _ in range(2))
    for job in (raised, suspended):
        site.wait_joined(job)
    ends = time.time() + 120  # of the first limit, at the latest
    assert lab.run(["scontrol", "update", f"JobId={raised.id}", "TimeLimit=20"]).returncode == 0
    assert lab.run(["scontrol", "suspend", suspended.id]).returncode == 0
    time.sleep(60)
    assert lab.run(["scontrol", "resume", suspended.id]).returncode == 0
    until(lambda: time.time() > ends, 180)
    assert site.state(raised)["state"] == "RUNNING"
    until(lambda: list(suspended.attempts()[0].glob("stopped")), 180)
    assert json.loads((suspended.attempts()[0] / "stopped").read_text())["time"] > ends - 15
    site.cli("cancel", raised.id)


def check_links(site: Site, minutes: int, jobs: int, figure: Figure) -> None:
    """Train for three time limits of so many minutes, several jobs at once: each ends done, with the same weights."""
    short = lm(site, 400, save_every=400)
    done(site, short)
    # the fastest steps: once a load of the machine ends, the next run is faster than most of this one
    steps = round(3 * 60 * minutes / fastest_step(short), -2)
    expected = final_weights(site, lm(site, steps, save_every=100), timeout=900 * minutes)
    for job in [lm(site, steps, "--time", str(minutes), "--total-time", "2h", save_every=100) for _ in range(jobs)]:
        done(site, job, timeout=1200 * minutes)
        assert len(links(job)) >= 3 and weights(job) == expected
        steps_of = resumed_at(job)
        assert all(before <= after for before, after in pairwise(steps_of))
        figure(6, f"lm, limit {minutes} min: {len(links(job))} links, continued from steps {steps_of}, the same sha256")


def fastest_step(job: Job) -> float:
    """Seconds of a step in the fastest quarter of a run."""
    lines = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["step"] > 0]
    ends = zip(lines, lines[len(lines) // 4 :], strict=False)
    return min((last["trained_s"] - first["trained_s"]) / (last["step"] - first["step"]) for first, last in ends)


@pytest.mark.faults
@pytest.mark.versions
@pytest.mark.timeout(1800)
def test_a_training_of_three_time_limits_ends_done(site: Site, figure: Figure) -> None:
    check_links(site, 1, 1, figure)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_trainings_of_three_time_limits_end_done(site: Site, figure: Figure) -> None:
    check_links(site, 2, RUNS, figure)


#: Scripts that resume from their own checkpoints, the signal that they know, and what is to be installed.
CHAINED = {
    "chained_torch.py": ("TERM@10", ()),
    "chained_trainer.py": ("TERM@30", ("--nodes", "1")),
    "chained_lightning.py": ("TERM@30", ("--nodes", "1")),
}


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("script", CHAINED)
def test_scripts_continue_after_their_time_limit(site: Site, script: str, figure: Figure) -> None:
    if script == "chained_lightning.py":
        pytest.importorskip("lightning", reason="lightning is not a dependency")
    signal, shape = CHAINED[script]
    jobs = []
    for number in range(RUNS):
        where = site.project / f"{script}-{number}"
        where.mkdir()
        jobs.append(site.submit(*SHAPE, *shape, "--time", "2", "--total-time", "2h", "--signal", signal, "--",
                                str(LAUNCHED / script), str(where), "180"))  # fmt: skip
    for job in jobs:
        done(site, job, timeout=1800)
        assert len(links(job)) >= 3, job.err.read_text()
        figure(6, f"{script}: {len(links(job))} links")


# -- preemption --------------------------------------------------------------------------------------------------------


def preempt(site: Site) -> str:
    """Submit a job that takes all nodes for a moment; return its id."""
    assert site.lab is not None
    return site.lab.run(["sbatch", "--parsable", "--partition=gpu", "--nodes=4", "--exclusive", "--output=/dev/null",
                         "--wrap", "sleep 2"]).stdout.strip()  # fmt: skip


def check_preemption(site: Site, partition: str, undisturbed: str) -> None:
    ranks = () if partition == "low" else ONE  # that two ranks save one step is shown once
    job = lm(site, STEPS, "--partition", partition, *ranks, *slow())
    wait_saved(job, 10)
    assert site.lab is not None
    site.lab.wait_job(preempt(site), "RUNNING", "COMPLETED", timeout=HUNG)
    done(site, job)
    assert len(links(job)) == 2 and weights(job) == undisturbed
    assert resumed_at(job) == [stopped_at(links(job)[0])], "no step was lost: the ranks saved within the grace time"


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_preempted_run_continues_when_resources_return(site: Site, partition: str, undisturbed: str) -> None:
    check_preemption(site, partition, undisturbed)


def test_a_job_that_is_cancelled_while_it_saves_for_a_preemption_stays_cancelled(site: Site) -> None:
    lab = site.lab
    assert lab is not None
    job = site.rank("saves_slowly.sh", "--partition", "low", "--requeue")
    until(lambda: job.out.exists() and "awake" in job.out.read_text(), LIMIT)
    other = preempt(site)
    until(lambda: "saving" in job.out.read_text(), LIMIT)
    site.cli("cancel", job.id)
    lab.wait_job(other, "RUNNING", "COMPLETED", timeout=HUNG)
    fields = lab.wait_job(job.id, "CANCELLED", timeout=HUNG)
    assert fields["Restarts"] == "0" and len(job.attempts()) == 1
    assert "the job was requeued" not in job.err.read_text(), job.err.read_text()


def test_a_job_that_outlasts_the_grace_time_goes_back_into_the_queue_where_preemption_cancels(site: Site) -> None:
    job = site.rank("ignores_term.sh", "--partition", "lowc", "--requeue")
    until(lambda: job.out.exists() and "awake" in job.out.read_text(), LIMIT)
    preempt(site)
    assert site.lab is not None
    until(lambda: site.lab is not None and site.lab.job(job.id)["Restarts"] == "1", LIMIT)
    until(lambda: "the job was requeued (preempted)" in job.err.read_text(), LIMIT)  # said after Slurm has done it
    site.cli("cancel", job.id)


def test_a_job_that_a_plain_scancel_ends_in_the_grace_time_of_a_preemption_stays_cancelled(site: Site) -> None:
    lab = site.lab
    assert lab is not None
    job = site.rank("ignores_term.sh", "--partition", "lowc", "--requeue")
    until(lambda: job.out.exists() and "awake" in job.out.read_text(), LIMIT)
    other = preempt(site)

    def grace_began_before_this_second() -> bool:
        at = lab.job(job.id).get("PreemptTime", "None")
        return at != "None" and at < time.strftime("%Y-%m-%dT%H:%M:%S")

    until(grace_began_before_this_second, LIMIT)
    lab.run(["scancel", str(job.id)])
    lab.wait_job(other, "RUNNING", "COMPLETED", timeout=HUNG)
    fields = lab.wait_job(job.id, "CANCELLED", timeout=HUNG)
    assert fields["Restarts"] == "0" and len(job.attempts()) == 1
    assert "the job was requeued" not in job.err.read_text(), job.err.read_text()


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("partition", PARTITIONS)
def test_preemption_again_and_again(site: Site, partition: str, undisturbed: str, figure: Figure) -> None:
    for _ in range(TIMES):
        check_preemption(site, partition, undisturbed)
    figure(5, f"{PARTITIONS[partition]}: {TIMES} of {TIMES} continued from the step at which they stopped")
