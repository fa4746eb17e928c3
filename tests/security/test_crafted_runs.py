"""What another user crafted is a stranger's data: nothing of mine changes, nothing of theirs runs as me."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.crafting import RUN_ID, TRAPS, Crafted
from tests.security.people import LIMIT, WAITS, Person, Said, Town, queued, running
from tests.security.unchanged import unchanged
from tests.support.cases import case
from tests.support.patience import until


@pytest.fixture
def own(town: Town) -> str:
    """A job of a's that waits, of a's private project."""
    return str(town.a.submit(WAITS, "--", str(town.a.home / "hello.sh"))["job_id"])


def still_mine(person: Person, own: str) -> None:
    """The user's own verbs work on the user's own job."""
    assert person.state_of(own)["state"] == "PENDING"
    rows = person.type("list", "--json", status=0).data
    assert [row["job_id"] for row in rows] == [own]
    assert person.type("why", own, status=0)


def source_all(person: Person) -> None:
    """What happens when the user's next shell starts."""
    person.sh("for f in ~/rc.d/*; do . $f; done", status=None)


def lay(town: Town, name: str) -> tuple[str, Path]:
    """Submit a job of b's that runs until it may end: its script stands in a crafted run folder of b's."""
    folder = town.b.home / "bait" / name / ".clusterrun" / "runs" / RUN_ID
    folder.mkdir(parents=True)
    town.b.own(town.b.home / "bait")
    crafted = Crafted(folder, town.b, town.lab.cluster_name)
    crafted.script = f"#!/bin/bash\n{town.mark(f'job-{name}')}\nuntil [ -e {folder}/may-end ]; do sleep 0.1; done\n"
    # b knows the next job id before the record is written: the script may as well write the record itself
    town.b.write(folder / "script.sh", crafted.script, 0o755)
    options = ("--output=/dev/null", "--hold")
    first = town.sbatch(town.b, folder / "script.sh", *options)
    crafted.job_id = first
    TRAPS[name](crafted, town)
    crafted.write()
    town.b.sh(f"scontrol update jobid={first} jobname='train.{crafted.token[:8]}'; scontrol release {first}")
    return first, folder


def test_asking_about_the_job_of_another_user_changes_nothing_of_mine(town: Town, own: str) -> None:
    """All traps are laid at once; each is asked about while its job runs, and when it has ended."""
    town.a.type("list", status=0)
    laid = {name: lay(town, name) for name in TRAPS}
    for name, (theirs, _) in laid.items():
        until(lambda job=theirs: town.lab.job(job).get("JobState") == "RUNNING", 60, f"the start of {name}")
        with case(name), harmless(town, own):
            ask_all(town.a, theirs, running=True)
    ends = [f"touch {folder}/may-end" for _, folder in laid.values()]
    for number, (name, (theirs, _)) in enumerate(laid.items()):
        for end in ends[number : number + 2]:  # the next one ends meanwhile; Slurm would forget all before the last
            town.b.sh(end)
        until(lambda job=theirs: town.lab.job(job).get("JobState") == "COMPLETED", 60, f"the end of {name}")
        with case(name), harmless(town, own):
            ask_all(town.a, theirs, running=False)
            source_all(town.a)
        assert len([mark for mark in town.marks(town.b) if mark.startswith(f"job-{name}.")]) == 1
    with harmless(town, own):
        wait_for_all(town.a, {name: job for name, (job, _) in laid.items()})
    still_mine(town.a, own)


def wait_for_all(person: Person, jobs: dict[str, str]) -> None:
    """Type `wait` for each job at once: it takes some of them 20 s to find out that nobody knows more."""
    waiting = {name: person.start("clusterrun", "wait", job, cwd=person.project) for name, job in jobs.items()}
    for name, process in waiting.items():
        with case(name):
            out, err = process.communicate(timeout=3 * LIMIT)
            wrong = Said(("wait", jobs[name]), process.returncode, out, err).wrong((0, 1, 75))
            assert not wrong, wrong


@contextlib.contextmanager
def harmless(town: Town, own: str, where: Path | None = None) -> Iterator[None]:
    """Fail where what is typed within changes a file of a's, runs a script as a, ends wrong, or loses a's own job."""
    with unchanged(town.a.home, but=(town.a.state,)):
        yield
    assert town.marks(town.a) == []
    assert town.a.faults == []
    assert town.a.state_of(own, cwd=where)["state"] == "PENDING"


