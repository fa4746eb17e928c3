"""Whether a launch hangs, and which rank is the cause: a pure judgement on the progress records of the ranks.

The ranks of one launch advance together, since each waits for the others in a collective. So a launch hangs if no rank
has advanced for longer than the limit of its phase, and the rank that is behind the others is the cause. A rank whose
heartbeat is missing while the others stand still is suspected earlier; what its process does decides (probe.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from ...base.decode import as_number, parse_fields
from ...run_folder.rank_records import SILENT_INTERVALS

SHORTEST, LONGEST = 60.0, 1800.0  # seconds, of the limit of a step
SHORTEST_AT_LAST = 600.0  # the same for a launch that no other follows: a file system may hang for some minutes
STEPS_KEPT = 50
TIMES_SLOWEST = 10  # the limit of a step is so many times the 95th percentile
SILENT_S = 30.0
DELAYED_S, DELAYED_PACES = 15.0, 2  # between two looks: this process was stopped itself, or waited for the file system
STARTING = ("starting", "checking", "joining")  # the join barrier has a limit of its own
#: Seconds without progress in the phases in which no steps are made; a larger --hang-timeout is their limit too.
LIMITS = {
    **dict.fromkeys(STARTING, 1800.0),
    "loading": 36_000.0,  # rank 0 may prepare the data meanwhile
    **dict.fromkeys(("compiling", "evaluating", "saving", "ending"), 3600.0),
}


class RankMark(NamedTuple):
    """How far a rank is, from its progress record.

    `time` is when it wrote, `still` for how long it had not advanced then, in seconds; None if it has no step and no
    collective yet. `first_step` is the first one of this launch, done at `first_step_at`. `collectives` counts those of
    each process group. `gpu_use` is in percent. `is_announced`: it stood still then, and says when it advances.
    """

    rank: int
    time: float
    node: str = ""
    pid: int = 0
    phase: str = ""
    step: int | None = None
    stepped: float | None = None
    collectives: Mapping[str, int] = MappingProxyType({})
    still: float | None = None
    interval: float = 10.0
    gpu_use: float | None = None
    srun_step: str = ""
    first_step: int | None = None
    first_step_at: float | None = None
    is_announced: bool = False

    @classmethod
    def parse(cls, rank: int, document: Mapping[str, Any]) -> RankMark | None:
        """Return the mark of a rank; None if the record has no time. Values of a wrong type count as unknown."""
        values = parse_fields(cls, document)
        if values["time"] is None:
            return None
        counts, gpu, advanced = document.get("collectives"), document.get("gpu"), as_number(document.get("advanced"))
        values |= {
            "rank": rank,
            "pid": values["pid"] or 0,
            "interval": max(0.1, values["interval"] or 10.0),
            "gpu_use": as_number(gpu.get("use")) if isinstance(gpu, dict) else None,
        }
        if isinstance(counts, dict):
            values["collectives"] = {name: count for name, count in counts.items() if isinstance(count, int)}
        if advanced is None:
            return cls(**values)
        return cls(
            **{**values, "still": max(0.0, values["time"] - advanced)}, is_announced=document.get("still") is True
        )


@dataclass(frozen=True)
class Suspicion:
    """Ranks that may hang the launch; `ranks` is empty if none is behind the others.

    `is_silent`: their heartbeats are missing. `seconds` without progress (or heartbeat); `limit`: from then on the
    launch hangs, whatever the processes do. `gpus_busy`: all known GPUs were in use by at least 99 %.
    """

    ranks: tuple[RankMark, ...]
    is_silent: bool
    seconds: float
    limit: float
    gpus_busy: bool = False


class Stall:
    """Judges the launch at every look. `hang_timeout` is the user's limit in seconds, None for the adaptive one.

    `pace` is the usual time between two looks, in seconds.
    `all_silent` is set after a look in which no rank had a heartbeat: then nothing can be judged.
    """

    def __init__(self, hang_timeout: float | None, shortest: float = SHORTEST, pace: float = 0.0) -> None:
        self.all_silent = False
        self._delayed = max(DELAYED_S, DELAYED_PACES * pace)
        self._timeout, self._shortest = hang_timeout, shortest
        self._seen: dict[int, tuple[float, float]] = {}  # rank -> its record's time, when it was first seen
        self._looked = -math.inf
        self._step_times: deque[float] = deque(maxlen=STEPS_KEPT)
        self._stepped: tuple[int, float] | None = None
        self._longest = 0.0  # without progress, since the last step time

    def look(
        self, now: float, marks: Mapping[int, RankMark], has_ended: Callable[[int], bool] = lambda rank: False
    ) -> Suspicion | None:
        """Return who is suspected of hanging the launch, None if nobody is. `now` is in monotonic seconds.

        `marks` are the newest marks by rank; `has_ended` tells whether a rank without a heartbeat recorded its end.
        """
        self._note_heartbeats(now, marks)
        quiet = self._quiet_ranks(now, marks)
        silent = [marks[rank] for rank in quiet if not has_ended(rank)]
        fresh = [mark for rank, mark in marks.items() if rank not in quiet]
        self.all_silent = bool(silent) and not fresh
        if not fresh:
            return None
        known = _standstills(fresh)
        self._note_steps(min(fresh, key=lambda mark: mark.rank), min(known, default=0.0))
        if silent:
            return self._judge_silent(silent, known, now)
        return self._judge_still(fresh) if known else None

    def limit(self, phase: str) -> float:
        """Return the seconds without progress after which a launch with ranks in this phase hangs."""
        if phase in LIMITS:
            return max(LIMITS[phase], self._timeout or 0.0)
        if phase == "training" and not self._step_times:  # compiling
            return max(LONGEST, self._timeout or 0.0)
        if self._timeout is not None:
            return self._timeout
        if phase != "training":
            return LONGEST
        return min(LONGEST, max(self._shortest, TIMES_SLOWEST * self._slowest_step()))

    def _note_heartbeats(self, now: float, marks: Mapping[int, RankMark]) -> None:
        delay = now - self._looked
        if self._looked > 0 and delay > self._delayed:  # nothing was seen meanwhile: it counts for nobody
            self._seen = {rank: (time, since + delay - self._delayed) for rank, (time, since) in self._seen.items()}
        self._looked = now
        for rank, mark in marks.items():
            if self._seen.get(rank, (None, 0.0))[0] != mark.time:
                self._seen[rank] = (mark.time, now)

    def _quiet_ranks(self, now: float, marks: Mapping[int, RankMark]) -> set[int]:
        # imports may keep a rank from writing; once one is past the join barrier, all are
        if all(mark.phase in STARTING for mark in marks.values()):
            return set()
        return {rank for rank, mark in marks.items() if self._silence(rank, now) > self._quiet(mark)}

    def _silence(self, rank: int, now: float) -> float:
        return now - self._seen[rank][1]

    def _quiet(self, mark: RankMark) -> float:
        """Return the seconds without a heartbeat after which a rank is silent."""
        usual = max(SILENT_S, SILENT_INTERVALS * mark.interval)
        return usual if self._timeout is None else min(usual, self._timeout)

    def _note_steps(self, mark: RankMark, still: float) -> None:
        """Keep the mean step time since the last look, or the longest time without progress if that was longer."""
        self._longest = max(self._longest, still)
        if mark.step is None or mark.stepped is None:
            return
        # many steps may be done before the first look
        begin, began = self._stepped or (mark.first_step, mark.first_step_at)
        if begin is not None and began is not None and mark.step > begin:
            mean = (mark.stepped - began) / (mark.step - begin)
            self._step_times.append(max(mean, self._longest))
            self._longest = 0.0
        self._stepped = (mark.step, mark.stepped)

    def _slowest_step(self) -> float:
        """Return the 95th percentile of the last step times, in seconds; 0 if there is none."""
        times = sorted(self._step_times)
        return times[max(0, math.ceil(0.95 * len(times)) - 1)] if times else 0.0

    def _judge_silent(self, silent: list[RankMark], known: list[float], now: float) -> Suspicion | None:
        seconds = min(self._silence(mark.rank, now) for mark in silent)
        # while the others advance, the rank works and only cannot write
        settled = max(self._quiet(silent[0]) / 2, 0.0 if self._timeout else 3 * self._slowest_step())
        if known and min(known) < settled:
            return None
        limit = max(self.limit(mark.phase) for mark in silent)
        return Suspicion(tuple(sorted(silent, key=lambda mark: mark.rank)), True, seconds, limit)

    def _judge_still(self, fresh: list[RankMark]) -> Suspicion | None:
        seconds = min(_standstills(fresh))
        late = behind(fresh)
        limit = max(self.limit(mark.phase) for mark in late or fresh)
        if seconds <= limit:
            return None
        uses = [mark.gpu_use for mark in fresh if mark.gpu_use is not None]
        return Suspicion(tuple(late), False, seconds, limit, bool(uses) and min(uses) >= 99)


def find_unannounced(marks: Collection[RankMark]) -> Suspicion | None:
    """Return the ranks that have not announced that they stand still, if most have; None if that blames nobody.

    Of a job of many ranks, whose heartbeats are rare (progress.py). An unannounced rank may just be working while the
    others wait for it: it is at fault only if its process does not run.
    """
    announced = [mark.still or 0.0 for mark in marks if mark.is_announced]
    if 2 * len(announced) <= len(marks) or len(announced) == len(marks):
        return None
    late = sorted((mark for mark in marks if not mark.is_announced), key=lambda mark: mark.rank)
    return Suspicion(tuple(late), True, min(announced), min(announced))


def _standstills(marks: Iterable[RankMark]) -> list[float]:
    return [mark.still for mark in marks if mark.still is not None]


def behind(marks: Iterable[RankMark]) -> list[RankMark]:
    """Return the ranks that have started fewer collectives than others of a group, else those at an earlier step.

    Empty if these are more than half of the ranks: then they are not the cause. Ranks that wait at the end are ahead.
    """
    known = sorted(marks, key=lambda mark: mark.rank)
    working = [mark for mark in known if mark.phase != "ending"]
    if working and _are_few(working, known):
        return working
    return _behind_in_collectives(working or known) or _behind_in_steps(working or known)


def _are_few(some: Sequence[RankMark], all_marks: Sequence[RankMark]) -> bool:
    return 2 * len(some) <= len(all_marks)


def _behind_in_collectives(marks: Sequence[RankMark]) -> list[RankMark]:
    without = [mark for mark in marks if not mark.collectives]
    late = without if _are_few(without, marks) else []
    for group in {group for mark in marks for group in mark.collectives}:
        late = late + _behind_in_group(group, marks)
    return sorted({mark.rank: mark for mark in late}.values(), key=lambda mark: mark.rank)


def _behind_in_group(group: str, marks: Sequence[RankMark]) -> list[RankMark]:
    members = [mark for mark in marks if group in mark.collectives]
    least = min(mark.collectives[group] for mark in members)
    last = [mark for mark in members if mark.collectives[group] == least]
    return last if _are_few(last, members) else []


def _behind_in_steps(marks: Sequence[RankMark]) -> list[RankMark]:
    steps = [-1 if mark.step is None else mark.step for mark in marks]
    last = [mark for mark, step in zip(marks, steps, strict=True) if step == min(steps)]
    return last if _are_few(last, marks) else []
