"""sbatch: parsers of its answer to a submission, and the estimated start of a job (``--test-only``).

``--test-only`` reads the script from standard input, so nothing is written. slurmctld uses up a job id for each query
and keeps no job. Its estimate assumes that running jobs use their whole time limit, and adds pending jobs of higher
priority roughly (src/slurmctld/job_scheduler.c, _delayed_job_start_time).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from clusterrun.base.errors import Ambiguous, ClusterrunError, NotDelivered, Refused
from clusterrun.base.job import JobId
from clusterrun.scheduler import SlurmCommands, Submission
from clusterrun.scheduler.slurm.values import short
from clusterrun.system.shell import SLURM_TIMEOUT, Completed

# 22.05, 24.11: "Job 5 to start at T using 8 processors on nodes node[1-2] in partition gpu"; of a federation and
# since 25.05 "… at T on cluster C a using …" (src/api/allocate.c); before 17.11 there was no partition.
_ACCEPTED = re.compile(
    r"Job \d+ to start at (?P<at>\S+)(?: on cluster \S+)?(?: a)? using (?P<cpus>\d+) processors on (?:nodes )?"
    r"(?P<nodes>\S+)(?: in partition (?P<partition>\S+))?"
)
_EPOCH = re.compile(r"[1-9][0-9]{0,10}", re.ASCII)
_PREEMPTS = re.compile(r"Preempts: ([0-9,]+)")
_FAILED = "allocation failure: "


class Start(NamedTuple):
    """When and where a job would start; ``at`` in epoch seconds, None if unknown.

    ``preempts`` are the jobs that it would preempt.
    """

    at: int | None
    nodes: str
    partition: str
    preempts: tuple[str, ...] = ()


class No(NamedTuple):
    """Slurm would refuse the job, or did not respond (``is_silence``); ``words`` is its message, or the error."""

    words: str
    is_silence: bool = False


Estimate = Start | No


def estimate_start(
    slurm: SlurmCommands, submission: Submission, script: str, timeout: float = SLURM_TIMEOUT
) -> Estimate:
    """Return when Slurm would start the job; no job is made and nothing is written. Never raises."""
    # the job's environment and not that of a query: in --begin=16:00 the time is the user's own
    env = {**submission.env, "SLURM_TIME_FORMAT": "%s"}
    argv = ["sbatch", "--test-only", *submission.argv]
    reply = slurm.answer(argv, timeout, env=env, cwd=submission.workdir, stdin=script)
    return parse_test_only(reply.stderr, reply.note)


def parse_test_only(stderr: str, note: str) -> Estimate:
    """Parse the answer, which is on standard error; ``note`` is the error in one line, empty if it succeeded."""
    starts = list(_ACCEPTED.finditer(stderr))
    if starts and not note:
        return _start(starts[-1], stderr)
    is_refusal = bool(note and stderr.strip())  # without an error, what does not parse is no answer
    if is_refusal and find_error(stderr, _NETWORK_ERRORS) is None:
        return No(_reason(stderr))
    return No(_reason(stderr) or note or "sbatch --test-only printed nothing", is_silence=True)


def _start(accepted: re.Match[str], stderr: str) -> Start:
    at, preempts = accepted["at"], _PREEMPTS.search(stderr)
    return Start(
        at=int(at) if _EPOCH.fullmatch(at) else None,
        nodes=accepted["nodes"],
        partition=accepted["partition"] or "",
        preempts=tuple(preempts[1].split(",")) if preempts else (),
    )


def _reason(stderr: str) -> str:
    """Return Slurm's reason: what follows ``allocation failure``, else the last line, without sbatch's name.

    The advice to read ``sbatch --help`` is no reason.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith('Try "')]
    final = next((line for line in reversed(lines) if _FAILED in line), lines[-1] if lines else "")
    return short(re.sub(rf"^(sbatch: )?(error: |fatal: )?({_FAILED})?", "", final))


_ID_LINE = re.compile(r"[1-9][0-9]{0,17}(;[A-Za-z0-9_.-]{1,64})?", re.ASCII)


_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")


SbatchError = tuple[str, type[ClusterrunError], str]
"""A message of Slurm when it cannot submit, the kind of error, and a hint."""


