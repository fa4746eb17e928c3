"""All errors of the commands, that of jobs (WorkerError), and the hint for a word that is perhaps misspelt.

    ClusterrunError                    exit 1
    ├── RequestError                   exit 2   the request is wrong; nothing was written
    │   ├── ConfigError                         a profile or job file is wrong (file and line in the message)
    │   └── TemplateError                       a template does not exist or does not render
    ├── SchedulerError                 exit 3   the scheduler refused or did not respond
    │   ├── Refused                             it refused: a retry would not help
    │   ├── NotDelivered                        the request never reached it: a retry is safe
    │   └── NoScheduler                         Slurm was requested and there is none
    ├── NoSuchJob                      exit 4   no such job, or another user's
    ├── Ambiguous                      exit 75  the request may or may not have taken effect
    └── CommandError                   exit 3   a program failed (carries argv, status, stdout, stderr)

Each carries ``hint``: what to try next, in one line. The command line catches ClusterrunError in one place. It prints
the message, the scheduler's own output and the hint. No other code of the package prints an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LONGEST_DETAIL = 4000  # characters


class ClusterrunError(Exception):
    """An error with a message of one line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        #: the end of a program's output, or ""
        self.detail = _end_of(detail)


def _end_of(output: str) -> str:
    """Return the end of a program's output, after a banner or a flood of words; of a Python traceback its last line."""
    if "Traceback (most recent call last):" in output:
        output = next(line for line in reversed(output.splitlines()) if line.strip())
    return output if len(output) <= _LONGEST_DETAIL else "…" + output[-_LONGEST_DETAIL:]


class WorkerError(Exception):
    """Ends a process of a job with a one-line message and no traceback; no command raises it.

    ``status`` is its exit status: 2 for a bad request, else 1. ``kind`` and ``values`` say the same as data, for the
    end records: ``why/causes/table_recorded.py`` has a sentence for each kind.
    """

    def __init__(self, message: str, status: int = 1, kind: str = "", **values: object) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind or ("refused" if status == 2 else "worker")
        self.values = values


class RequestError(ClusterrunError):
    """The request is wrong; nothing was written."""

    exit_code = 2


class ConfigError(RequestError):
    """A profile or job file is wrong; the message names the file and, where known, the line."""


class TemplateError(RequestError):
    """A template is missing or does not render; the message names the line."""


class SchedulerError(ClusterrunError):
    """The scheduler refused or did not respond."""

    exit_code = 3


class Refused(SchedulerError):
    """The scheduler refused the request, so a retry would not help."""


class NotDelivered(SchedulerError):
    """The request never reached the scheduler, so a retry is safe."""


class NoScheduler(SchedulerError):
    """Slurm was requested, but cannot be used here."""


class NoSuchJob(ClusterrunError):
    """No job has this id, or it belongs to another user."""

    exit_code = 4


class Ambiguous(ClusterrunError):
    """The request may or may not have taken effect; the hint says how to find out.

    ``cut_off`` is True if the connection broke: the request may be sent again once it is known that it did not arrive.
    It is False for an unknown answer, which may be a refusal. ``accepted`` is True if the scheduler accepted the
    request but gave no job id: it is never sent again. ``busy`` is the scheduler's sentence if it made the request wait
    until that was cut off.
    """

    exit_code = 75

    def __init__(
        self, message: str, *, hint: str = "", detail: str = "", cut_off: bool = True, accepted: bool = False,
        busy: str = "",
    ) -> None:  # fmt: skip
        super().__init__(message, hint=hint, detail=detail)
        self.cut_off = cut_off and not accepted
        self.accepted, self.busy = accepted, busy


class CommandError(SchedulerError):
    """A program failed, hung or could not be started.

    ``status`` is its exit status (128+n for a signal), or None if it could not be started or was killed at its
    time limit.
    """

    def __init__(
        self, argv: Sequence[str], *, status: int | None, stdout: str = "", stderr: str = "", timed_out: bool = False
    ) -> None:
        how = "timed out" if timed_out else "could not be started" if status is None else f"exit {status}"
        super().__init__(f"{argv[0]}: {how}", detail=(stderr or stdout).strip())
        self.argv = tuple(argv)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out


def closest(word: str, choices: Iterable[str]) -> str:
    """Return the choice that a word is perhaps a misspelling of, or an empty text."""
    import difflib  # only for a hint

    by_plain = {choice.casefold().replace("_", "-"): choice for choice in choices}
    close = difflib.get_close_matches(word.casefold().replace("_", "-"), by_plain, n=1, cutoff=0.6)
    return by_plain[close[0]] if close else ""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return a hint such as ``did you mean nodes?``, or an empty text."""
    choice = closest(word, choices)
    return f"did you mean {choice}?" if choice else ""


def suggestion(word: str, choices: Iterable[str]) -> str:
    """Return the hint of a job's message, such as `` (did you mean 'nodes'?)``, or an empty text."""
    choice = closest(word, choices)
    return f" (did you mean {choice!r}?)" if choice else ""


def from_source(source: str, what: str) -> str:
    """Return the source of a value in parentheses, for a message; an empty text if ``what`` begins with it."""
    return "" if what.startswith(source) else f" ({source})"
