"""Where the logs of a job are that clusterrun did not submit, by what Slurm tells of it.

Pure functions over the answers of ``scontrol show job`` and ``sacct``. Of a file name scontrol expands %A %a %j %u %x
and leaves what it cannot know before the job runs; for the number of an array's waiting tasks it writes 4294967294
(seen on 22.05).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clusterrun.job import JobId

#: NO_VAL-1, which scontrol writes for the task of tasks that have no record of their own yet
NO_TASK = "4294967294"
_FIELD = re.compile(r"%(?:%|(\d{0,2})([AajJNnstux]))")
_OUT = ("-o", "--output")
_ERR = ("-e", "--error")
#: sbatch's options without a value (man sbatch, 22.05 and 25.05)
_FLAGS = frozenset({
    "-H", "-h", "-I", "-k", "-O", "-Q", "-s", "-v", "-W", "--hold", "--help", "--overcommit", "--quiet",
    "--oversubscribe", "--verbose", "--wait", "--contiguous", "--exclusive", "--get-user-env", "--ignore-pbs",
    "--immediate", "--no-kill", "--no-requeue", "--nohold", "--parsable", "--propagate", "--reboot", "--requeue",
    "--spread-job", "--test-only", "--use-min-nodes", "--usage",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The log files of one job or one task; ``err`` is None where both streams go into ``out``.

    ``waiting`` marks the place of tasks that have no record yet: in it stands ``{task}``. ``user`` owns the job.
    """

    job: JobId
    out: Path
    err: Path | None
    user: str = ""
    waiting: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether all of the names is known."""
        return not any(_FIELD.search(str(path)) for path in (self.out, self.err) if path is not None)

    def of_task(self, task: int) -> Place:
        """The place of one of the tasks that wait."""

        def path(pattern: Path) -> Path:
            return Path(str(pattern).replace("{task}", str(task)))

        err = path(self.err) if self.err is not None else None
        return replace(self, job=replace(self.job, task=task), out=path(self.out), err=err, waiting=False)


def places(blocks: Sequence[Mapping[str, str]]) -> list[Place]:
    """The places in an answer of ``scontrol show job``, in order of tasks; a job without a file has none."""
    found = [place for block in blocks if (place := _place(block)) is not None]
    return sorted(found, key=lambda place: (place.waiting, place.job.task or 0))


def place_of(job: JobId, known: Sequence[Place]) -> Place | None:
    """The place of a job or task; of a task without a record yet, the one that its array's pattern gives."""
    for place in known:
        if not place.waiting and place.job.raw == job.raw and place.job.task == job.task:
            return place
    waiting = next((place for place in known if place.waiting and place.job.raw == job.raw), None)
    return waiting.of_task(job.task) if waiting is not None and job.task is not None else None


def from_submit_line(job: JobId, line: str, workdir: str, user: str, name: str, raw_id: str, host: str) -> Place | None:
    """The place that an sbatch command line gives; None where it does not name one: the script itself may.

    ``raw_id`` is the task's own number, ``host`` the job's first node. A line without --error means both streams in one
    file.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    if not words or Path(words[0]).name != "sbatch":
        return None
    out, err = _option(words, _OUT), _option(words, _ERR)
    if out is None:
        return None  # then the script's own lines decide, and nobody kept them
    fields = _fields(job, raw_id, user, name, host)
    base = Path(workdir or "/")
    return Place(job, base / expand(out, fields), base / expand(err, fields) if err is not None else None, user)


def expand(pattern: str, fields: Mapping[str, str]) -> str:
    """A pattern of sbatch with its ``%x`` filled in, ``%4j`` with zeros; one whose value is not known stays."""

    def fill(match: re.Match[str]) -> str:
        if match[2] is None:
            return "%"
        value = fields.get(match[2], "")
        return (value.zfill(int(match[1])) if match[1] and value.isdigit() else value) or match[0]

    return _FIELD.sub(fill, pattern)


def _place(block: Mapping[str, str]) -> Place | None:
    raw, out, err = block.get("JobId", ""), block.get("StdOut", ""), block.get("StdErr", "")
    array, task = block.get("ArrayJobId", ""), block.get("ArrayTaskId", "")
    if not raw.isdigit() or not out:
        return None
    job = JobId(array or raw, int(task) if task.isdigit() else None)
    waiting = bool(array) and job.task is None
    user = block.get("UserId", "").partition("(")[0]
    fields = _fields(job, raw, user, block.get("JobName", ""), block.get("BatchHost", ""))
    paths = [expand(path, fields) for path in (out, err or out)]
    if waiting:
        paths = [path.replace(NO_TASK, "{task}") for path in paths]
    return Place(job, Path(paths[0]), Path(paths[1]) if paths[1] != paths[0] else None, user, waiting)


def _fields(job: JobId, raw_id: str, user: str, name: str, host: str) -> dict[str, str]:
    """What each letter stands for in a batch script's own files: there node and task are the first (seen on 22.05)."""
    task = "" if job.task is None else str(job.task)
    return {
        "A": job.raw, "a": task or NO_TASK, "j": raw_id, "J": f"{raw_id}.batch", "u": user, "x": name,
        "N": host.partition(".")[0], "n": "0", "t": "0", "s": "batch",
    }  # fmt: skip


def _option(words: Sequence[str], names: tuple[str, str]) -> str | None:
    """The last value of an option in sbatch's words, up to the script: what follows that is the script's own."""
    short, long = names
    found, at = None, 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        takes_next = word not in _FLAGS and (len(word) == 2 if not word.startswith("--") else "=" not in word)
        if word in names and at + 1 < len(words):
            found = words[at + 1]
        elif word.startswith(long + "="):
            found = word[len(long) + 1 :]
        elif word.startswith(short) and not word.startswith("--") and len(word) > 2:
            found = word[2:]
        at += 2 if takes_next else 1
    return found