_NOT_CONNECTED = "Unable to contact slurm controller (connect failure)"
#: sbatch's error messages, the most specific first. The first group are network errors of ``slurm_strerror``
#: (src/common/slurm_errno.c): only these leave open whether the controller took the job. Any other message after
#: "Batch job submission failed" comes from the controller, so it is a refusal. Seen on 22.05 unless noted.
SBATCH_ERRORS: tuple[SbatchError, ...] = (
    (_NOT_CONNECTED, NotDelivered, "run `scontrol ping`; try again later"),
    *((text, Ambiguous, "") for text in (
        "Unable to contact slurm controller", "Socket timed out on send/recv operation", "send/receive failure",
        "Zero Bytes were transmitted or received", "Transport endpoint is not connected", "Message receive failure",
        "Message send failure", "Connection reset by peer", "Connection timed out", "Resource temporarily unavailable",
    )),
    ("Slurm backup controller in standby mode", NotDelivered, "run `scontrol ping`; try again later"),
    ("Invalid partition name specified", Refused, "see the partitions with `sinfo -s`"),
    ("Invalid account", Refused, "see your accounts with `sacctmgr show assoc user=$USER format=account`"),
    (
        "Invalid qos specification", Refused,
        "see your accounts and QOS with `sacctmgr show assoc user=$USER format=account,qos`",
    ),
    ("Memory specification can not be satisfied", Refused,
         "lower --mem; see the limits with `sinfo -o '%P %m'`"),
    ("Requested node configuration is not available", Refused,
     ("too few nodes have the GPUs, cores or memory that the job requests; compare the request with"
      " `sinfo -o '%P %D %c %m %G'`")),
    ("Requested time limit is invalid", Refused,
         "request less time; see the limits with `sinfo -o '%P %l'`"),
    ("Node count specification invalid", Refused, "request fewer nodes; see the partitions with `sinfo -s`"),
    ("More processors requested than permitted", Refused, "reduce --nodes or --cpus-per-task"),
    (
        "Invalid generic resource (gres) specification", Refused, "see the cluster's GRES names with `sinfo -o '%P %G'`"
    ),
    ("Invalid node name specified", Refused, "see the nodes with `sinfo -N`"),
    ("Invalid feature specification", Refused, "see the features with `sinfo -o '%P %f'`"),
    ("Requested reservation is invalid", Refused, "see the reservations with `scontrol show reservation`"),
    ("Job dependency problem", Refused, "check --dependency: Slurm does not know one of the listed jobs"),
    (
        "Job violates accounting/QOS policy", Refused,
        "the job exceeds a limit of your account or QOS; see `sacctmgr show qos`",
    ),
    ("Batch job submission failed", Refused, "Slurm's reason is on the line above"),
    # errors of sbatch itself, before anything is sent
    ("unrecognized option", Refused, "see `sbatch --help` for the options that --sbatch-arg can pass"),
    ("unrecognised option", Refused, "see `sbatch --help` for the options that --sbatch-arg can pass"),
    ("mutually exclusive", Refused, "keep one of these options, of yours and the profile's"),
    ("Invalid --", Refused, "see `man sbatch` for the option's format"),
    ("Invalid numeric value", Refused, "see `man sbatch` for the option's format"),
    ("Could not establish a configuration source", Refused,
         "no slurm.conf was found; set SLURM_CONF, or use --scheduler local"),
)  # fmt: skip


_AMBIGUOUS_ERRORS = tuple(error for error in SBATCH_ERRORS if error[1] is Ambiguous)
_NETWORK_ERRORS = tuple(error for error in SBATCH_ERRORS if error[1] is not Refused)
#: Rarer ones, for which a retry would not help: the job is looked up, and if it is not found this is a refusal.
_DOUBTFUL = ("Communication connection failure", "Communication shutdown failure", "Protocol authentication error",
             "Unexpected message received", "Unexpected missing socket error", "Insane message length", "Broken pipe",
             "Interrupted system call")  # fmt: skip


def sbatch_id(stdout: str) -> tuple[JobId | None, bool]:
    """Parse the id that ``sbatch --parsable`` printed, and whether it printed nothing else.

    A site's wrapper may print a banner around it, so only a whole line that is an id counts, without colours; two
    different ones count as none. If anything else was printed, the caller looks the id up by the token.
    """
    plain = _ESCAPES.sub("", stdout)
    lines = [line.strip() for line in plain.splitlines()]
    found = dict.fromkeys(line for line in lines if _ID_LINE.fullmatch(line))
    if len(found) != 1:
        return None, False
    text = next(iter(found))
    return JobId.parse(text), stdout.strip() == text


#: What sbatch prints before it tries again by itself, up to 15 times in two minutes (src/sbatch/sbatch.c).
_BUSY = re.compile(r"^sbatch: (?:error: )?((?:Slurm job queue full|Job creation temporarily disabled|"
                   r"Slurm temporarily unable to accept job).*)$", re.MULTILINE)  # fmt: skip


def busy_sentence(stderr: str) -> str:
    """Return sbatch's sentence if the controller made it wait, as one that holds MaxJobCount jobs does, else ""."""
    found = _BUSY.search(stderr)
    return found[1].strip() if found else ""


def sbatch_error(done: Completed) -> ClusterrunError:
    """Return the error of a failed sbatch: refused, not delivered, or (for any unknown message) ambiguous."""
    message = done.stderr.strip() or done.stdout.strip()
    error = _known_error(done)
    _, kind, hint = error or ("", Ambiguous, "")
    if kind is Ambiguous:
        what = "sbatch's output does not show whether the job was submitted"
        return Ambiguous(what, detail=message, cut_off=error is not None)
    what = "Slurm did not receive the request" if kind is NotDelivered else "Slurm refused the job"
    return kind(what, hint=hint, detail=message)


def _known_error(done: Completed) -> SbatchError | None:
    """Return the error that a failed sbatch names, None if its output leaves that open.

    A certain error counts only in sbatch's own lines and from an sbatch that ended by itself, since a banner may
    contain anything. An ambiguous error counts anywhere.
    """
    output = f"{done.stderr}\n{done.stdout}"
    ambiguous = find_error(output.replace(_NOT_CONNECTED, ""), _AMBIGUOUS_ERRORS)
    was_killed = 128 < done.status <= 128 + 64  # its own fatal errors end it with 255
    if ambiguous is not None or was_killed:
        return ambiguous
    own_lines = [line for line in output.splitlines() if "sbatch" in line]
    error = find_error("\n".join(own_lines), SBATCH_ERRORS)
    is_refusal = error is not None and error[1] is Refused
    if is_refusal and any(text in output for text in _DOUBTFUL):
        return None
    return error


def find_error(text: str, errors: Sequence[SbatchError]) -> SbatchError | None:
    """Return the first of these errors that a text contains."""
    return next((error for error in errors if error[0] in text), None)
