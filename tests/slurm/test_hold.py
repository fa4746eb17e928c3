"""A failed job keeps its nodes for its user, until it is cancelled or its file is removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.cluster import Lab
from tests.installed_command import Job, Site, read_json, until

WAIT = 60


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
