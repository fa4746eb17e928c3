"""What `free` asks of accounting: all at once, so that one that hangs is waited for once."""

from __future__ import annotations

import os
import threading
from typing import Any

from clusterrun.free.snapshot import TIMEOUT, load_snapshot
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.system.shell import CommandError, Completed

NODES = "NodeName=n1 CPUAlloc=0 CPUTot=16\n   State=IDLE\n   Partitions=gpu\n\n"


def test_accounting_that_hangs_is_waited_for_once_and_the_nodes_are_shown() -> None:
    together, limits = threading.Barrier(2), []

    def run(argv: list[str], **how: Any) -> Completed:
        if argv[0] == "sacctmgr":
            limits.append(how["timeout"])
            together.wait(10)  # breaks where one is asked after the other
            raise CommandError(argv, status=None, timed_out=True)
        if "config" in argv:
            return Completed(0, "AccountingStorageEnforce = associations,limits,qos\n", "")
        return Completed(0, NODES if "node" in argv else "PartitionName=gpu\n   State=UP\n\n", "")

    seen = load_snapshot(SlurmScheduler(ClusterFacts("c", accounting=True, gpus=True), os.environ, run=run), "me")
    assert limits == [TIMEOUT, TIMEOUT]
    assert [node.name for node in seen.nodes] == ["n1"]
    (note,) = seen.notes
    assert note.startswith("not available: your accounts and QOS, the per-user limits of the QOS (sacctmgr")
