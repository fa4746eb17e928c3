"""The errors of clusterrun, one drawn tree.

    ClusterrunError                    exit 1
    ├── RequestError                   exit 2   what was asked is wrong; nothing was written
    │   ├── ConfigError                         a profile or job file (file and line in the message)
    │   └── TemplateError                       a template that does not exist or does not render
    ├── SchedulerError                 exit 3   the scheduler said no, or did not answer
    │   ├── Refused                             it answered no: asking again would not help
    │   ├── NotDelivered                        the request never reached it: asking again is safe
    │   └── NoScheduler                         Slurm was asked for and there is none
    ├── NoSuchJob                      exit 4   not known, or not yours to change
    ├── Ambiguous                      exit 75  it may or may not have happened
    └── CommandError                   exit 3   a program we ran failed (carries argv, status, stdout, stderr)

Each carries ``hint``: what to try next, one line. The command line catches the root once and prints
what failed, what the scheduler said, verbatim, and the hint; nothing else in the package prints an error.
"""

from __future__ import annotations

from collections.abc import Sequence


class ClusterrunError(Exception):
    """Anything that clusterrun knows how to say in one line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", said: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        #: what the scheduler printed, word for word, or ""
        self.said = said


class RequestError(ClusterrunError):
    """The request is wrong; nothing was written."""

    exit_code = 2


class ConfigError(RequestError):
    """A profile or job file is wrong; the message names the file and, where known, the line."""


class TemplateError(RequestError):
    """A template is missing or does not render; the message names the line."""


class SchedulerError(ClusterrunError):
    """The scheduler said no or did not answer."""

    exit_code = 3


class Refused(SchedulerError):
    """The scheduler answered no, so asking again would not help."""


class NotDelivered(SchedulerError):
    """The request never reached the scheduler, so asking again is safe."""


class NoScheduler(SchedulerError):
    """Slurm was asked for where no Slurm can be used."""


class NoSuchJob(ClusterrunError):
    """No job of that id is known, or it is not yours to change."""

    exit_code = 4


class Ambiguous(ClusterrunError):
    """It is not known whether the request was carried out; the hint says how to settle it.

    ``wire`` is True where the request was cut off under way, so that it may be sent again once it is known not
    to have arrived; False for words we do not know, which may as well be a refusal. ``yes`` is True where it was
    carried out by all accounts, only not told as what: it is never sent again.
    """

    exit_code = 75

    def __init__(self, message: str, *, hint: str = "", said: str = "", wire: bool = True, yes: bool = False) -> None:
        super().__init__(message, hint=hint, said=said)
        self.wire = wire and not yes
        self.yes = yes


class CommandError(SchedulerError):
    """A program that we ran failed, hung or could not be started.

    ``status`` is its exit status (128+n for a signal), or None where it was not started or was ended
    after ``timeout`` seconds.
    """

    def __init__(
        self, argv: Sequence[str], *, status: int | None, stdout: str = "", stderr: str = "", timed_out: bool = False
    ) -> None:
        how = "did not answer in time" if timed_out else "could not be started" if status is None else f"exit {status}"
        super().__init__(f"{argv[0]}: {how}", said=(stderr or stdout).strip())
        self.argv = tuple(argv)
        self.status = status
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out
