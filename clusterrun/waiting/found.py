"""What a look at one side of a waiting job has found: sentences, and the commands that would help."""

from __future__ import annotations

from dataclasses import dataclass

from clusterrun.reasons import Starts


@dataclass(frozen=True, slots=True)
class Found:
    """``here`` is what the reason means for this job, a sentence each; ``do`` are commands, or advice, for it.

    ``starts`` is set where this job's case is not the reason's usual one; ``unseen`` is what could not be seen.
    """

    here: tuple[str, ...] = ()
    do: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    starts: Starts | None = None

    def __add__(self, other: Found) -> Found:
        return Found(
            self.here + other.here, self.do + other.do, self.unseen + other.unseen, self.starts or other.starts
        )
