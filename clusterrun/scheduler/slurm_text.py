"""What we ask Slurm and what it answers, as pairs of pure functions: argv out, text in.

Only the text formats that are the same on 22.05, 24.11 and 26.05 are used, never ``--json``, whose shape
changes between versions. A line that does not parse is left out, never fatal: other people's job names may
hold anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from clusterrun.errors import Ambiguous, ClusterrunError, NotDelivered, Refused
from clusterrun.job import JobId, JobStatus, clean_state, outcome_of
from clusterrun.shell import Completed

SEP = "\x1f"
# free text last, and the name after the path: a name is the likelier to hold anything at all
_SQUEUE = ("%i", "%A", "%T", "%r", "%u", "%P", "%N", "%D", "%M", "%l", "%V", "%S", "%e", "%o", "%j")
_SACCT = ("JobID", "JobIDRaw", "State", "ExitCode", "User", "Partition", "NodeList", "AllocNodes", "ElapsedRaw",
          "TimelimitRaw", "Submit", "Start", "End", "JobName")  # fmt: skip
_ID_LINE = re.compile(r"[1-9][0-9]{0,17}(;[A-Za-z0-9_.-]{1,64})?", re.ASCII)
_ID = re.compile(r"(\d{1,18})(?:_(\d{1,9})|_\[(.*)|\+(\d{1,9}))?", re.ASCII)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")


T = TypeVar("T")


class _Known(dict[str, T]):
    """What a function makes of a text, kept."""

    def __init__(self, read: Callable[[str], T]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: str) -> T:
        self[text] = self._read(text)
        return self[text]


# -- squeue --------------------------------------------------------------------------------------------------------


def squeue_argv(ids: Sequence[JobId] | None, cluster: str = "") -> list[str]:
    """One squeue for all of my jobs, or for those ids, finished ones that it still holds included."""
    who = ["--me"] if ids is None else [f"--jobs={','.join(dict.fromkeys(map(_asked, ids)))}"]
    # a row for each waiting task, where one was asked for: else they share the row of the array
    alone = ["--array"] if any(i.task is not None for i in ids or ()) else []
    where = [f"--clusters={cluster}"] if cluster else []
    return ["squeue", "--noheader", "--states=all", *who, *alone, *where, f"--format={SEP.join(_SQUEUE)}"]


def parse_squeue(text: str) -> list[JobStatus]:
    """The jobs of squeue's answer; tasks that wait share a row: the array's id, and ``tasks`` names them."""
    jobs = []
    # an array's ten thousand tasks say the same few things: each is read once
    seconds, words = _Known(duration), _Known(clean_state)
    for line in text.split("\n"):
        cells = line.split(SEP, len(_SQUEUE) - 1)
        found = _job_id(cells[0]) if len(cells) == len(_SQUEUE) else None
        if found is None:
            continue
        _, _, state, reason, user, partition, nodes, count, elapsed, limit, submitted, started, ended, script, name = (
            cells
        )
        state = words[state]
        outcome = outcome_of(state)
        jobs.append(
            JobStatus(
                id=found[0],
                tasks=found[1],
                state=state,
                outcome=outcome,
                reason="" if reason == "None" else reason,
                name=name,
                user=user,
                partition=partition,
                nodes=nodes,
                node_count=_number(count),
                elapsed=seconds[elapsed],
                time_limit=seconds[limit],
                submitted=_number(submitted),
                started=_number(started),
                ended=_number(ended) if outcome != "running" else None,
                script=script,
                source="squeue",
            )
        )
    return jobs


# -- sacct ---------------------------------------------------------------------------------------------------------


def sacct_argv(ids: Sequence[JobId], since: int, cluster: str = "") -> list[str]:
    """One sacct for those ids from epoch second ``since`` on; without ids, for all of my jobs."""
    start = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    which = [f"--jobs={','.join(dict.fromkeys(map(_asked, ids)))}", "--allusers"] if ids else []
    where = [f"--clusters={cluster}"] if cluster else []
    # --duplicates: after a controller crash one id may stand for two jobs, and only the name tells them apart
    return ["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", f"--delimiter={SEP}",
            f"--starttime={start}", f"--format={','.join(_SACCT)}", *which, *where]  # fmt: skip


def parse_sacct(text: str) -> list[JobStatus]:
    """The jobs of sacct's answer, in its order; a row without an end is one that accounting believes open."""
    jobs = []
    for line in text.split("\n"):
        cells = line.split(SEP, len(_SACCT) - 1)
        found = _job_id(cells[0]) if len(cells) == len(_SACCT) else None
        if found is None:
            continue
        _, _, state, code, user, partition, nodes, count, elapsed, limit, submitted, started, ended, name = cells
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
                node_count=_number(count),
                elapsed=_number(elapsed),
                time_limit=minutes * 60 if (minutes := _number(limit)) is not None else None,
                submitted=_number(submitted),
                started=_number(started),
                ended=_number(ended),
                exit_status=status,
                source="sacct",
            )
        )
    return jobs


