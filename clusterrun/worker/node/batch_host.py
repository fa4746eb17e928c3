"""What the first node of a job asks Slurm and the network: the nodes, its own address, and why the job was ended."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

from ...base.errors import WorkerError
from ...run_folder.launches import QUEUE_TIMES
from .interfaces import is_loopback, is_own

ENDING = ("COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")  # Slurm's states of a job that was ended
ANSWER_S = 10.0  # for one Slurm command
UNREACHABLE = ("Unable to contact", "timed out", "Connection", "send/receive failure", "Zero Bytes")
NO_VALUE = ("", "(null)", "N/A", "None", "Unknown")
SEPARATOR = "\x1f"
# Names of the facts, as scontrol's, with squeue's columns. Not `scontrol show job`: a job's name, comment and paths lie
# among its fields there, and may contain anything. None of these columns is free text.
FIELDS = {
    "JobState": "State",
    "Reason": "Reason",
    "Restarts": "RestartCnt",
    "EndTime": "EndTime",
    "SubmitTime": "SubmitTime",
    "EligibleTime": "EligibleTime",
    "StartTime": "StartTime",
    "PreemptTime": "PreemptTime",
    "Partition": "Partition",
    "Account": "Account",
    "QOS": "QOS",
}
LOG_TAIL = 16_384  # bytes of the log in which Slurm's reason is looked for
# Slurm's line in the batch script's log. Up to 24.11 it begins with slurmstepd's name, in 26.05 with the time.
CANCELLED = re.compile(
    rb"^(?:slurmstepd|\[[^]]*\] error: ).* CANCELLED AT [^ ]*"
    rb"(?: DUE TO ([A-Z ]*)(?:, SEE .*)?| DUE to SIGNAL .*)? \*\*\*$",
    re.MULTILINE,
)


class Reply(NamedTuple):
    """The end of a Slurm command; `status` is None if it did not respond in time."""

    status: int | None
    text: str

    @property
    def is_silence(self) -> bool:
        """Whether it is not known what the controller did."""
        return self.status is None or (self.status != 0 and any(words in self.text for words in UNREACHABLE))


def show_job(job_id: str, limit: float = ANSWER_S) -> dict[str, str]:
    """Return the job's FIELDS but those without a value; none if Slurm does not respond within `limit` seconds."""
    columns = ",".join(f"{column}:{SEPARATOR}" for column in FIELDS.values())
    answer = _output(
        ["squeue", "--noheader", "--all", "--states=all", f"--jobs={job_id}", f"--Format={columns}"], limit
    )
    for line in answer.splitlines():
        values = [value.strip() for value in line.split(SEPARATOR)]
        if len(values) == len(FIELDS) + 1:
            return {name: value for name, value in zip(FIELDS, values, strict=False) if value not in NO_VALUE}
    return {}


def is_ending(job_id: str) -> bool:
    """Return whether Slurm is ending this job, whose step has ended; False if Slurm does not respond within 3 s."""
    return show_job(job_id, 3.0).get("JobState") in ENDING


def restarts(facts: dict[str, str]) -> int:
    """Return how often Slurm has started the job again, by the fields of `show_job`."""
    return int(facts["Restarts"]) if facts.get("Restarts", "").isdigit() else 0


def script_of(job_id: str) -> str:
    """Return the path of the script that was given to sbatch; it may contain blanks."""
    return _shown(job_id, "%o", 10.0)


def excluded_nodes(job_id: str) -> str:
    """Return the nodes that the job excludes, as Slurm writes them; empty if there are none."""
    nodes = _shown(job_id, "%x", ANSWER_S)
    return "" if nodes in NO_VALUE else nodes


def end_time(job: dict[str, str]) -> str:
    """Return the end of the time limit in seconds since 1970; empty if there is none or it is unknown."""
    return str(_moment(job, "EndTime") or "")


def queue_times(job: dict[str, str]) -> dict[str, int]:
    """Return when a job was submitted, eligible and started, in seconds since 1970, by the fields of `show_job`."""
    columns = ("SubmitTime", "EligibleTime", "StartTime")
    times = {name: _moment(job, column) for name, column in zip(QUEUE_TIMES, columns, strict=True)}
    return {name: at for name, at in times.items() if at is not None}


