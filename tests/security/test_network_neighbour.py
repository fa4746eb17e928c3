"""Another user on the same network reaches the port where my ranks meet: what it can and cannot do there."""

from __future__ import annotations

import re

from tests.security.people import Town, until

#: Connects as anybody can, reads what it knows the names of, and says that all ranks have ended.
STRANGER = """
import sys
from datetime import timedelta
from torch.distributed import PrefixStore, TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
seen = []
for prefix in ("", "clusterrun/"):
    for key in ("join/plan", "join/all", "join/count", "join/0", "join/1", "join/seat/0", "done/count", "done/all"):
        if store.check([prefix + key]):
            seen.append(prefix + key)
for prefix in ("", "clusterrun/"):
    for key in ("join/all", "done/all"):
        store.set(prefix + key, "1")
    store.add(prefix + "done/count", 7)
    store.add(prefix + "join/count", 7)
print(*seen)
"""
RANK = """
import os, pathlib, time
if os.environ["RANK"] == "1":
    while not pathlib.Path(os.environ["MAY_END"]).exists():
        time.sleep(0.1)
    time.sleep(3)
    pathlib.Path(os.environ["MAY_END"] + ".late").touch()
"""


def test_a_stranger_at_the_port_finds_no_key_and_ends_no_wait(town: Town) -> None:
    script = town.a.write(town.a.home / "rank.py", RANK)
    may_end = town.a.home / "may-end"
    job = town.a.type(
        "submit", "--json", "--scheduler", "slurm", "--gpus-per-node", "0", "--tasks-per-node", "2", "--env",
        f"MAY_END={may_end}", "--", str(script), status=0,
    ).data  # fmt: skip
    log = town.a.project / "logs" / f"train_{job['job_id']}.err"
    said = until(lambda: log.exists() and re.search(r"rendezvous (\S+):(\d+)", log.read_text()), 60, "the port")
    until(lambda: list(town.a.project.rglob("start.json")), 120, "the ranks' meeting", 0.5)
    python = f"{town.b.env['VIRTUAL_ENV']}/bin/python"
    seen = town.b.sh(f"{python} -c '{STRANGER}' {said[1]} {said[2]}")
    town.a.sh(f"touch {may_end}")
    ended = until(lambda: town.lab.job(job["job_id"]).get("JobState") in ("COMPLETED", "FAILED"), 90, "the end", 0.5)
    assert ended and seen.split() == [], "keys that need no token"
    assert (town.a.home / "may-end.late").exists(), "the rank that was at work was cut off"
    assert town.a.state_of(job["job_id"])["outcome"] == "done"
