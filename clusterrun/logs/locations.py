"""Find the log files of external jobs, which clusterrun did not submit.

Pure functions over the output of ``scontrol show job`` and ``sacct``. In a file name, scontrol expands %A %a %j %u %x
but not the fields that are unknown before the job runs; 26.05 prints (null) in place of %N then. As the task number of
pending tasks it prints 4294967294 (seen on 22.05).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterrun.base.job import JobId, is_job_id

#: NO_VAL-1, which scontrol prints as the number of tasks without their own record
NO_TASK = "4294967294"
#: what scontrol of 26.05 prints as the node's name (%N) before the job has one
NO_HOST = "(null)"
_FIELD = re.compile(r"%(?:%|(\d{0,2})([AajJNnstux]))")
_STREAMS = {"-o": "out", "--output": "out", "-e": "err", "--error": "err"}
#: sbatch options without a value (man sbatch, 22.05 and 25.05)
_FLAGS = frozenset({
    "-H", "-h", "-I", "-k", "-O", "-Q", "-s", "-v", "-W", "--hold", "--help", "--overcommit", "--quiet",
    "--oversubscribe", "--verbose", "--wait", "--contiguous", "--exclusive", "--get-user-env", "--ignore-pbs",
    "--immediate", "--no-kill", "--no-requeue", "--nohold", "--parsable", "--propagate", "--reboot", "--requeue",
    "--spread-job", "--test-only", "--use-min-nodes", "--usage",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The log files of one job or one task. ``err`` is None if both streams go into ``out``. ``user`` owns the job.

    With ``is_pattern``, the paths contain ``{task}`` and are those of all pending tasks.
    """

    job: JobId
    out: Path
    err: Path | None
    user: str = ""
    is_pattern: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether no field of the names is unknown."""
        return not any(_FIELD.search(str(path)) for path in (self.out, self.err) if path is not None)

    def of_task(self, task: int) -> LogLocation:
        """Return the location of one pending task."""

        def path(pattern: Path) -> Path:
            return Path(str(pattern).replace("{task}", str(task)))

        err = path(self.err) if self.err is not None else None
        return replace(self, job=self.job._replace(task=task), out=path(self.out), err=err, is_pattern=False)


def parse_locations(blocks: Sequence[Mapping[str, str]]) -> list[LogLocation]:
    """Return the locations in the output of ``scontrol show job``, in order of tasks; a job without a file has none."""
    found = [location for block in blocks if (location := _parse_block(block)) is not None]
    return sorted(found, key=lambda location: (location.is_pattern, location.job.task or 0))


def find_location(job: JobId, known: Sequence[LogLocation]) -> LogLocation | None:
    """Return the location of a job or task; of a task without its own record, by the pattern of its array."""
    for location in known:
        if not location.is_pattern and location.job.raw == job.raw and location.job.task == job.task:
            return location
    pattern = next((location for location in known if location.is_pattern and location.job.raw == job.raw), None)
    return pattern.of_task(job.task) if pattern is not None and job.task is not None else None


def parse_submit_line(
    job: JobId, line: str, workdir: str, user: str, name: str, raw_id: str, host: str
) -> LogLocation | None:
    """Return the location in an sbatch command line; None without --output, as the script may set it.

    The rest is as for ``locate``.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if not words or Path(words[0]).name != "sbatch":
        return None
    patterns: dict[str, str] = {}
    for option, value in _options(words[1:]):
        if option in _STREAMS:
            patterns[_STREAMS[option]] = value
    if "out" not in patterns:
        return None  # then the script may set it, and Slurm does not keep the script
    return locate(job, patterns["out"], patterns.get("err", ""), workdir, user, name, raw_id, host)


def locate(job: JobId, out: str, err: str, workdir: str, user: str, name: str, raw_id: str, host: str) -> LogLocation:
    """Return the location that sbatch's file patterns give; without ``err``, both streams go into one file.

    ``raw_id`` is the task's own job id, ``host`` the job's first node, "" if unknown.
    """
    task = "" if job.task is None else str(job.task)
    fields = {  # of the batch script, whose node and task are the first ones (seen on 22.05)
        "A": job.raw, "a": task or NO_TASK, "j": raw_id, "J": f"{raw_id}.batch", "u": user, "x": name,
        "N": host.partition(".")[0], "n": "0", "t": "0", "s": "batch",
    }  # fmt: skip
    folder = Path(workdir or "/")
    out_path, err_path = folder / expand(out, fields), folder / expand(err or out, fields)
    return LogLocation(job, out_path, err_path if err_path != out_path else None, user)


def expand(pattern: str, fields: Mapping[str, str]) -> str:
    """Return a file pattern of sbatch with its ``%x`` expanded, ``%4j`` zero-padded; an unknown field stays."""

    def fill(match: re.Match[str]) -> str:
        if match[2] is None:
            return "%"
        value = fields.get(match[2], "")
        return (value.zfill(int(match[1])) if match[1] and value.isdigit() else value) or match[0]

    return _FIELD.sub(fill, pattern)


def _parse_block(block: Mapping[str, str]) -> LogLocation | None:
    raw, out, err = block.get("JobId", ""), block.get("StdOut", ""), block.get("StdErr", "")
    if not is_job_id(raw) or not out:
        return None
    array = block.get("ArrayJobId", "")
    whole = f"{array or raw}_{block.get('ArrayTaskId', '')}"
    job = JobId.parse(whole) if is_job_id(whole) else JobId(array or raw)
    is_pattern = bool(array) and job.task is None
    host = block.get("BatchHost", "")
    if not host:
        out, err = out.replace(NO_HOST, "%N"), err.replace(NO_HOST, "%N")
    user = block.get("UserId", "").partition("(")[0]
    location = locate(job, out, err, "", user, block.get("JobName", ""), raw, host)
    return _as_pattern(location) if is_pattern else location


def _as_pattern(location: LogLocation) -> LogLocation:
    """Return the location of all pending tasks from that of one without its number."""
    out, err = (path and Path(str(path).replace(NO_TASK, "{task}")) for path in (location.out, location.err))
    assert out is not None
    return replace(location, out=out, err=err, is_pattern=True)


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options in the arguments of sbatch that have a value, up to the script and its own arguments."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return
        if word in _FLAGS:
            continue
        option, value = word[:2], word[2:]
        if word.startswith("--"):
            option, _, value = word.partition("=")
        if not value and "=" not in word:
            value = next(rest, "")
        yield option, value
