"""Defects that were once seen on a real cluster, each tried again on one: real jobs, real logs, real ends."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.process.test_script import LATE
from tests.support.installed_command import ONE_RANK, Job, Site, until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
TWO_RANKS = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "1")
LONG = 300


def write(site: Site, name: str, text: str) -> str:
    path = site.project / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return name


def ended(site: Site, job: Job) -> dict[str, Any]:
    return site.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", timeout=LONG)


def why(site: Site, job: Job) -> str:
    ended(site, job)
    return " ".join(site.cli("why", job.id, status=None).stdout.split())


def processes(job: Job, name: bytes) -> list[int]:
    """The job's processes with this in their command; the lab's nodes are on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command, environ = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if name in command and str(job.run_dir).encode() in environ + command:
            found.append(int(path.name))
    return found


def test_slurm_clusters_all_is_not_the_name_of_a_cluster(site: Site, lab: Lab) -> None:
    job = site.submit(*ONE_RANK, "--", "true", env={"SLURM_CLUSTERS": "all"})
    assert ended(site, job)["state"] == "COMPLETED"
    (row,) = [row for row in site.listed("--all") if row["job_id"] == job.id]
    assert row["cluster"] == lab.name


def test_end_marks_that_are_shown_31_seconds_late_make_no_failure(site: Site, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LATE % 31)
    tmp_path.chmod(0o755)
    job = site.submit(*TWO_RANKS, "--env", f"PYTHONPATH={tmp_path}", "--", "true")
    assert ended(site, job)["state"] == "COMPLETED", job.err.read_text()
    end = site.wait_end(job)
    assert (end["status"], end["unmarked"]) == (0, 0)


def test_the_log_of_an_older_job_with_the_same_number_is_not_read(site: Site) -> None:
    before = site.submit(*ONE_RANK, "--no-check", "--", "true")
    later = site.project / "logs" / f"train_{int(before.id) + 1}.err"
    later.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    job = site.submit(*ONE_RANK, "--no-check", "--", "bash", "-c", "echo mine; exit 3")
    assert job.err == later, "Slurm gave another number"
    found = why(site, job)
    assert "3" in found and "memory" not in found, found
    assert "OutOfMemory" not in site.cli("logs", job.id).stdout


def test_ranks_that_return_after_their_store_was_killed_are_done(site: Site) -> None:
    job = site.submit(
        *TWO_RANKS, "--", "bash", "-c", f"touch up.$RANK; until [ -e {site.project}/go ]; do sleep 0.1; done"
    )
    until(lambda: (site.project / "up.0").exists() and (site.project / "up.1").exists(), LONG, job.err.read_text)
    (helper,) = processes(job, b"rendezvous.py")
    os.kill(helper, signal.SIGKILL)
    (site.project / "go").touch()
    assert ended(site, job)["state"] == "COMPLETED", job.err.read_text()


def test_ranks_that_wait_for_the_last_one_are_silent(site: Site) -> None:
    script = write(site, "late.py", "import os, time\ntime.sleep(35 * (os.environ['RANK'] == '3'))\n")
    job = site.submit("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2", "--independent", "--", script)
    assert ended(site, job)["state"] == "COMPLETED"
    err = job.err.read_text().splitlines()
    # torch warns once per connection of a node whose address has no name
    warned = [line for line in err if "[W" in line and "hostname of the client socket" not in line]
    assert not warned and len([line for line in err if "wait" in line]) <= 1, err


def test_why_names_what_real_jobs_ended_with(site: Site) -> None:
    nan = (
        "for step in range(40):\n    print('step', step, 'loss', 2.0 if step < 9 else float('nan'), flush=True)\n"
        "raise SystemExit(1)\n"
    )
    bare = "rows = 7\nassert rows == 8\n"
    write(site, "pkg/__init__.py", "")
    write(site, "pkg/broken.py", "def load():\n    return {}['weights']\nload()\n")
    first = "import os, sys, time\nsys.exit(1) if os.environ['RANK'] == '0' else time.sleep(600)\n"
    jobs = {
        "step 9": site.submit(*ONE_RANK, "--", write(site, "nan.py", nan)),
        "assert rows == 8": site.submit(*ONE_RANK, "--", write(site, "bare.py", bare)),
        "no-such-program": site.submit(*ONE_RANK, "--", "bash", "-c", "no-such-program --steps 3"),
        "broken.py:2": site.submit(*ONE_RANK, "--", "-m", "pkg.broken"),
        "exit status 1": site.submit(*TWO_RANKS, "--", write(site, "first.py", first)),
    }
    found = {words: why(site, job) for words, job in jobs.items()}
    assert all(words in text for words, text in found.items()), found


def test_a_cancelled_module_can_be_submitted_again_by_the_line_that_is_printed(site: Site) -> None:
    write(site, "scripts_of_the_project/__init__.py", "")
    write(site, "scripts_of_the_project/test_distributed.py", "import time\ntime.sleep(600)\n")
    job = site.submit(*ONE_RANK, "--", "-m", "scripts_of_the_project.test_distributed")
    site.wait_joined(job)
    (row,) = [row for row in site.listed() if row["job_id"] == job.id]
    assert row["name"].endswith("test_distributed")
    assert site.cli("list").stdout.splitlines()[0].startswith("JOBID"), "a pipe has the heading too"
    site.cli("cancel", job.id)
    ended(site, job)
    lines = site.cli("why", job.id, status=None).stdout.splitlines()
    commands = [line[line.index("clusterrun ") :] for line in lines if "clusterrun " in line]
    words = next(shlex.split(line)[1:] for line in commands if line.split()[1] in ("submit", "resubmit", "resume"))
    assert words[0] != "submit" or "-m" in words[words.index("--") :], words
    data = site.json(*words)
    again = Job(data["job_id"], Path(data["run_dir"]), *map(Path, data["logs"]))
    site.wait_joined(again)
    assert processes(again, b"scripts_of_the_project.test_distributed")
    site.cli("cancel", again.id)


def settings(**values: Any) -> list[str]:
    usual = {"vocab": 300, "seq_len": 16, "global_batch_size": 4, "eval_every": 0, "save_every": 1, "log_every": 1}
    return [word for key, value in (usual | values).items() for word in ("--set", f"{key}={value}")]


def test_a_step_that_became_nan_is_never_the_latest_checkpoint(site: Site) -> None:
    job = site.submit(*ONE_RANK, *settings(steps=50, lr="1e38", warmup=0), "lm")
    assert ended(site, job)["state"] == "FAILED"
    text = why(site, job)
    assert "NaN" in text or "not finite" in text or "inf" in text, text
    latest = job.run_dir / "checkpoints" / "latest"
    saved = int(latest.read_text().strip().removeprefix("step-")) if latest.exists() else 0
    losses = [line for line in (job.run_dir / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert saved <= len(losses) and not any("NaN" in line for line in losses[: saved + 1]), losses


def test_a_checkpoint_folder_in_use_by_another_job_is_refused(site: Site, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = site.submit(*ONE_RANK, *settings(steps=1_000_000, checkpoint_dir=kept, keep_last=2), "lm")
    until((kept / "latest").exists, LONG, first.err.read_text)
    second = site.submit(*ONE_RANK, *settings(steps=5, checkpoint_dir=kept), "lm")
    assert ended(site, second)["state"] == "FAILED"
    assert f"is in use by run {first.run_dir.name}" in second.err.read_text()
    site.cli("cancel", first.id)
    assert (kept / (kept / "latest").read_text().strip()).is_dir()
