"""`submit --notify` on the local scheduler: a command gets the run's events, and its address stays in one file."""

from __future__ import annotations

from pathlib import Path

from tests.support.installed_command import Site, until

FAILS = """
import os, sys
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
if os.environ["RANK"] == "1" and os.environ["CLUSTERRUN_RESTART"] < "1":
    raise RuntimeError("the first launch fails")
dist.barrier()
"""


def test_events_of_a_run_that_fails_once(site: Site, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    got, script = tmp_path / "got", tmp_path / "to_chat.sh"
    script.write_text(f'#!/bin/sh\necho "$CLUSTERRUN_EVENT: $2" >> {got}\n')
    script.chmod(0o755)
    events = [word for event in ("started", "restarted", "done") for word in ("--notify-on", event)]
    job = site.submit(
        *("--scheduler", "local", "--nodes", "1", "--tasks-per-node", "2", "--max-restarts", "1"),
        *("--notify", f"{script} xoxb-secret", *events, "--", str(tmp_path / "fails.py")),
    )
    site.wait_state(job, "COMPLETED")
    until(lambda: got.exists() and len(got.read_text().splitlines()) == 3, 20, job.err.read_text)
    started, restarted, done = got.read_text().splitlines()
    assert started.startswith(f"started: fails (job {job.id}): started: 2 ranks on local0")
    assert "rank 1 on local0: RuntimeError: the first launch fails" in restarted
    assert done == f"done: fails (job {job.id}): done: all ranks have ended"
    holders = [path.name for path in job.run_dir.rglob("*") if path.is_file() and b"xoxb-secret" in path.read_bytes()]
    assert holders == ["notify.json"] and (job.run_dir / "notify.json").stat().st_mode & 0o777 == 0o600
