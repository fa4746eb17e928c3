"""Queries of a lab's jobs and nodes, and the reset that brings every node back to idle."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Collection, Mapping

from lab import net, procs
from lab.errors import LabError
from lab.spec import LabSpec

_FIT = ("idle", "mixed", "allocated", "completing")


def _output(lab: LabSpec, *argv: str, timeout: float = 60) -> str:
    """Return the command's output, or an empty text when it fails or hangs (as with a controller that was stopped)."""
    try:
        return lab.run(argv, timeout=timeout).stdout
    except subprocess.TimeoutExpired:
        return ""


def parse_job(line: str) -> dict[str, str]:
    """Return the fields of one line of `scontrol show job -o`; a value may hold spaces but no ` Word=`."""
    marks = list(re.finditer(r"(?:^| )([A-Z][\w:/.-]*)=", line))
    ends = [*(mark.start() for mark in marks[1:]), len(line)]
    return {mark[1]: line[mark.end() : end] for mark, end in zip(marks, ends, strict=False)}


def find_job(lab: LabSpec, job_id: str) -> dict[str, str]:
    """Return the job's fields; empty when the controller does not know the job or does not respond."""
    lines = _output(lab, "scontrol", "show", "job", "-o", job_id).splitlines()
    return parse_job(lines[0]) if lines else {}


def wait_job(lab: LabSpec, job_id: str, states: Collection[str], timeout: float) -> dict[str, str]:
    """Wait until the job is in one of these states and return its fields; give up once slurmctld has forgotten it."""
    deadline = time.monotonic() + timeout
    known = False
    while True:
        fields = find_job(lab, job_id)
        if fields.get("JobState") in states:
            return fields
        forgotten = known and not fields and " is UP" in _output(lab, "scontrol", "ping")
        known = known or bool(fields)
        if forgotten or time.monotonic() > deadline:
            seen = {key: fields.get(key) for key in ("JobState", "Reason", "ExitCode", "NodeList")}
            raise LabError(f"job {job_id}: not {' or '.join(states)} within {timeout:g} s, but {seen}")
        time.sleep(0.1)


