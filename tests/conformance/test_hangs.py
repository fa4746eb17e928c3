"""A launch that hangs is ended and its cause is named, on this machine and on Slurm.

That the next launch continues: test_restarts.py.
"""

from __future__ import annotations

import json
import socket

import pytest

from tests.support.hangs import HANG, LATE, SCRIPT, collectives, stop_rank, submit_script
from tests.support.installed_command import Site, until
from tests.support.lm_runs import SHAPE


def test_a_stopped_rank_of_a_script_is_named_and_its_launch_is_ended(site: Site) -> None:
    job, _ = submit_script(site, *HANG)
    until(lambda: job.attempts() and collectives(job.attempts()[-1]) > 20, LATE, job.err.read_text)
    attempt, _ = stop_rank(job, 1)
    state = site.wait_state(job, "FAILED", timeout=LATE)
    assert state["exit_status"] == 124
    (answer,) = site.json("why", job.id)
    why = answer["ended"]
    assert (why["kind"], why["rank"]) == ("hang", 1) and "stopped (SIGSTOP)" in why["cause"], why
    assert f"{attempt}/stacks-rank-" in why["advice"]
    assert json.loads((attempt / "hang.json").read_text())["rank"] == 1


@pytest.mark.alone  # the watchdog gives NCCL five seconds to answer
def test_what_nccl_says_is_asked_on_the_nodes_and_shown(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = SCRIPT.with_name("hangs_with_nccl.py")
    job = site.submit(*SHAPE, *HANG, "--env", f"NCCL_RAS_ADDR={address}", "--", str(script))
    until(lambda: job.attempts() and collectives(job.attempts()[-1]) > 5, LATE, job.err.read_text)
    start = job.attempts()[-1] / "start.json"
    start.write_text(json.dumps(json.loads(start.read_text()) | {"backend": "nccl"}))  # without GPUs it is gloo
    asked = site.json("why", job.id, "--stacks")["nccl"]
    assert asked["ranks"] == [1] and "is behind (Reduce 4 of 5) in communicator ae94423cfbb2ef4a" in asked["lines"][0]
    shown = site.cli("why", job.id, "--stacks").stdout
    assert f"\n{asked['lines'][0]}\n{asked['lines'][1]}\n" in shown
    attempt, _ = stop_rank(job, 1)
    site.wait_state(job, "FAILED", timeout=LATE)
    (answer,) = site.json("why", job.id)
    said = [line["text"] for line in answer["ended"]["evidence"]]
    assert said == [asked["lines"][0], "the ranks' own records agree: rank 1"], (attempt / "hang.json").read_text()
    assert "is behind (Reduce 4 of 5)" in job.err.read_text()
    assert "ae94423cfbb2ef4a" in (attempt / "nccl-ras.txt").read_text()
