"""Several users in one project: each has a job of its own there, and the group can look at a shared one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from tests.security.crafting import Crafted
from tests.security.people import ONE_RANK, WAITS, Person, Town
from tests.security.test_planted_files import common, group_folder
from tests.support.cases import case
from tests.support.patience import until

WAITS_FOR = "#!/bin/bash\necho rank at work\nuntil [ -e {flag} ]; do sleep 0.1; done\necho rank at its end\n"


def folders(town: Town) -> dict[str, Path]:
    """Projects that all three work in."""
    profile = "time = '0:10:00'\n"
    town.a.write(town.a.home / "profiled" / "clusterrun.toml", profile)
    found = {"of a": town.a.project, "of a, with a profile": town.a.home / "profiled"}
    for name in ("of the group", "of the group, with a profile", "of the group, below a profile"):
        found[name] = group_folder(town, town.folder / name)
        if "profile" in name:
            town.a.sh(f"echo {shlex.quote(profile)} > {shlex.quote(str(found[name]))}/clusterrun.toml", umask=0o002)
    found[name] = group_folder(town, found[name] / "below")
    return found


def test_three_users_work_in_one_project(town: Town) -> None:
    """Each has a job of its own in each of the projects; all of them run at the same time."""
    people = (town.a, town.b, town.c)
    where = folders(town)
    jobs: dict[str, dict[str, str]] = {person.name: {} for person in people}
    for name, folder in where.items():
        for person in people:
            flag = person.home / f"flag {name}"
            script = person.write(person.home / f"{name}.sh", WAITS_FOR.format(flag=f"'{flag}'"), 0o755)
            said = person.type("submit", "--json", *ONE_RANK, "--", str(script), cwd=folder, umask=0o002, status=0)
            jobs[person.name][name] = said.data["job_id"]
            told = [line for line in said.err.splitlines() if ".local/state/clusterrun/projects/" in line]
            private = person is town.a and town.a.home in folder.parents
            assert len(told) == (0 if private else 1), f"where the records are, in a line: {said}"
    for name, folder in where.items():
        with case(name):
            for person in people:
                look_at_mine_and_theirs(person, folder, name, jobs)
            job = jobs[town.b.name][name]
            (town.b.home / f"flag {name}").touch()
            town.b.type("wait", job, cwd=folder, status=0)
            assert "rank at its end" in town.b.type("logs", job, cwd=folder, status=0).out
            for person in (town.a, town.c):
                person.type("cancel", jobs[person.name][name], cwd=folder, status=0)
            for person in (town.a, town.c):
                job = jobs[person.name][name]
                until(lambda p=person, j=job, f=folder: p.state_of(j, cwd=f)["state"] == "CANCELLED", 30, job, 0.5)
            for person in people:
                del jobs[person.name][name]
    assert [person.type("list", "--json", status=0).data for person in people] == [[], [], []]


def look_at_mine_and_theirs(person: Person, folder: Path, name: str, jobs: dict[str, dict[str, str]]) -> None:
    """The user's own job is at work; the others' can be looked at and not cancelled."""
    job = jobs[person.name][name]
    until(lambda: "rank at work" in person.type("logs", job, cwd=folder).out, 60, f"the log of {job}", 0.5)
    assert person.state_of(job, cwd=folder)["run_id"], "a run of its own"
    rows = person.type("list", "--json", cwd=folder, status=0).data
    assert {row["user"] for row in rows} == {person.name}
    assert sorted(row["job_id"] for row in rows) == sorted(jobs[person.name].values())
    person.type("why", job, cwd=folder, status=0)
    for other in [those[name] for owner, those in jobs.items() if owner != person.name]:
        person.type("status", other, cwd=folder, status=0)
        person.type("cancel", other, cwd=folder, status=4)


def test_a_shared_run_is_seen_by_the_group_while_it_runs_and_afterwards(town: Town) -> None:
    """With either umask, and with a private run before it or none: Slurm forgets all of them at the same time."""
    jobs = {}
    for umask in (0o022, 0o077):
        for before in ("", "a private run before it"):
            name = f"{umask:03o} {before}"
            project = town.a.write(town.a.home / name / "train.py", "").parent
            os.chown(project, town.a.user.uid, common(town))
            project.chmod(0o2755)
            flag = town.a.home / f"flag {name}"
            script = town.a.write(town.a.home / f"{name}.sh", WAITS_FOR.format(flag=f"'{flag}'"), 0o755)
            if before:
                town.a.submit(WAITS, "--", str(town.a.home / "hello.sh"), cwd=project, umask=umask)
            words = ("submit", "--json", *ONE_RANK, "--shared", "--", str(script))
            said = town.a.type(*words, cwd=project, umask=umask, status=(0, 2))
            if said.status == 2:
                assert "chmod" in said.err, f"says why it cannot be shared, and what to type: {said}"
            else:
                jobs[name] = said.data["job_id"]
    assert "022 " in jobs
    for name, job in jobs.items():
        with case(name):
            until(lambda j=job: "rank at work" in town.a.type("logs", j).out, 60, "the job's work", 0.5)
            seen = town.b.state_of(job)
            assert (seen["state"], seen["user"]) == ("RUNNING", town.a.name)
            assert "rank at work" in town.b.type("logs", job, status=0).out
            assert "LOST" not in town.b.type("why", job, status=0).out.upper()
            town.b.type("cancel", job, status=4)
            (town.a.home / f"flag {name}").touch()
    for name, job in jobs.items():
        with case(name):
            until(lambda j=job: town.a.state_of(j)["state"] == "COMPLETED", 30, "the end", 0.5)
            look_again(town, town.b, job)
    town.lab.forget_ended()
    for name, job in jobs.items():
        with case(name):
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


#: What the submission's file of a crafted run may say, and record.json.
CRAFTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a submitter without numbers": ({"submitter": ["x", None, None]}, {}),
    "an infinite number": ({"submitter": ["x", float("inf"), 1], "log_start": [float("inf"), 0]}, {}),
    "a huge number": ({"at": 10**30, "final": {"ended": 10**400}}, {"nodes": 10**30}),
    "lists and objects": ({"job_id": [], "state": {}}, {"name": [[]], "sources": [1], "cluster": {}}),
    "a name with a NUL": ({"script": "a\0b"}, {"name": "a\0b", "sweep": "\0"}),
}
ABOUT_ALL = (("list",), ("list", "--all"), ("status",), ("why",), ("logs",), ("clean", "--dry-run"))


def test_no_crafted_run_of_another_member_stops_a_command_about_my_runs(town: Town) -> None:
    """A folder that the group can write: b plants runs in it, and in a's own records; a's commands show a's own job."""
    project = group_folder(town, town.folder / "of the group")
    script = town.a.write(town.a.home / "quiet.sh", "#!/bin/bash\necho at work\n", 0o755)
    done = town.a.type("submit", "--json", *ONE_RANK, "--", str(script), cwd=project, umask=0o002, status=0)
    town.a.type("wait", done.data["job_id"], cwd=project, status=0)
    waits = town.a.type("submit", "--json", *ONE_RANK, WAITS, "--", str(script), cwd=project, umask=0o002, status=0)
    runs = project / ".clusterrun" / "runs"
    runs.mkdir(parents=True)
    for folder in (project / ".clusterrun", runs):
        town.b.own(folder).chmod(0o777)
    for number, (submission, record) in enumerate(CRAFTED.values()):
        folder = runs / f"20260101-0101{number:02}-abcdef"
        made = Crafted(folder, town.b, town.lab.cluster_name, run_id=folder.name, job_id=str(7000 + number))
        made.submission, made.record = submission, record
        made.write()
    (runs / "20260101-020202-abcdef").symlink_to(folder)
    town.b.own(runs)
    for words in ABOUT_ALL:
        said = town.a.type(*words, cwd=project, status=(0, 75))  # 75: a pending job has no log, and no end
        assert "deleting nothing" not in said.err and said.err.count("unreadable record") <= 1, str(said)
        assert words != ("list",) or waits.data["job_id"] in said.out.split(), str(said)
        said = town.b.type(*words, cwd=project)
        assert said.err.count("unreadable record") <= 1, str(said)
    town.a.type("cancel", "--all", "--yes", cwd=project, status=0)
    job = waits.data["job_id"]
    until(lambda: town.a.state_of(job, cwd=project)["state"] == "CANCELLED", 30, job, 0.5)
