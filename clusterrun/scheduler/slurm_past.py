"""What accounting kept of where a job's output went, for a job that the controller has forgotten: argv out, text in.

From 24.11 on sacct has StdOut and StdErr; before, the sbatch line is all there is (22.05).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from clusterrun.job import JobId

SEP = "\x1f"
_WHO = ("JobID", "JobIDRaw", "User", "NodeList")
# free text last
NEW = (*_WHO, "JobName", "WorkDir", "StdOut", "StdErr")
OLD = (*_WHO, "JobName", "WorkDir", "SubmitLine")


def files_argv(job: JobId, since: int, columns: Sequence[str], cluster: str = "") -> list[str]:
    """sacct for a job or a task, whoever's it is, from epoch second ``since`` on."""
    start = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    where = [f"--clusters={cluster}"] if cluster else []
    return ["sacct", "--allocations", "--allusers", "--noheader", "--parsable2", f"--delimiter={SEP}", *where,
            f"--jobs={job}", f"--starttime={start}", f"--format={','.join(columns)}"]  # fmt: skip


def parse_files(text: str, columns: Sequence[str]) -> list[dict[str, str]]:
    """A row a job or task, by column; rows that do not parse are left out."""
    rows = (line.split(SEP, len(columns) - 1) for line in text.split("\n"))
    return [dict(zip(columns, cells, strict=True)) for cells in rows if len(cells) == len(columns)]
