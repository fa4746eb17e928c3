"""The lab's configuration files, as text: pure functions, so that a test can read them without a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

# Keys of which a file has several lines, distinguished by the name that follows.
_REPEATED = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname")


def parse_settings(pairs: Iterable[str]) -> dict[str, str]:
    """`["KEY=VALUE", …]` as a mapping; raises ValueError where there is no key."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"\w+", key.strip()) or "\n" in value:
            raise ValueError(f"{pair!r} is not KEY=VALUE")
        key = key.strip()
        if key.lower() in _REPEATED:  # several partitions may be set: the name belongs to the key
            key, value = f"{key}={value.split()[0]}", " ".join(value.split()[1:])
        settings[key] = value.strip()
    return settings


def override(lines: Iterable[tuple[str, str]], settings: Mapping[str, str]) -> str:
    """Return the file's text with each setting in place of the line of that key; an empty value removes the line."""
    wanted = {key.lower(): (key, value) for key, value in settings.items()}
    out = []
    for line in lines:
        key, value = line
        name = f"{key}={value.split()[0]}".lower() if key.lower() in _REPEATED else key.lower()
        out.append(wanted.pop(name, line))
    out += wanted.values()
    return "".join(f"{key}{' ' if '=' in key else '='}{value}\n" for key, value in out if value)


def slurm_lines(
    *, cluster: str, folder: Path, host: str, address: str, ctld_port: int, dbd_port: int, nodes: Mapping[str, str],
    nodes_expr: str, cpus: int, memory_mb: int, gpus: int, gpu_type: str, accounting: bool,
) -> list[tuple[str, str]]:  # fmt: skip
    """Return the lines of slurm.conf; `nodes` maps each node's name to its address, `nodes_expr` names them all."""
    lines = [
        ("ClusterName", cluster),
        ("SlurmctldHost", f"{host}({address})"),
        ("SlurmctldPort", str(ctld_port)),
        ("SlurmUser", "root"),
        ("SlurmdUser", "root"),
        ("AuthType", "auth/munge"),
        # A requeued job may start again when its credential has expired: 120 s by default, 5 s here.
        ("AuthInfo", f"socket={folder}/munge/socket,cred_expire=5"),
        ("CredType", "cred/munge"),
        ("StateSaveLocation", f"{folder}/state"),
        ("SlurmdSpoolDir", f"{folder}/spool/%n"),
        ("SlurmctldPidFile", f"{folder}/run/slurmctld.pid"),
        ("SlurmdPidFile", f"{folder}/run/%n.pid"),
        ("SlurmctldLogFile", f"{folder}/log/slurmctld.log"),
        ("SlurmdLogFile", f"{folder}/log/%n.log"),
        ("SlurmctldDebug", "info"),
        ("SlurmdDebug", "info"),
        ("MailProg", "/bin/true"),
        ("MpiDefault", "none"),
        # One machine stands in for many: more CPUs than it has, no cgroups, no binding.
        ("SlurmdParameters", "config_overrides"),
        ("ProctrackType", "proctrack/linuxproc"),
        ("TaskPlugin", "task/none"),
        ("ReturnToService", "2"),
        # Scheduling at once instead of within 60 s, so that tests wait for little.
        ("SchedulerType", "sched/backfill"),
        ("SchedulerParameters", "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1"),
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_Core_Memory"),
        ("DefMemPerCPU", "2000"),
        # Memory is enforced by looking every 2 s, which needs no cgroup.
        ("JobAcctGatherType", "jobacct_gather/linux"),
        ("JobAcctGatherFrequency", "task=2"),
        ("JobAcctGatherParams", "OverMemoryKill"),
        ("PreemptType", "preempt/partition_prio"),
        ("PreemptMode", "REQUEUE"),
        ("JobRequeue", "1"),
        # Faults are noticed in seconds: a dead node, the pause between SIGTERM and SIGKILL.
        # Three times MessageTimeout: a dead node holds up each round of pings for that long, and with 10 s slurmctld of
        # 24.11 set other nodes down, which it had not queried meanwhile.
        ("SlurmdTimeout", "30"),
        ("SlurmctldTimeout", "10"),
        # A test may look late at a job that has ended; one that needs it forgotten calls Lab.forget_ended.
        ("MinJobAge", "600"),
        ("KillWait", "30"),
        ("CompleteWait", "0"),
        ("EpilogMsgTime", "0"),
        ("MaxArraySize", "20001"),
        ("MaxJobCount", "50000"),
    ]
    if accounting:
        lines += [
            ("AccountingStorageType", "accounting_storage/slurmdbd"),
            ("AccountingStorageHost", address),
            ("AccountingStoragePort", str(dbd_port)),
            # Not a password: with munge this is where commands find the socket when they talk to slurmdbd.
            ("AccountingStoragePass", f"{folder}/munge/socket"),
            ("AccountingStoreFlags", "job_comment,job_script,job_env"),
        ]
        lines += [("AccountingStorageTRES", "gres/gpu")] if gpus else []
    gres = ""
    if gpus:
        lines.append(("GresTypes", "gpu"))
        gres = f" Gres=gpu:{gpu_type}:{gpus}" if gpu_type else f" Gres=gpu:{gpus}"
    for node, where in nodes.items():
        shape = f"CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory_mb}{gres}"
        lines.append(("NodeName", f"{node} NodeHostname={node} NodeAddr={where} {shape} State=UNKNOWN"))
    times = "MaxTime=INFINITE DefaultTime=60 State=UP"
    return [
        *lines,
        ("PartitionName", f"gpu Nodes={nodes_expr} Default=YES PriorityTier=10 PreemptMode=OFF {times}"),
        ("PartitionName", f"low Nodes={nodes_expr} PriorityTier=1 PreemptMode=REQUEUE GraceTime=5 {times}"),
        ("PartitionName", f"short Nodes={nodes_expr} PriorityTier=10 PreemptMode=OFF MaxTime=1 State=UP"),
    ]


def gres_text(folder: Path, gpus: int, gpu_type: str) -> str:
    """gres.conf: GPUs that are character devices, so that Slurm allocates them and sets CUDA_VISIBLE_DEVICES only."""
    if not gpus:
        return ""
    files = f"{folder}/dev/nvidia{'0' if gpus == 1 else f'[0-{gpus - 1}]'}"
    kind = f" Type={gpu_type}" if gpu_type else ""
    return f"Name=gpu{kind} File={files} Flags=nvidia_gpu_env\n"


def topology_text(nodes: list[str]) -> str:
    """topology.conf of `topology/block`: two blocks, the odd nodes and the even ones, so that no block is a range."""
    blocks = {"odd": nodes[::2], "even": nodes[1::2]}
    lines = [f"BlockName={name} Nodes={','.join(members)}\n" for name, members in blocks.items() if members]
    return "".join(lines) + f"BlockSizes={len(nodes) // 2 or 1}\n"


def dbd_text(*, folder: Path, host: str, address: str, dbd_port: int) -> str:
    """slurmdbd.conf; the database is found by MYSQL_UNIX_PORT in slurmdbd's environment, not by a port."""
    pairs = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/socket",
        "DbdHost": host,
        "DbdAddr": address,
        "DbdPort": str(dbd_port),
        "SlurmUser": "root",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageLoc": "slurm",
        "StorageUser": "root",
        "PidFile": f"{folder}/run/slurmdbd.pid",
        "LogFile": f"{folder}/log/slurmdbd.log",
        "DebugLevel": "info",
    }
    return "".join(f"{key}={value}\n" for key, value in pairs.items())
