"""A job is named by its name or `last`, and submitted again with changes, on this machine and on Slurm."""

from __future__ import annotations

from pathlib import Path

from tests.support.installed_command import ONE_RANK, Job, Site


def test_a_job_is_named_submitted_again_and_cancelled(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "hello.sh"
    script.write_text("#!/bin/sh\necho got $A $B $*\n[ $# -lt 2 ] || exec sleep 300\n")
    script.chmod(0o755)
    first = site.submit(*ONE_RANK, "--job-name", "hello", "--env", "A=one", "--", str(script), "x")
    site.wait_state(first, "COMPLETED")
    shown = site.cli("logs").stdout
    assert "0: got one x\n" in shown and site.cli("logs", "hello").stdout == shown
    data = site.json("resubmit", "last", "--env", "B=two", "--", "y", "z")
    again = Job(data["job_id"], Path(data["run_dir"]), *map(Path, data["logs"]))
    assert again.id != first.id and again.run_dir != first.run_dir
    site.wait_joined(again)
    assert "2 jobs are named hello; using the newest" in site.cli("status", "hello").stderr
    (state,) = site.json("status")
    assert (state["job_id"], state["state"]) == (again.id, "RUNNING")
    site.cli("cancel", "last")
    site.wait_state(again, "CANCELLED")
    assert "0: got one two y z\n" in again.out.read_text()
    (why,) = site.json("why")
    assert why["job_id"] == again.id and why["kind"] == "ended"
