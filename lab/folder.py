"""The lab's folder as it is before any daemon starts."""

from __future__ import annotations

import json
import os
import platform
import stat

from lab import config, releases
from lab.spec import LabSpec


def write_folder(lab: LabSpec) -> None:
    """Make the lab's folder with its configuration files, munge key and GPU devices."""
    folder = lab.folder
    folder.mkdir(mode=0o755)
    for part in ("pid", "log", "run", "munge", "state", "spool", "dev"):
        (folder / part).mkdir(mode=0o755)
    for index in range(lab.gpus):
        # The null device under another name: Slurm only wants a character device to hand out.
        os.mknod(folder / "dev" / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    key = os.open(folder / "munge" / "key", os.O_WRONLY | os.O_CREAT, 0o400)
    os.write(key, os.urandom(128))
    os.close(key)
    host = platform.node().split(".")[0]
    where = {node: lab.address(node) for node in lab.node_names}
    lines = config.slurm_lines(
        cluster=lab.cluster_name, folder=folder, host=host, address=lab.claim.gateway, nodes=where,
        ctld_port=lab.claim.ctld_port, dbd_port=lab.claim.dbd_port, cpus=lab.cpus, memory_mb=lab.memory_mb,
        nodes_expr=f"{lab.node_prefix}[1-{lab.nodes}]" if lab.nodes > 1 else lab.node_names[0],
        gpus=lab.gpus, gpu_type=lab.gpu_type, accounting=lab.accounting,
    )  # fmt: skip
    plugins = {"PluginDir": str(releases.plugins(lab.slurm))} if lab.slurm else {}
    if lab.slurm:  # newer slurmds look for a cgroup even where nothing uses one
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n", encoding="utf-8")
    lab.conf.write_text(config.override([*plugins.items(), *lines], lab.settings), encoding="utf-8")
    (folder / "gres.conf").write_text(config.gres_text(folder, lab.gpus, lab.gpu_type), encoding="utf-8")
    if lab.settings.get("TopologyPlugin") == "topology/block":
        (folder / "topology.conf").write_text(config.topology_text(lab.node_names), encoding="utf-8")
    if lab.accounting:
        path = folder / "slurmdbd.conf"
        path.touch(mode=0o600)  # slurmdbd refuses a file that others can read
        dbd = config.dbd_text(folder=folder, host=host, address=lab.claim.gateway, dbd_port=lab.claim.dbd_port)
        path.write_text(dbd + "".join(f"{key}={value}\n" for key, value in plugins.items()), encoding="utf-8")
    (folder / "lab.json").write_text(json.dumps(lab.spec), encoding="utf-8")
