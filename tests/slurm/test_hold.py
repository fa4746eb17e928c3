"""A failed job keeps its nodes for its user, until it is cancelled or its file is removed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, Job, Site, read_json, until

WAIT = 180


def held(job: Job) -> tuple[Path, dict[str, Any]]:
    """The file of a job that holds its nodes, and what is in it."""

    def found() -> tuple[Path, dict[str, Any]] | None:
        file = job.attempts()[-1] / "hold.json" if job.attempts() else None
        document = read_json(file) if file else None
        return (file, document) if file and document else None

    file, document = until(found, WAIT, job.err.read_text)
    return file, document


def test_the_nodes_of_a_failed_job_are_held_until_it_is_cancelled(site: Site, lab: Lab) -> None:
    one, other = (site.rank("fails.sh", "--requeue", "--on-failure", "hold=10m") for _ in range(2))
    _, document = held(one)
    assert site.wait_end(one)["status"] == 7, "the end is recorded before"
    fields = lab.wait_job(one.id, "RUNNING")
    assert fields["Requeue"] == "0"
    assert document["shell"] in site.cli("status", one.id).stdout and document["shell"] in one.err.read_text()
    why = site.cli("why", one.id).stdout
    assert "exit status 7" in why or "exited with 7" in why, why
    shell = lab.run([*document["shell"].replace("--pty bash", "printenv SLURMD_NODENAME").split()], timeout=WAIT)
    assert shell.stdout.strip() == fields["NodeList"], shell.stderr
    site.cli("cancel", one.id)
    state = site.wait_state(one, "FAILED", "CANCELLED", timeout=WAIT)
    assert (state["state"], state["outcome"], state["exit_status"]) == ("FAILED", "failed", 7)
    file, _ = held(other)
    file.unlink()
    assert lab.wait_job(other.id, "FAILED", timeout=WAIT)["ExitCode"].startswith("7:")


def held_with_a_spare_node(site: Site, lab: Lab) -> tuple[Job, dict[str, str], dict[str, Any]]:
    spared = ("--spare-nodes", "1", "--max-restarts", "1", "--no-requeue")
    never_again = ("--", "bash", "-c", "exit 93")
    job = site.submit(*ONE_RANK, *spared, "--on-failure", "hold=1m", "--time", "30:00", *never_again)
    _, document = held(job)
    fields = until(
        lambda: (found := lab.wait_job(job.id, "RUNNING"))["TimeLimit"] != "00:30:00" and found, WAIT, job.err.read_text
    )
    return job, fields, document


def test_the_time_limit_of_a_job_with_spare_nodes_is_that_of_its_hold(site: Site, lab: Lab) -> None:
    job, fields, document = held_with_a_spare_node(site, lab)
    end = time.mktime(time.strptime(fields["EndTime"], "%Y-%m-%dT%H:%M:%S"))
    assert 50 <= end - document["until"] <= 70
    site.cli("cancel", job.id)
    lab.wait_job(job.id, "FAILED", "CANCELLED", timeout=WAIT)


@pytest.mark.faults
def test_a_hold_whose_first_node_is_lost_leaves_no_allocation(site: Site, lab: Lab) -> None:
    job, fields, _ = held_with_a_spare_node(site, lab)
    lab.cut_link(fields["BatchHost"])
    try:
        assert lab.wait_job(job.id, "TIMEOUT", timeout=300)["NodeList"] != fields["NodeList"], "the first node was lost"
    finally:
        lab.reset()
