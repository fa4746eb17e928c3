"""Several users in one project: each has a job of its own there, and the group can look at a shared one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.people import ONE_RANK, Person, Town, until
from tests.security.test_planted_files import common, group_folder

WAITS_FOR = "#!/bin/bash\necho rank at work\nuntil [ -e {flag} ]; do sleep 0.1; done\necho rank at its end\n"


def of_a(town: Town) -> Path:
    """A folder of a's that others can only read."""
    return town.a.project


def of_a_with_a_profile(town: Town) -> Path:
    town.a.write(town.a.project / "clusterrun.toml", "time = '0:10:00'\n")
    return town.a.project


def of_the_group(town: Town) -> Path:
    return group_folder(town, town.folder / "group")


def of_the_group_with_a_profile(town: Town) -> Path:
    project = group_folder(town, town.folder / "group")
    town.a.sh(f"echo 'time = \"0:10:00\"' > {project}/clusterrun.toml", umask=0o002)
    return project


def of_the_group_below_a_profile(town: Town) -> Path:
    (of_the_group_with_a_profile(town) / "below").mkdir()
    os.chown(town.folder / "group" / "below", town.a.user.uid, common(town))
    (town.folder / "group" / "below").chmod(0o2775)
    return town.folder / "group" / "below"


@pytest.mark.parametrize(
    "project", [of_a, of_a_with_a_profile, of_the_group, of_the_group_with_a_profile, of_the_group_below_a_profile]
)
def test_three_users_work_in_one_project(town: Town, project: Callable[[Town], Path]) -> None:
    where = project(town)
    people = (town.a, town.b, town.c)
    jobs: dict[str, str] = {}
    for person in people:
        script = person.write(person.home / "work.sh", WAITS_FOR.format(flag=person.home / "flag"), 0o755)
        said = person.type("submit", "--json", *ONE_RANK, "--", str(script), cwd=where, umask=0o002, status=0)
        jobs[person.name] = said.data["job_id"]
        told = [line for line in said.err.splitlines() if ".local/state/clusterrun/projects/" in line]
        private = person is town.a and where == town.a.project
        assert len(told) == (0 if private else 1), f"where the records are, in a line: {said}"
    for person in people:
        job = jobs[person.name]
        until(lambda p=person, j=job: "rank at work" in p.type("logs", j, cwd=where).out, 60, f"the log of {job}", 0.5)
        assert person.state_of(job, cwd=where)["run_id"], "a run of its own"
        rows = person.type("list", "--json", cwd=where, status=0).data
        assert [row["job_id"] for row in rows if row["user"] == person.name] == [job] and len(rows) == 1
        person.type("why", job, cwd=where, status=0)
        others = [other for name, other in jobs.items() if name != person.name]
        for other in others:
            person.type("status", other, cwd=where, status=0)
            person.type("cancel", other, cwd=where, status=4)
    (town.b.home / "flag").touch()
    town.b.type("wait", jobs[town.b.name], cwd=where, status=0)
    assert "rank at its end" in town.b.type("logs", jobs[town.b.name], cwd=where, status=0).out
    for person in (town.a, town.c):
        person.type("cancel", jobs[person.name], cwd=where, status=0)
        until(lambda p=person: p.state_of(jobs[p.name], cwd=where)["state"] == "CANCELLED", 30, "the cancel", 0.5)
        assert person.type("list", "--json", cwd=where, status=0).data == []


@pytest.mark.parametrize("umask", [0o022, 0o077], ids=["022", "077"])
@pytest.mark.parametrize("first", ["a shared run", "a private run before it"])
def test_a_shared_run_is_seen_by_the_group_while_it_runs_and_afterwards(town: Town, umask: int, first: str) -> None:
    os.chown(town.a.project, town.a.user.uid, common(town))
    town.a.project.chmod(0o2755)
    flag = town.a.home / "flag"
    script = town.a.write(town.a.home / "work.sh", WAITS_FOR.format(flag=flag), 0o755)
    if first == "a private run before it":
        town.a.submit("--sbatch-arg=--begin=now+1hour", "--", str(town.a.home / "hello.sh"), umask=umask)
    said = town.a.type("submit", "--json", *ONE_RANK, "--shared", "--", str(script), umask=umask, status=(0, 2))
    if said.status == 2:
        assert "chmod" in said.err, f"says why it cannot be shared, and what to type: {said}"
        return
    job = said.data["job_id"]
    until(lambda: "rank at work" in town.a.type("logs", job).out, 60, "the job's work", 0.5)
    seen = town.b.state_of(job)
    assert (seen["state"], seen["user"]) == ("RUNNING", town.a.name)
    assert "rank at work" in town.b.type("logs", job, status=0).out
    assert "LOST" not in town.b.type("why", job, status=0).out.upper()
    town.b.type("cancel", job, status=4)
    flag.touch()
    until(lambda: town.a.state_of(job)["state"] == "COMPLETED", 30, "the end", 0.5)
    look_again(town, town.b, job)
    until(lambda: not town.lab.job(job), 60, "that Slurm forgets the job", 1)
    assert town.b.type("status", job, status=0).out.count("COMPLETED") == 1
    assert "LOST" not in town.b.type("why", job, status=0).out.upper()


def look_again(town: Town, person: Person, job: str) -> None:
    assert person.state_of(job)["state"] == "COMPLETED"
    assert "rank at its end" in person.type("logs", job, status=0).out
    person.type("why", job, status=0)


def test_a_private_run_of_another_user_is_told_as_slurm_has_it(town: Town) -> None:
    flag = town.a.home / "flag"
    script = town.a.write(town.a.home / "work.sh", WAITS_FOR.format(flag=flag), 0o755)
    job = town.a.submit("--", str(script), umask=0o077)["job_id"]
    until(lambda: town.lab.job(job).get("JobState") == "RUNNING", 60, "the start")
    assert town.b.state_of(job)["state"] == "RUNNING"
    refused = town.b.type("logs", job, status=2)
    assert "belongs to crlab-a" in refused.err
    town.b.type("why", job, status=0)
    town.b.type("cancel", job, status=4)