def ask_all(person: Person, job: str, *, running: bool) -> None:
    """Type every verb that takes the id of another user's job, but `wait`."""
    person.ask("status", job, status=(0, 75), remarks=1)
    person.ask("why", job, status=(0, 75), remarks=1)
    person.ask("logs", job)
    person.ask("cancel", job, status=4 if running else (0, 4), without=("Cancelled",))


def bait(town: Town, name: str) -> Path:
    """A folder of b's with two crafted runs: one that was cut off, and one that was a job once."""
    root = town.b.home / "bait" / name
    for number, job_id in ((1, ""), (2, "4712")):
        folder = root / ".clusterrun" / "runs" / f"20260101-01020{number}-abcdef"
        folder.mkdir(parents=True)
        crafted = Crafted(folder, town.b, town.lab.cluster_name, run_id=folder.name, job_id=job_id)
        crafted.script = f"#!/bin/bash\n{town.mark('script')}\n"
        shutil.rmtree(root / ".clusterrun" / "jobs", ignore_errors=True)
        TRAPS[name](crafted, town)
        crafted.write()
        (root / "logs").mkdir(exist_ok=True)
    town.b.own(town.b.home / "bait")
    return root


def test_working_in_the_folder_of_another_user_changes_nothing_of_mine(town: Town, own: str) -> None:
    town.a.type("list", status=0)
    ids = [f"20260101-01020{number}-abcdef" for number in (1, 2)]
    for name in TRAPS:
        where = bait(town, name)
        with case(name), harmless(town, own, where):
            for words in (("list",), ("list", "--all"), ("cancel", "--all", "--dry-run")):
                lines = 2 if "--dry-run" in words else 1  # how many it would cancel is a line of its own
                town.a.ask(
                    *words, cwd=where, status=0, remarks=lines, without=("--recover",), rows_without=("20260101-0102",)
                )
            for run_id in ids:
                for verb in ("status", "logs", "why", "check"):
                    town.a.ask(verb, run_id, cwd=where)
                town.a.ask("cancel", run_id, cwd=where, status=4)
                town.a.ask("submit", "--recover", run_id, cwd=where, status=(2, 4))
            town.a.ask("status", "4712", cwd=where)
            source_all(town.a)
        assert sorted(os.listdir(where / ".clusterrun" / "runs")) == ids, f"{name}: theirs is not mine to remove"
        rows = town.a.type("list", "--json", cwd=where, status=0).data
        assert [row["job_id"] for row in rows] == [own], name
    still_mine(town.a, own)


@pytest.mark.parametrize("user", ["a", "b"])
@pytest.mark.parametrize("state", ["submitting", "not submitted"])
def test_a_run_that_another_user_left_in_a_shared_project_is_never_mine_to_submit(
    town: Town, user: str, state: str
) -> None:
    project = town.folder / "shared"
    project.mkdir()
    os.chown(project, town.a.user.uid, town.a.user.groups[-1])
    os.chmod(project, 0o2775)
    folder = project / ".clusterrun" / "runs" / RUN_ID
    town.b.sh(f"mkdir -p {folder}", umask=0o002)
    crafted = Crafted(folder, town.b, town.lab.cluster_name, record={"user": getattr(town, user).name})
    crafted.submission = {"state": state}
    crafted.script = f"#!/bin/bash\n#SBATCH --output=/dev/null\n{town.mark('script')}\n"
    crafted.write()
    before = queued(town, town.a)
    for words in (("list",), ("list", "--all")):
        town.a.ask(*words, cwd=project, status=0, remarks=1, without=("--recover",))
    town.a.ask("submit", "--recover", RUN_ID, cwd=project, status=(2, 4))
    town.a.ask("cancel", RUN_ID, cwd=project, status=4)
    assert folder.exists()
    more = set(queued(town, town.a)) - set(before)
    until(lambda: not more.intersection(running(town, town.a)), 60, "the end of what was submitted")
    assert town.marks(town.a) == []
    assert not more, "a job was submitted"
    assert town.a.faults == []