def node_states(lab: LabSpec) -> dict[str, str]:
    """Each node's state as sinfo prints it (`idle`, `down*`), empty while the controller does not respond."""
    rows = (line.split() for line in _output(lab, "sinfo", "-N", "-h", "-o", "%N %T").splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def nodes_fit(lab: LabSpec) -> bool:
    """Return whether the controller answers and every node is idle or runs jobs."""
    states = node_states(lab)
    return set(states) == set(lab.node_names) and all(state in _FIT for state in states.values())


def job_ids(lab: LabSpec) -> list[str]:
    """Return the ids of all pending and running jobs, an array counted once."""
    ids = _output(lab, "squeue", "-h", "-a", "-o", "%A %F").splitlines()
    return list(dict.fromkeys(line.split()[1] for line in ids if len(line.split()) == 2))


def at_rest(lab: LabSpec) -> bool:
    """Return whether there is no job and every node is idle."""
    states = node_states(lab)
    idle = set(states) == set(lab.node_names) and set(states.values()) == {"idle"}
    return idle and lab.run(["squeue", "-h", "-a", "-o", "%A"]).stdout.strip() == ""


def wait_idle(lab: LabSpec, timeout: float) -> None:
    """Wait until the lab is at rest; the error says which nodes and jobs are not."""
    try:
        procs.wait_until(lambda: at_rest(lab), timeout, f"lab {lab.name} at rest", 0.1)
    except LabError as error:
        raise LabError(f"{error}; nodes {node_states(lab)}, jobs {job_ids(lab)}") from None


def _strays(slurmd: procs.Daemon) -> list[int]:
    """Return the pids in a node's network other than its slurmd: left by jobs whose slurmd was killed."""
    inode = net.inode(slurmd.name)
    return [pid for pid in procs.pids_in_netns(inode) if pid != slurmd.pid] if inode else []


def restore_link(lab: LabSpec, slurmd: procs.Daemon, wake: bool = True) -> None:
    """Put the cable of this slurmd's node back, at full speed.

    Slurm checks a down node only about once a minute; `wake` makes the slurmd register at once.
    """
    if net.restore(lab.claim, lab.node_number(slurmd.name), slurmd.name) and wake:
        slurmd.hangup()


def forget_ended(lab: LabSpec, timeout: float) -> None:
    """Make slurmctld forget each job that has ended, and wait until it has; then it remembers for as long as before."""
    text = lab.conf.read_text(encoding="utf-8")
    try:
        lab.conf.write_text(re.sub(r"(?m)^MinJobAge=.*$", "MinJobAge=2", text), encoding="utf-8")
        lab.run(["scontrol", "reconfigure"])
        procs.wait_until(lambda: not _ended_jobs(lab), timeout, f"lab {lab.name} without ended jobs", 0.5)
    finally:
        lab.conf.write_text(text, encoding="utf-8")
        lab.run(["scontrol", "reconfigure"])


def _ended_jobs(lab: LabSpec) -> list[str]:
    return lab.run(["squeue", "-h", "-a", "-t", "BF,CA,CD,DL,F,NF,OOM,PR,TO", "-o", "%i"]).stdout.split()


def reset(lab: LabSpec, daemons: Mapping[str, procs.Daemon], timeout: float) -> None:
    """Repair links and daemons, end all jobs and their processes, and bring every node back to idle."""
    for node in lab.node_names:
        restore_link(lab, daemons[node])
    for daemon in daemons.values():
        daemon.cont()
        if daemon.state == "dead":
            daemon.start(wait=None if daemon.name in lab.node_names else 30)
    daemons["slurmctld"].wait_ready(timeout)
    _lift_limits(lab)
    if not at_rest(lab):
        _end_jobs(lab, timeout)
    for node in lab.node_names:
        procs.kill_pids(_strays(daemons[node]))


def _end_jobs(lab: LabSpec, timeout: float) -> None:
    """Cancel all jobs and wait until the lab is at rest."""
    if ids := job_ids(lab):
        # Waiting jobs first, or one starts in the room that another leaves; then no grace for those that run.
        for state in ("PENDING", "RUNNING,SUSPENDED"):
            for first in range(0, len(ids), 200):
                lab.run(["scancel", f"--state={state}", *ids[first : first + 200]])
        lab.run(["scancel", "--full", "--signal=KILL", *ids[:200]])
    deadline = time.monotonic() + timeout
    nudged = 0.0
    while not at_rest(lab):
        if time.monotonic() > deadline:
            wait_idle(lab, 0)
        if time.monotonic() - nudged > 2:
            _nudge(lab)
            nudged = time.monotonic()
        time.sleep(0.1)


def _lift_limits(lab: LabSpec) -> None:
    """Delete reservations and open every partition: what a test may have closed."""
    for line in _output(lab, "scontrol", "show", "reservation", "-o").splitlines():
        if name := parse_job(line).get("ReservationName"):
            lab.run(["scontrol", "delete", f"reservation={name}"])
    for line in _output(lab, "sinfo", "-h", "-a", "-o", "%R %a").splitlines():
        name, _, state = line.partition(" ")
        if state != "up":
            lab.run(["scontrol", "update", f"partitionname={name}", "state=up"])


def _nudge(lab: LabSpec) -> None:
    """Cancel what is still queued (a requeue comes back), and free nodes that are down, drained or stuck."""
    if ids := job_ids(lab):
        lab.run(["scancel", *ids[:200]])
    for node, state in node_states(lab).items():
        if any(word in state for word in ("down", "drain", "fail", "maint", "reboot")):
            lab.run(["scontrol", "update", f"nodename={node}", "state=resume"])
