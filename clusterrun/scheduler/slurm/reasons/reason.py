"""The types of the tables of reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: The sources of the tables, with the releases that have the reasons.
PAGE = "Slurm 26.05, slurm.schedmd.com/job_reason_codes.html"
SOURCE = "src/common/job_state_reason.c"
OLD_SOURCE = "src/common/slurm_protocol_defs.c"


class Starts(StrEnum):
    """Whether a job with this reason starts, and who has to act."""

    ALONE = "automatically"
    YOU = "only after you take action"
    ADMIN = "only after an administrator takes action"
    NEVER = "never"
    OVER = "again only if it is requeued"  # the reason of an ended job


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limit that a reason names.

    ``owner`` is ``qos`` or ``association``; ``field`` its name in ``scontrol show assoc_mgr``, ``setting`` its name in
    ``sacctmgr``, ``tres`` the resource counted in it, or "". ``least`` is True for a minimum.
    """

    owner: str
    field: str
    setting: str
    tres: str = ""
    least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason: its meaning, whether the job starts, what to do, and the source.

    ``{job}`` in ``action`` stands for the job's id. ``detail`` is what Slurm adds to the reason.
    """

    word: str
    meaning: str
    starts: Starts
    action: str
    source: str = PAGE
    limit: Limit | None = None
    detail: str = ""

    def what_to_do(self, job: str) -> str:
        """Return the action for a job, with its id filled in."""
        return self.action.replace("{job}", job)
