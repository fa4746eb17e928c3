"""`why` of jobs that wait or run without the help of accounting: on a cluster that keeps none, and on this machine."""

from __future__ import annotations

from collections.abc import Callable

from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.pending_jobs import squeue


def test_without_accounting(fresh_lab_no_accounting: Lab, new_site: Callable[[Lab | None], Site]) -> None:
    lab = fresh_lab_no_accounting
    site = new_site(lab)
    wrap = ["sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 300"]
    whole, next_ = [
        lab.run([*wrap, f"--nodes={lab.nodes}", "--gpus-per-node=4", "--exclusive"]).stdout.strip() for _ in "ab"
    ]
    after = lab.run([*wrap, f"--dependency=afterany:{whole}"]).stdout.strip()
    until(lambda: lab.job(next_).get("Reason") == "Resources", 30, lambda: squeue(lab), pause=0.3)
    until(lambda: lab.job(after).get("Reason") == "Dependency", 30, lambda: squeue(lab), pause=0.3)
    found = {job["job_id"]: job["waiting"] for job in site.json("why", next_, after)}
    assert found[next_]["here"][0].startswith(f"the job requests {lab.nodes} nodes, {4 * lab.nodes} GPUs")
    assert ", 0 of 16 GPUs" in found[next_]["here"][0]
    assert found[after]["here"][0].startswith(f"afterany:{whole} waits for job {whole} to end; that job is RUNNING")
    assert all(job["not_seen"] == [] for job in found.values())


def test_a_running_run_tells_of_its_ranks(new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(None)
    job = site.rank("sleeps.sh")
    site.wait_joined(job)
    (found,) = site.json("why", job.id)
    lines = found["running"]["lines"]
    assert found["kind"] == "running" and lines[0].startswith("RUNNING since ")
    assert len(lines) >= 2, lines


def test_a_local_job_waits_for_another(new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(None)
    first = site.submit("--gpus-per-node", "0", "--tasks-per-node", "1", "--", "sleep", "300")
    second = site.submit(
        "--gpus-per-node", "0", "--tasks-per-node", "1", "--dependency", f"afterok:{first.id}", "--", "true"
    )
    (found,) = site.json("why", second.id)
    assert found["waiting"]["word"] == "Dependency"
    assert found["waiting"]["here"][0].startswith(
        f"afterok:{first.id} waits for job {first.id} to succeed; that job is RUNNING"
    )
    site.cli("cancel", first.id, "--yes")
    until(lambda: site.json("why", second.id)[0]["reason"] == "DependencyNeverSatisfied", 20, pause=0.2)
    (found,) = site.json("why", second.id)
    assert found["waiting"]["starts"] == "never" and found["waiting"]["do"] == [f"clusterrun cancel {second.id}"]
    assert "that job is CANCELLED, so this condition can never be met" in found["waiting"]["here"][0]
    assert "do  clusterrun cancel" in site.cli("why", second.id).stdout
