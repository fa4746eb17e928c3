"""sacct: ended jobs, and who cancelled one. Arguments of the commands, and parsers of their output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from clusterrun.base.job import JobId, JobStatus, clean_state, outcome_of
from clusterrun.scheduler.slurm.values import SEP, clusters, parse_int, parse_job_id, query_id
from clusterrun.system.shell import Completed

_LOST = r"\b(?:DOWN|FAIL|NO_RESPOND|NOT_RESPONDING|REBOOT\w*|POWERED_DOWN)|\*"


def ended_argv(job: JobId) -> list[str]:
    """Return the command for the state of one job, which names who cancelled it."""
    return ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}", "--format=JobID,State"]


def parse_canceller(text: str) -> int | None:
    """Parse the user id in ``CANCELLED by 1000`` of the job's newest row; None if there is none."""
    found = re.findall(r"^[^|\n]*\|CANCELLED by (\d{1,10})\s*$", text, re.MULTILINE)
    return int(found[-1]) if found else None


def lost_nodes(nodes: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the names of the nodes that are down or do not respond, from ``scontrol show node``."""
    return [node["NodeName"] for node in nodes if node.get("NodeName") and re.search(_LOST, node.get("State", ""))]


_WHO = ("JobID", "JobIDRaw", "User", "NodeList")
# free text last
NEW = (*_WHO, "JobName", "WorkDir", "StdOut", "StdErr")
OLD = (*_WHO, "JobName", "WorkDir", "SubmitLine")


def files_argv(job: JobId, since: int, columns: Sequence[str], cluster: str = "") -> list[str]:
    """Return the command for a job or a task of any user, since epoch second ``since``."""
    start = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return ["sacct", "--allocations", "--allusers", "--noheader", "--parsable2", f"--delimiter={SEP}",
            *clusters(cluster), f"--jobs={job}", f"--starttime={start}", f"--format={','.join(columns)}"]  # fmt: skip


def parse_files(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """Parse a row per job or task, by column; rows that do not parse are skipped."""
    rows = (line.split(SEP, len(columns) - 1) for line in text.split("\n"))
    return [dict(zip(columns, cells, strict=True)) for cells in rows if len(cells) == len(columns)]


_SACCT = ("JobID", "JobIDRaw", "State", "ExitCode", "User", "Partition", "NodeList", "AllocNodes", "ElapsedRaw",
          "TimelimitRaw", "Submit", "Start", "End", "JobName")  # fmt: skip


def sacct_argv(ids: Sequence[JobId], since: int, cluster: str = "") -> list[str]:
    """Return the command for those ids since epoch second ``since``; without ids, for all jobs of the user."""
    start = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    which = [f"--jobs={','.join(dict.fromkeys(map(query_id, ids)))}", "--allusers"] if ids else []
    # --duplicates: after a controller crash two jobs may have one id, and only the name distinguishes them
    return ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", f"--delimiter={SEP}",
            f"--starttime={start}", f"--format={','.join(_SACCT)}", *which, *clusters(cluster)]  # fmt: skip


def parse_sacct(text: str) -> list[JobStatus]:
    """Parse the jobs, in sacct's order; a row without an end is a job that accounting considers active."""
    jobs = []
    for line in text.split("\n"):
        cells = line.split(SEP, len(_SACCT) - 1)
        found = parse_job_id(cells[0]) if len(cells) == len(_SACCT) else None
        if found is None:
            continue
        _, _, state, code, user, partition, nodes, count, elapsed, limit, submitted, started, ended, name = cells
        by = re.fullmatch(r"CANCELLED by (\d{1,10})", state)
        state = clean_state(state)
        status = exit_status(code)
        jobs.append(
            JobStatus(
                id=found[0],
                tasks=found[1],
                state=state,
                outcome=outcome_of(state, status),
                name=name,
                user=user,
                partition=partition,
                nodes="" if nodes == "None assigned" else nodes,
                node_count=parse_int(count),
                elapsed=parse_int(elapsed),
                time_limit=minutes * 60 if (minutes := parse_int(limit)) is not None else None,
                submitted=parse_int(submitted),
                started=parse_int(started),
                ended=parse_int(ended),
                exit_status=status,
                cancelled_by=int(by[1]) if by else None,
                source="sacct",
            )
        )
    return jobs


def exit_status(code: str) -> int | None:
    """Parse Slurm's ``ExitCode`` (``3:0``, ``0:15``) into a shell's exit status (3, 143); None if it is neither."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", code, re.ASCII)
    if match is None:
        return None
    status, signal = int(match[1]), int(match[2])
    return status or (128 + signal if signal else 0)


Presence = Literal["yes", "silent", "none"]
"""Whether accounting answers; ``silent`` means it is enabled but does not."""


def accounting_argv() -> list[str]:
    """Return a cheap command that shows whether accounting answers."""
    return ["sacct", "-n", "-X", "-P", "--starttime", "now", "-o", "JobID"]


def parse_accounting(answer: Completed) -> Presence:
    """Return ``none`` if accounting is disabled, ``silent`` if it is enabled but did not respond."""
    if answer.status == 0:
        return "yes"
    return "none" if "accounting storage is disabled" in (answer.stderr + answer.stdout).lower() else "silent"
