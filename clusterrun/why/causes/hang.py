"""Find the rank that did not join a collective, or that the watchdog named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path

from clusterrun.run_folder.ends import NCCL, Hang
from clusterrun.why.causes.evidence import Evidence
from clusterrun.why.causes.flight_recorder import late_ranks
from clusterrun.why.causes.model import Cause, EndFacts, Line, LogFinding, Logs
from clusterrun.why.causes.tracebacks import split_rank

_ENQUEUED = re.compile(
    r"(?:\[PG (?P<group>[^\]]*?) )?Rank (?P<rank>\d+)\].*?[Ll]ast enqueued (?:NCCL )?work: (?P<seq>-?\d+)"
)
_SHOWN = 4  # ranks in a sentence
_LARGEST_WORLD = 1_000_000  # ranks; a record may be damaged
_DEADLOCK = "read what the ranks were waiting for at the lines shown, and in their stacks; each Python thread is there"


def hang_cause(hang: Hang) -> Cause:
    """Return the cause of a launch that the watchdog ended."""
    advice = f"to see where the ranks were waiting, read their stacks: {hang.stacks}" if hang.stacks else ""
    command = "clusterrun submit … --max-restarts 3"
    if not hang.silent:  # a restart would hang again
        advice = _DEADLOCK if hang.stacks else ""
        command = _less_stacks(hang) if hang.stacks else "clusterrun logs JOB -n 50"
    return Cause(
        kind="hang",
        rank=hang.rank,
        node=hang.node,
        sentence=hang.cause,
        place=hang.place,
        evidence=tuple(Line(str(Path(hang.file).with_name(NCCL)), None, None, line) for line in hang.nccl),
        advice=advice,
        command=command,
        source="worker/job/watchdog.py",
    )


def _less_stacks(hang: Hang) -> str:
    """Return the command that shows the stacks of the rank that is named, or of all ranks."""
    folder, _, name = hang.stacks.rpartition("/")
    shown = name if hang.rank is None else name.replace("*", str(hang.rank))
    return f"less {shlex.quote(folder)}/{shown}"


def find_absent_ranks(evidence: Evidence) -> tuple[Sequence[int], str]:
    """Return the ranks that did not join the collective that timed out, and how that is known; none if unknown."""
    behind = evidence.facts.behind
    if behind:
        return sorted(behind), behind[min(behind)]
    hangs = [f for f in evidence.findings if f.kind == "collective-timeout"]
    for ranks, how in _signs_of_absence(hangs, evidence):
        if ranks:
            return ranks, how
    return (), ""


def _signs_of_absence(hangs: Sequence[LogFinding], evidence: Evidence) -> Iterator[tuple[Sequence[int], str]]:
    """Yield the ranks that each sign says are missing, none without the sign; the surest sign comes first."""
    for hang in hangs:
        yield hang.ranks, "according to the barrier's error"
    waiting = {f.rank for f in hangs if f.rank is not None}
    yield _awaited(hangs, waiting), "the other ranks were waiting for its key in the store"
    yield late_ranks(_last_enqueued(evidence.logs)), "the other ranks had called more collectives"
    rest = _few_others(waiting, evidence.facts)
    # in the first collective of two ranks a broken link is as likely: the first report ends both ranks
    if len(rest) < len(waiting) or not none_completed(evidence.logs):
        yield rest, "all other ranks report that they were waiting"
    yield silent_ranks(evidence.facts), "all other ranks reported that they exited"


def _awaited(hangs: Sequence[LogFinding], waiting: Collection[int]) -> list[int]:
    """Return the rank whose key the others await in the store; a waiting one is a number within a smaller group."""
    awaited = {int(f.values["awaited"]) for f in hangs if "awaited" in f.values}
    return [*awaited] if len(awaited) == 1 and awaited.isdisjoint(waiting) else []


def silent_ranks(facts: EndFacts) -> list[int]:
    """Return the ranks without an end record, if they are at most half."""
    return _few_others({end.rank for end in facts.ends}, facts)


def _few_others(ranks: Collection[int], facts: EndFacts) -> list[int]:
    """Return the ranks that are not among these, if they are at most half."""
    if not ranks or facts.world_size > _LARGEST_WORLD:
        return []
    rest = sorted({*range(facts.world_size)} - {*ranks})
    return rest if 2 * len(rest) <= facts.world_size else []


def none_completed(logs: Logs) -> bool:
    """Return whether a watchdog reports that none of its collectives had completed."""
    return any("last completed work: -1" in line.text for line in chain(*logs))


def all_waited(evidence: Evidence) -> bool:
    """Return whether every rank reports that the same collective timed out: no rank was missing."""
    calls = _calls(evidence.findings)
    same = set(calls.values())
    return len(same) == 1 and ("", "") not in same and evidence.facts.world_size == len(calls) > 1


def waiting_calls(findings: Sequence[LogFinding]) -> str:
    """Return in which collective each of a few ranks waited, if not all waited in the same; empty if they did."""
    calls = _calls(findings)
    ops = {op for op, _ in calls.values()}
    if len(calls) > _SHOWN or len(ops) < 2 or "" in ops:
        return ""
    shown = [_waits_in(rank, *calls[rank]) for rank in sorted(calls)]
    return f"the ranks were waiting in different collectives: {', '.join(shown)}"


def _waits_in(rank: int, op: str, number: str) -> str:
    return f"rank {rank} in {op} (number {number})" if number else f"rank {rank} in {op}"


def _calls(findings: Sequence[LogFinding]) -> dict[int, tuple[str, str]]:
    """Return the collective in which each rank waited, and its number; empty texts for what is unknown."""
    calls: dict[int, tuple[str, str]] = {}
    for finding in findings:
        if finding.kind == "collective-timeout" and finding.rank is not None:
            calls.setdefault(finding.rank, (finding.values.get("op", ""), finding.values.get("seq", "")))
    return calls


def spared_ranks(evidence: Evidence) -> str:
    """Return which ranks were probably missing, because all others aborted; empty unless one summary lists them all."""
    summaries = [f.values for f in evidence.findings if "spared" in f.values]
    if len(summaries) != 1 or evidence.facts.world_size not in (0, int(summaries[0]["listed"])):
        return ""
    who = summaries[0]["spared"]
    if not who:
        return ""
    were = "were" if who.startswith("ranks") else "was"
    return f"all ranks but {who} aborted, so {who} {were} probably missing"


def _last_enqueued(logs: Logs) -> dict[int, int]:
    """Return the last collective that each rank's watchdog reports, in the process group with the most reports.

    Collectives and ranks are numbered per process group, so the rank of the line's label is preferred.
    """
    enqueued: dict[str | None, dict[int, int]] = {}
    for line in chain(*logs):
        match = _ENQUEUED.search(line.text) if "ast enqueued" in line.text else None
        if match is not None:
            rank = split_rank(line)[0]
            of_group = enqueued.setdefault(match["group"], {})
            of_group[int(match["rank"]) if rank is None else rank] = int(match["seq"])
    return max(enqueued.values(), key=len, default={})