def exit_status(code: str) -> int | None:
    """Slurm's ``ExitCode`` (``3:0``, ``0:15``) as a shell would say it: 3, 143; None where it is neither."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", code, re.ASCII)
    if match is None:
        return None
    status, signal = int(match[1]), int(match[2])
    return status or (128 + signal if signal else 0)


# -- sbatch --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """A text that Slurm says when it cannot submit, what kind of answer that is, and what to try."""

    text: str
    kind: type[ClusterrunError]
    hint: str


#: What sbatch says on failure, most particular first. The first group are texts of ``slurm_strerror`` for errors of
#: the wire (src/common/slurm_errno.c): they alone leave open whether the controller took the job. Any other answer
#: behind "Batch job submission failed" comes from the controller, so it is a refusal. Seen on 22.05 unless said.
SAYINGS: tuple[Said, ...] = (
    Said("Unable to contact slurm controller (connect failure)", NotDelivered, "ask `scontrol ping`; try again later"),
    Said("Unable to contact slurm controller", Ambiguous, ""),
    Said("Socket timed out on send/recv operation", Ambiguous, ""),
    Said("send/receive failure", Ambiguous, ""),
    Said("Zero Bytes were transmitted or received", Ambiguous, ""),
    Said("Transport endpoint is not connected", Ambiguous, ""),
    Said("Message receive failure", Ambiguous, ""),
    Said("Message send failure", Ambiguous, ""),
    Said("Connection reset by peer", Ambiguous, ""),
    Said("Connection timed out", Ambiguous, ""),
    Said("Resource temporarily unavailable", Ambiguous, ""),
    Said("Slurm backup controller in standby mode", NotDelivered, "ask `scontrol ping`; try again later"),
    Said("Invalid partition name specified", Refused, "see the partitions with `sinfo -s`"),
    Said("Invalid account", Refused, "see yours with `sacctmgr show assoc user=$USER format=account`"),
    Said("Invalid qos specification", Refused, "see yours with `sacctmgr show assoc user=$USER format=account,qos`"),
    Said("Memory specification can not be satisfied", Refused, "ask for less --mem: see `sinfo -o '%P %m'`"),
    Said("Requested node configuration is not available", Refused,
         "no node has that many GPUs, cores or that much memory: compare with `sinfo -o '%P %D %c %m %G'`"),
    Said("Requested time limit is invalid", Refused, "the partition allows less: see `sinfo -o '%P %l'`"),
    Said("Node count specification invalid", Refused, "the partition has fewer nodes: see `sinfo -s`"),
    Said("More processors requested than permitted", Refused, "ask for fewer --nodes, ranks or --cpus-per-task"),
    Said("Invalid generic resource (gres) specification", Refused, "see the cluster's names with `sinfo -o '%P %G'`"),
    Said("Invalid node name specified", Refused, "see the nodes with `sinfo -N`"),
    Said("Invalid feature specification", Refused, "see the features with `sinfo -o '%P %f'`"),
    Said("Requested reservation is invalid", Refused, "see `scontrol show reservation`"),
    Said("Job dependency problem", Refused, "the dependency names a job that Slurm does not know"),
    Said("Job violates accounting/QOS policy", Refused, "a limit of your account or QOS: see `sacctmgr show qos`"),
    Said("Batch job submission failed", Refused, "Slurm said no; the line above is its reason"),
    # said by sbatch itself, before anything is sent
    Said("unrecognized option", Refused, "see `sbatch --help` for what --sbatch-arg may pass"),
    Said("unrecognised option", Refused, "see `sbatch --help` for what --sbatch-arg may pass"),
    Said("Invalid --", Refused, "see `man sbatch` for the option's form"),
    Said("Invalid numeric value", Refused, "see `man sbatch` for the option's form"),
    Said("Could not establish a configuration source", Refused,
         "no slurm.conf was found: set SLURM_CONF, or use --scheduler local"),
)  # fmt: skip


#: More of them, rarer, for which asking again would not help: looked up, then taken for a refusal.
_DOUBTFUL = ("Communication connection failure", "Communication shutdown failure", "Protocol authentication error",
             "Unexpected message received", "Unexpected missing socket error", "Insane message length", "Broken pipe",
             "Interrupted system call")  # fmt: skip
_NOT_CONNECTED = "Unable to contact slurm controller (connect failure)"


def sbatch_id(stdout: str) -> tuple[JobId | None, bool]:
    """The id that ``sbatch --parsable`` printed, and whether it printed nothing else.

    A site's wrapper may print a banner around it, so only a whole line that is an id counts, colours aside;
    two different ones are none. With anything else printed, the caller looks the id up by the token.
    """
    plain = _ESCAPES.sub("", stdout)
    lines = [line.strip() for line in plain.splitlines()]
    found = dict.fromkeys(line for line in lines if _ID_LINE.fullmatch(line))
    if len(found) != 1:
        return None, False
    text = next(iter(found))
    return JobId.parse(text), stdout.strip() == text


def sbatch_error(done: Completed) -> ClusterrunError:
    """What a failed sbatch means: refused, not delivered, or (every text we do not know) ambiguous.

    A certain answer is believed only in sbatch's own lines and from an sbatch that ended by itself: a banner may say
    anything. Doubt is believed from anywhere.
    """
    words = f"{done.stderr}\n{done.stdout}"
    said = _tail(done.stderr.strip() or done.stdout.strip())
    doubts = [s for s in SAYINGS if s.kind is Ambiguous and s.text in words.replace(_NOT_CONNECTED, "")]
    killed = 128 < done.status <= 128 + 64  # its own fatal errors end it with 255
    own = "\n".join(line for line in words.splitlines() if "sbatch" in line and not killed)
    known = next(iter(doubts), None) or next((s for s in SAYINGS if s.text in own), None)
    if known and known.kind is Refused and any(text in words for text in _DOUBTFUL):
        known = None
    if known is None or known.kind is Ambiguous:
        return Ambiguous("sbatch did not say whether it submitted the job", said=said, wire=known is not None)
    what = "Slurm did not get the request" if known.kind is NotDelivered else "Slurm refused the job"
    return known.kind(what, hint=known.hint, said=said)


# -- scancel -------------------------------------------------------------------------------------------------------


def scancel_argv(ids: Sequence[JobId], cluster: str = "") -> list[str]:
    """One scancel for all of those ids."""
    where = [f"--clusters={cluster}"] if cluster else []
    return ["scancel", *where, "--", *(str(i) for i in ids)]


def parse_scancel(stderr: str) -> dict[str, str]:
    """Slurm's word on each id it would not cancel; it says nothing at all of an id it does not know."""
    pattern = re.compile(r"job id ([0-9_+]+):? (.*)")
    return {m[1]: m[2] for line in stderr.splitlines() if (m := pattern.search(line))}


# -- small readings ------------------------------------------------------------------------------------------------


def duration(text: str) -> int | None:
    """Seconds of ``D-HH:MM:SS`` and its shorter forms; None for UNLIMITED, INVALID and the like."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _asked(id: JobId) -> str:
    """An id as squeue and sacct are asked for it: an array's task, or the whole submission."""
    return id.base if id.task is None else f"{id.base}_{id.task}"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _job_id(text: str) -> tuple[JobId, str] | None:
    """An id as squeue and sacct write it, and the tasks in its brackets: ``123_[0-9%2]`` is (123, ``0-9%2``)."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        return None
    task, part, several = match[2], match[4], match[3] or ""
    if several and not several.endswith("]"):
        several += "..."  # cut off: more tasks than it names
    return JobId(match[1], int(task) if task else None, int(part) if part else None), several.removesuffix("]")


def _tail(text: str, limit: int = 2000) -> str:
    """The end of a long answer: Slurm's own words come last, after any banner."""
    return text if len(text) <= limit else "…" + text[-limit:]
