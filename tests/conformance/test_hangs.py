"""A launch that hangs is ended and its cause is named, on this machine and on Slurm.

That the next launch continues: test_restarts.py.
"""

from __future__ import annotations

import json

from tests.support.hangs import HANG, LATE, collectives, stop_rank, submit_script
from tests.support.installed_command import Site, until


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
