"""Another user on the same network reaches the port where my ranks meet: what it can and cannot do there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.security.people import Town
from tests.support.patience import until

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
#: Asks the store for the names of all keys, which newer versions of torch offer, and gives each another value.
LISTER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
keys = list(store.list_keys()) if hasattr(store, "list_keys") else []
prefixes = {key.rpartition("join/")[0] for key in keys if "join/" in key}
for key in [prefix + word for prefix in prefixes for word in ("done/all", "done/count", "done/0", "done/1")]:
    store.set(key, "2")
print(len(keys))
"""
OVER = ("COMPLETED", "FAILED", "CANCELLED")
RANK = """
import os, pathlib, time
if os.environ["RANK"] == "1":
    while not pathlib.Path(os.environ["MAY_END"]).exists():
        time.sleep(0.1)
    time.sleep(3)
    pathlib.Path(os.environ["MAY_END"] + ".late").touch()
"""


@pytest.mark.parametrize("stranger", [STRANGER, LISTER], ids=["by known names", "by listed names"])
def test_a_stranger_at_the_port_learns_nothing_and_ends_no_rank(town: Town, stranger: str) -> None:
    script = town.a.write(town.a.home / "rank.py", RANK)
    may_end, late = town.a.home / "may-end", town.a.home / "may-end.late"
    data = town.a.type(
        "submit", "--json", "--scheduler", "slurm", "--gpus-per-node", "0", "--tasks-per-node", "2", "--env",
        f"MAY_END={may_end}", "--", str(script), status=0,
    ).data  # fmt: skip
    job, log = data["job_id"], Path(data["logs"][1])
    said = until(lambda: log.exists() and re.search(r"rendezvous (\S+):(\d+)", log.read_text()), 60, "the port")
    until(lambda: list(town.a.home.rglob("start.json")), 120, "the ranks' meeting", 0.5)
    seen = town.b.sh(f"{town.b.env['VIRTUAL_ENV']}/bin/python -c '{stranger}' {said[1]} {said[2]}")
    town.a.sh(f"touch {may_end}")
    until(late.exists, 60, "the rank that was at work was cut off")
    if stranger is LISTER:  # torch lets anybody list, overwrite and delete keys: a run may never end by itself of it
        town.a.type("cancel", job, status=0)
    until(lambda: town.lab.job(job).get("JobState") in OVER, 90, "the end", 0.5)
    assert stranger is LISTER or town.a.state_of(job)["outcome"] == "done"
    assert stranger is LISTER or seen.split() == [], "keys that need no token"
