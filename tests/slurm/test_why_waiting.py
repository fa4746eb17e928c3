"""`why` on a real cluster: jobs that wait for each common reason, all at once, each with its evidence and command."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, Site, until
from tests.support.pending_jobs import REASONS, SETTINGS, sbatch, set_up, squeue, submit_all
from tests.support.submit_tools import NEVER

Explained = dict[str, Any]
#: The jobs whose first advice is a command that lets them go on.
MENDED = ("too long", "too wide", "long", "held", "drained", "never")


@pytest.fixture(scope="module")
def strict_lab() -> Iterator[Lab]:
    """Three nodes, a partition with limits, a QOS and an account with limits that are enforced."""
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    with Lab(name=f"t{os.getpid()}y", nodes=3, settings=SETTINGS) as lab:
        set_up(lab)
        yield lab


@pytest.fixture(scope="module")
def jobs(strict_lab: Lab) -> dict[str, str]:
    return submit_all(strict_lab)


@pytest.fixture(scope="module")
def site(strict_lab: Lab, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(strict_lab)


@pytest.fixture
def why(site: Site, jobs: dict[str, str]) -> Callable[[str], Explained]:
    """What `why --json` says of one of the jobs."""

    def ask(name: str) -> Explained:
        found = site.json("why", jobs[name])
        one = next(job for job in found if job["state"] == "PENDING")
        assert one["kind"] == "waiting" and one["waiting"]["reason"] == one["reason"]
        assert one["waiting"]["word"] == REASONS[name]
        assert one["waiting"]["not_seen"] == []
        return dict(one["waiting"])

    return ask


def test_resources(why: Callable[[str], Explained], jobs: dict[str, str], strict_lab: Lab) -> None:
    found = why("resources")
    assert found["here"][0].startswith("the job requests 2 nodes, 8 GPUs, 2 CPUs")
    assert "of 48 CPUs, 2 of 12 GPUs" in found["here"][0]
    assert found["here"][1] == "0 of 3 nodes have room for the job now; the job needs 2"
    assert any(f"{strict_lab.node_names[2]} is drained: bad fan, by root" in line for line in found["here"])
    assert any(jobs["filler"] in line and "first to end" in line for line in found["here"])
    assert "in use: 6 GPUs by this job's user" in found["here"]
    assert found["starts"] == "alone" and found["ahead"]["jobs"] == []


def test_priority_and_the_job_ahead(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("priority")
    assert found["ahead"]["jobs"] == [jobs["resources"]] and found["starts"] == "alone"
    assert found["here"][0] == "the job's priority is 500: partition 500"
    assert found["here"][1] == f"job {jobs['resources']}, the first in line, has priority 500: partition 500"
    assert "clusterrun free" in found["do"][0]


def test_an_estimated_start(why: Callable[[str], Explained], strict_lab: Lab, jobs: dict[str, str]) -> None:
    def slurms() -> str:
        text = strict_lab.run(["squeue", "--start", "-h", "-j", jobs["resources"], "-o", "%S"],
                              env={"SLURM_TIME_FORMAT": "%s"}).stdout.strip()  # fmt: skip
        return text if text.isdigit() else ""

    until(slurms, 30, lambda: squeue(strict_lab), pause=0.3)
    found = why("resources")
    assert found["estimated_start"] is not None and abs(found["estimated_start"] - int(slurms())) <= 120


def test_a_dependency_and_its_job(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("dependency")
    line = f"afterok:{jobs['filler']} waits for job {jobs['filler']} to succeed; that job is RUNNING, for at most "
    assert found["here"][0].startswith(line)
    assert f"scontrol update JobId={jobs['dependency']} Dependency=" in found["do"][0]


def test_a_dependency_that_can_never_be_met(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("never")
    assert found["here"][0].endswith("; that job is FAILED, so this condition can never be met")
    assert found["do"] == [f"scontrol update JobId={jobs['never']} Dependency=", f"clusterrun cancel {jobs['never']}"]
    assert found["starts"] == "never"


def test_a_time_limit_beyond_the_partitions(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("too long")
    assert found["here"][0] == "partition tiny allows at most 30:00; this job requests 1:00:00"
    assert found["do"] == [
        f"scontrol update JobId={jobs['too long']} {new}" for new in ("TimeLimit=30:00", "Partition=gpu")
    ]


def test_more_nodes_than_the_partition_takes(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("too wide")
    assert found["here"][0] == "partition tiny allows at most 1 node per job; this job requests 2"
    assert found["do"][0] == f"scontrol update JobId={jobs['too wide']} NumNodes=1-1"


def test_a_users_limit_in_a_qos(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("qos")
    assert found["here"][0] == "QOS tight allows 2 gres/gpu per user (MaxTRESPerUser); 2 gres/gpu in use"
    assert found["here"][1] == "this job requests 2 gres/gpu"
    assert found["here"][2].startswith(f"counted toward this limit: job {jobs['holder']} (2 gres/gpu, ends within ")
    update = f"scontrol update JobId={jobs['qos']}"
    wait = "wait for the jobs that count toward this limit to end, or use another QOS:"
    assert found["do"] == [wait, f"{update} QOS=normal"]
    assert found["here"][3] == "ruled out: QOS short, which allows only 10:00 (MaxWall)"


def test_an_accounts_limit(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("account")
    assert found["here"][0] == "account chem allows 2 cpu (GrpTRES); 2 cpu in use"
    assert found["here"][2].startswith(f"counted toward this limit: job {jobs['chemist']} (2 cpu, ends within ")
    assert f"scontrol update JobId={jobs['account']} Account=physics" in found["do"]


def test_a_qos_that_limits_the_time(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("long")
    assert found["here"][:2] == [
        "QOS short allows 10:00 per job (MaxWallDurationPerJob)", "this job requests 15:00"
    ]  # fmt: skip
    assert found["do"][0] == f"scontrol update JobId={jobs['long']} TimeLimit=10:00"


def test_a_drained_node(why: Callable[[str], Explained], jobs: dict[str, str], strict_lab: Lab) -> None:
    found, node = why("drained"), strict_lab.node_names[2]
    assert found["reason"].startswith("ReqNodeNotAvail, ")  # 24.11 adds that another job may have reserved it
    assert found["here"][0] == f"the job requests {node}, which is out of service"
    assert any(line.startswith(f"{node} is drained: bad fan, by root, ") for line in found["here"])
    assert found["do"] == [f"scontrol update JobId={jobs['drained']} ReqNodeList="]


def test_holds(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    assert why("held")["do"] == [f"scontrol release {jobs['held']}"]
    assert why("stopped")["do"] == ["ask the administrators to release the job"]


def test_a_begin_time(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    found = why("later")
    assert found["here"][0].startswith("the job's earliest start time is ")
    assert found["do"] == [f"scontrol update JobId={jobs['later']} StartTime=now"]


def test_an_arrays_throttle(why: Callable[[str], Explained], jobs: dict[str, str], site: Site) -> None:
    array = jobs["array"]
    found = why("array")
    assert found["here"] == [f"array {array} may run 1 task at a time (%1); 1 running: {array}_0"]
    assert found["do"][0].startswith(f"scontrol update JobId={array} ArrayTaskThrottle=2")
    (task,) = site.json("why", f"{array}_3")
    assert (task["job_id"], task["waiting"]["word"]) == (f"{array}_3", "JobArrayTaskLimit")
    (running,) = site.json("why", f"{array}_0")
    assert running["kind"] == "running" and running["running"]["lines"][0].startswith("RUNNING since ")


def test_a_reservation_that_has_not_begun(why: Callable[[str], Explained], strict_lab: Lab) -> None:
    found = why("reserved")
    assert found["here"][0].startswith("reservation later (SPEC_NODES) begins at ")
    assert found["here"][0].endswith(f"1 node: {strict_lab.node_names[1]}, for user root")


def test_licenses(why: Callable[[str], Explained], jobs: dict[str, str]) -> None:
    assert why("licensed")["here"] == [f"the job requests 1 matlab license; 2 of 2 in use, by job {jobs['licensee']}"]


def test_people_read_the_same(site: Site, jobs: dict[str, str]) -> None:
    text = site.cli("why", jobs["qos"]).stdout
    names = [line[:9].strip() for line in text.splitlines() if line[:9].strip()]
    assert names == ["job", "state", "reason", "means", "here", "do", "start"]
    assert "reason  QOSMaxGRESPerUser" in text and "this job would use more GPUs" in text


@pytest.mark.usefixtures("jobs")  # they fill the cluster
def test_a_job_that_would_delay_the_next_in_line_is_told_how_long_it_may_take(site: Site, strict_lab: Lab) -> None:
    job = sbatch(strict_lab, "--gpus-per-node=1", "--time=60")

    def advice() -> str:
        (found,) = site.json("why", job)
        return next((line for line in found["waiting"]["do"] if "TimeLimit=" in line), "")

    command = until(advice, 60, lambda: squeue(strict_lab), pause=1)
    assert strict_lab.run(command.partition("#")[0].split()).returncode == 0, command
    strict_lab.wait_job(job, "RUNNING")
    strict_lab.run(["scancel", job])


def test_what_is_advised_works(site: Site, strict_lab: Lab, jobs: dict[str, str]) -> None:
    """The last test of these jobs: the commands are typed as they were told."""
    for name in MENDED:
        (found,) = site.json("why", jobs[name])
        done = strict_lab.run(found["waiting"]["do"][0].split())
        assert done.returncode == 0, (name, done.stderr)

    def changed() -> bool:
        rows = (line.split("|") for line in squeue(strict_lab).splitlines()[1:])
        said = {id: reason.split(",")[0] for id, _, reason in rows}
        return all(said.get(jobs[name]) != REASONS[name] for name in MENDED)

    until(changed, 30, lambda: squeue(strict_lab), pause=0.3)


def test_a_run_of_ours_few_questions_and_no_such_job(site: Site, strict_lab: Lab, jobs: dict[str, str]) -> None:
    job = site.submit(*ONE_RANK, "--account", "physics", NEVER, "--", "true")
    (found,) = site.json("why", job.id)
    assert found["run_id"] and "." not in found["name"] and found["waiting"]["word"] == "BeginTime"
    assert site.cli("why", "999999", status=4).stderr.startswith("clusterrun: no such job: 999999")
    assert f"job  {job.id}" in site.cli("why").stdout


@pytest.fixture
def other(site: Site, tmp_path: Path) -> dict[str, str]:
    """The environment in which Slurm's commands ask as another user, to whom this cluster shows little."""
    for name in ("squeue", "scontrol", "sacct"):
        real = shutil.which(name, path=site.env["PATH"])
        wrapper = tmp_path / name
        wrapper.write_text(f'#!/bin/sh\nexec setpriv --reuid=daemon --regid=daemon --clear-groups {real} "$@"\n')
        wrapper.chmod(0o755)
    return {"PATH": f"{tmp_path}:{site.env['PATH']}"}


def test_another_user_is_told_what_may_be_seen(site: Site, jobs: dict[str, str], other: dict[str, str]) -> None:
    (found,) = site.json("why", jobs["priority"], env=other)
    assert found["waiting"]["word"] == "Priority"
    assert found["waiting"]["ahead"]["jobs"] == [], "the jobs of others are private here"
    text = site.cli("why", jobs["priority"], env=other).stdout
    assert "0 visible jobs in partition gpu" in text
    assert "no job visible to you is running in partition gpu" in text
    hidden = site.cli("why", jobs["stopped"], env=other).stdout
    assert "means  The job's state comes from accounting (sacct)" in hidden
    assert "the job's request (scontrol: slurm_load_jobs error: Invalid job id specified)" in hidden
    assert "only accounting shows the job" in hidden


def test_a_limit_of_another_users_own(site: Site, jobs: dict[str, str], other: dict[str, str]) -> None:
    (found,) = site.json("why", jobs["other's"], env=other)
    assert found["waiting"]["word"] == "QOSMaxWallDurationPerJobLimit"
    assert found["waiting"]["here"][0] == "QOS short allows 10:00 per job (MaxWallDurationPerJob)"
