"""The users of these tests can do what users do: without this, no attack of theirs would prove anything."""

from __future__ import annotations

from tests.security.people import Town
from tests.support.patience import until


def test_each_user_submits_a_job_that_runs_as_that_user(town: Town) -> None:
    jobs = []
    for person in (town.a, town.b, town.c):
        script = person.write(person.home / "job.sh", f"#!/bin/bash\n{town.mark('job')}\n", 0o755)
        jobs.append((person, person.submit("--", str(script))["job_id"]))
    for person, job in jobs:
        until(lambda p=person, j=job: p.state_of(j)["state"] == "COMPLETED", 60, f"the end of {job}", 0.5)
        assert len(town.marks(person)) == 1


def test_a_user_reads_no_private_file_of_another(town: Town) -> None:
    assert town.a.sh("cat ~/secret.txt") == "the diary\n"
    town.b.sh(f"cat {town.a.home}/secret.txt", status=1)