def _moment(job: dict[str, str], name: str) -> int | None:
    try:
        return int(time.mktime(time.strptime(job.get(name, ""), "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return None


def run_command(command: list[str]) -> Reply:
    """Run a Slurm command for at most ANSWER_S, and return its end with what it printed."""
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, env=clean(), cwd="/"
        )
    except subprocess.TimeoutExpired:
        return Reply(None, "Slurm is not responding")
    except OSError as error:
        return Reply(1, f"{error.filename}: {error.strerror}")
    return Reply(done.returncode, (done.stdout + done.stderr).decode(errors="replace").strip())


def clean() -> dict[str, str]:
    """Return the environment for a new job: without the variables of this one."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
    prefixes = ("SLURM", "SBATCH_", "SRUN_", "SQUEUE_", "SCONTROL_", "PMI", "PMIX", "CLUSTERRUN_", "CR_")
    return {k: v for k, v in os.environ.items() if k in kept or not k.startswith(prefixes)}


def node_names() -> list[str]:
    """Return the names of the allocated nodes, a segment's side by side; raises WorkerError."""
    nodes = _hostnames(os.environ.get("SLURM_JOB_NODELIST", ""), 60.0)
    if not nodes:
        raise WorkerError(
            f"cannot read the node list '{os.environ.get('SLURM_JOB_NODELIST', '')}': is scontrol on the node's PATH?",
            kind="launch-failed",
        )
    return _by_block(nodes) if has_segments() else nodes


def has_segments() -> bool:
    """Return whether Slurm gave the job segments (--segment), each in one block of `topology/block`."""
    size = os.environ.get("SLURM_JOB_SEGMENT_SIZE", "")
    return size.isdecimal() and int(size) > 1


def _by_block(nodes: list[str]) -> list[str]:
    """Return the nodes with those of a block side by side, the first one first; as they are if Slurm does not say.

    Slurm sorts nodes by name, so that neighbours among the ranks would be on different blocks.
    """
    blocks: dict[str, int] = {}  # a node's block, by the place of the block's first node
    for place, node in enumerate(nodes):
        if node in blocks:
            continue
        members = _block_of(node)
        if node not in members:
            return nodes
        blocks |= dict.fromkeys(members, place)
    return sorted(nodes, key=lambda node: blocks[node])


def _block_of(node: str) -> list[str]:
    """Return the nodes of a node's block; of blocks in one another, the smallest."""
    answer = _output(["scontrol", "show", "topology", f"node={node}"], ANSWER_S)
    found = re.findall(r"^BlockName=.* Nodes=(\S+) BlockSize=(\d+)", answer, re.MULTILINE)
    smallest = min(found, key=lambda block: int(block[1]), default=("", ""))
    return _hostnames(smallest[0], ANSWER_S)


def _hostnames(nodes: str, limit: float) -> list[str]:
    return _output(["scontrol", "show", "hostnames", nodes], limit).split() if nodes else []


def draining_nodes() -> list[str]:
    """Return the names of the allocated nodes that are drained, down or failing; none if Slurm is silent for 10 s.

    Nodes that are down or do not respond (`*`) come first.
    """
    nodes = os.environ.get("SLURM_JOB_NODELIST", "")
    lines = _output(["sinfo", "-h", "-N", "-n", nodes, "-o", "%N %T"], 10.0).splitlines()
    states = dict(line.split(" ", 1) for line in sorted({*lines}) if " " in line)  # a line per partition
    bad = [name for name, state in states.items() if state.startswith(("drain", "down", "fail"))]
    return sorted(bad, key=lambda name: not ("down" in states[name] or "*" in states[name]))


def head_address(node: str, nodes: int) -> str:
    """Return the address of the first node for the other nodes; raises WorkerError.

    The name comes first, because certificates and firewalls use it. If it does not resolve, or only to a loopback
    address (Debian's 127.0.1.1) or one that this node does not have (a name that leads to another network), Slurm's
    NodeAddr is next, then the node's first own address. Never localhost: two nodes would form two separate groups.
    """
    others = []
    for address in _addresses(node):
        found = _resolve(address)
        if not found or (nodes > 1 and is_loopback(found)):
            continue
        if is_own(found):
            return address
        others.append(address)
    if others:
        return others[0]  # the rendezvous server says what is wrong with it
    raise WorkerError(
        f"{node} has no address that other nodes can reach: its name and Slurm's NodeAddr"
        " do not resolve to a usable address",
        kind="name-resolution",
        name=node,
    )


def _addresses(node: str) -> Iterator[str]:
    yield node
    found = re.search(r" NodeAddr=(\S+)", _output(["scontrol", "show", "node", "-o", node], 60.0))
    yield found[1] if found else ""
    yield _output(["hostname", "-I"], 60.0).partition(" ")[0].strip()


def cancel_reason(job_id: str, log_start: int) -> tuple[str, str]:
    """Return why a job got SIGTERM: Slurm's reason for its state, and the cause in Slurm's line in the log.

    SIGTERM has no reason. The job's state shows a time limit; Slurm's line in the script's log also shows a requeue, a
    preemption and a node failure. Only this start's part of the log counts, from byte `log_start` on.
    """
    reason = show_job(job_id, 3.0).get("Reason", "")
    found = CANCELLED.findall(log_tail(2, LOG_TAIL, log_start))
    return reason, found[-1].decode() if found else ""


def log_tail(number: int, most: int, begin: int, end: int | None = None) -> bytes:
    """Return the last bytes between two offsets of the log that is this program's file 1 or 2; none if it has none."""
    try:
        with open(f"/proc/self/fd/{number}", "rb") as log:
            end = os.fstat(log.fileno()).st_size if end is None else end
            log.seek(max(begin, end - most))
            return log.read(max(0, min(most, end - log.tell())))
    except OSError:
        return b""


def _shown(job_id: str, field: str, limit: float) -> str:
    """Return one field of squeue for this job."""
    answer = _output(["squeue", "--noheader", "--all", "--states=all", f"--jobs={job_id}", f"--format={field}"], limit)
    return answer.strip("\n")


def _resolve(address: str) -> str:
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]) if address else ""
    except OSError:
        return ""


def _output(command: list[str], limit: float) -> str:
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, env=clean()
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
