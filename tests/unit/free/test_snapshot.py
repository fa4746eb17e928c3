"""What `free` asks of accounting: all at once, so that one that hangs is waited for once."""

from __future__ import annotations

import os
import threading
from typing import Any

from clusterrun.free.snapshot import TIMEOUT, load_snapshot
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.system.shell import CommandError, Completed
from tests.support.command_desk import Desk
from tests.support.patience import HUNG

NODES = "NodeName=n1 CPUAlloc=0 CPUTot=16\n   State=IDLE\n   Partitions=gpu\n\n"


def test_accounting_that_hangs_is_waited_for_once_and_the_nodes_are_shown() -> None:
    together, limits = threading.Barrier(2), []

    def run(argv: list[str], **how: Any) -> Completed:
        if argv[0] == "sacctmgr":
            limits.append(how["timeout"])
            together.wait(HUNG)  # breaks where one is asked after the other
            raise CommandError(argv, status=None, timed_out=True)
        if "config" in argv:
            return Completed(0, "AccountingStorageEnforce = associations,limits,qos\n", "")
        return Completed(0, NODES if "node" in argv else "PartitionName=gpu\n   State=UP\n\n", "")

    seen = load_snapshot(SlurmScheduler(ClusterFacts("c", accounting=True, gpus=True), os.environ, run=run), "me")
    assert limits == [TIMEOUT, TIMEOUT]
    assert [node.name for node in seen.nodes] == ["n1"]
    (note,) = seen.notes
    assert note.startswith("not available: your accounts and QOS, the per-user limits of the QOS (sacctmgr")


def test_a_cluster_that_hides_its_nodes_is_not_called_silent(desk: Desk) -> None:
    """The words and exit statuses are those of 22.05 with PrivateData=nodes,partitions."""
    denied = "slurm_load_{}: Access/permission denied"
    desk.slurm.answer("sinfo", err=denied.format("partitions"), status=1)
    config = (desk.slurm.folder / "scontrol.out").read_text()
    desk.slurm.answer("scontrol", config, err=denied.format("node error"), status=1)
    for words in (["free"], ["submit", "--partition", "auto", "--dry-run", "--", "train.py"], ["init", "--print"]):
        said = desk.type(*words)
        assert said.status == 3 and "from users (PrivateData in slurm.conf)" in said.err, words
        assert "Access/permission denied" in said.err and "--partition NAME" in said.err and "ping" not in said.err
    said = desk.type("submit", "--dry-run", "--gpus-per-node", "1", "--", "train.py")
    assert said.status == 0 and "not checked: the cluster's limits (this cluster hides its nodes from users" in said.err
