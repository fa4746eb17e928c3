"""Find the rank that did not join a collective, or that the watchdog named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from clusterrun.run_folder.ends import Hang
from clusterrun.why.causes.evidence import Evidence
from clusterrun.why.causes.model import Cause, EndFacts, LogFinding, Logs
from clusterrun.why.causes.tracebacks import split_rank

_ENQUEUED = re.compile(
    r"(?:\[PG (?P<group>[^\]]*?) )?Rank (?P<rank>\d+)\].*?[Ll]ast enqueued (?:NCCL )?work: (?P<seq>-?\d+)"
)
_SHOWN = 4  # ranks in a sentence
_LARGEST_WORLD = 1_000_000  # ranks; a record may be damaged
_DEADLOCK = "read what the ranks were waiting for at the lines shown, and in their stacks; each Python thread is there"


@dataclass(frozen=True, slots=True)
class AbsentRanks:
    """The ranks that did not join, and how that is known."""

    ranks: tuple[int, ...]
    how: str


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
        advice=advice,
        command=command,
        source="worker/job/watchdog.py",
    )


def _less_stacks(hang: Hang) -> str:
    """Return the command that shows the stacks of the rank that is named, or of all ranks."""
    folder, _, name = hang.stacks.rpartition("/")
    mine = name if hang.rank is None else name.replace("*", str(hang.rank))
    return f"less {shlex.quote(folder)}/{mine}"


def find_absent_ranks(evidence: Evidence) -> AbsentRanks | None:
    """Return the ranks that did not join the collective that timed out, None if unknown."""
    facts = evidence.facts
    if facts.behind:
        ranks = tuple(sorted(facts.behind))
        return AbsentRanks(ranks, facts.behind[ranks[0]])
    hangs = [f for f in evidence.findings if f.kind == "collective-timeout"]
    named = _named_ranks(hangs)
    if named is not None:
        return named
    late = _late_ranks(_last_enqueued(evidence.logs))
    if late:
        return AbsentRanks(late, "the other ranks had called more collectives")
    return _ranks_not_waiting(hangs, evidence) or _ranks_not_ended(facts)


def _ranks_not_waiting(hangs: Sequence[LogFinding], evidence: Evidence) -> AbsentRanks | None:
    """Return the ranks that report no time-out, if all others do."""
    facts = evidence.facts
    world = facts.world_size or max(facts.nodes, default=-1) + 1
    waiting = {f.rank for f in hangs if f.rank is not None}
    rest = _minority(world, waiting)
    if not rest or not _silence_counts(rest, waiting, evidence.logs):
        return None
    return AbsentRanks(rest, "all other ranks report that they were waiting")


def _ranks_not_ended(facts: EndFacts) -> AbsentRanks | None:
    """Return the ranks without an end record, if all others have one."""
    world = facts.world_size or max(facts.nodes, default=-1) + 1
    silent = _minority(world, {end.rank for end in facts.ends})
    return AbsentRanks(silent, "all other ranks reported that they exited") if silent else None


def _minority(world: int, others: Collection[int]) -> tuple[int, ...]:
    """Return the ranks that are not among the others, if they are few; none if there are no others."""
    if not others or world > _LARGEST_WORLD:
        return ()
    rest = tuple(rank for rank in range(world) if rank not in others)
    return rest if len(rest) <= max(1, world // 2) else ()


def _silence_counts(rest: Sequence[int], waiting: Collection[int], logs: Logs) -> bool:
    """Return whether ranks that report no timeout were probably missing.

    In the first collective of two ranks a broken link is as likely: the first report ends both ranks.
    """
    return len(rest) < len(waiting) or not none_completed(logs)


def none_completed(logs: Logs) -> bool:
    """Return whether a watchdog reports that none of its collectives had completed."""
    return any("last completed work: -1" in line.text for lines in logs for line in lines)


def all_waited(evidence: Evidence) -> bool:
    """Return whether every rank reports that the same collective timed out: no rank was missing."""
    hangs = [f for f in evidence.findings if _names_its_call(f) and f.rank is not None]
    calls = {(f.values["op"], f.values["seq"]) for f in hangs}
    return len(calls) == 1 and evidence.facts.world_size == len({f.rank for f in hangs}) > 1


def _names_its_call(finding: LogFinding) -> bool:
    return finding.kind == "collective-timeout" and "seq" in finding.values


def waiting_calls(findings: Sequence[LogFinding]) -> str:
    """Return in which collective each of a few ranks waited, if not all waited in the same; empty if they did."""
    calls = {f.rank: f for f in reversed(findings) if f.kind == "collective-timeout" and f.rank is not None}
    ops = {calls[rank].values.get("op", "") for rank in calls}
    if len(calls) > _SHOWN or len(ops) < 2 or "" in ops:
        return ""
    shown = [_waits_in(rank, calls[rank]) for rank in sorted(calls)]
    return f"the ranks were waiting in different collectives: {', '.join(shown)}"


def _waits_in(rank: int, call: LogFinding) -> str:
    number = f" (number {call.values['seq']})" if "seq" in call.values else ""
    return f"rank {rank} in {call.values['op']}{number}"


def spared_ranks(evidence: Evidence) -> str:
    """Return which ranks were probably missing, because all others aborted; empty unless one summary lists them all."""
    summaries = [f.values for f in evidence.findings if "spared" in f.values]
    if len(summaries) != 1 or evidence.facts.world_size not in (None, int(summaries[0]["listed"])):
        return ""
    who = summaries[0]["spared"]
    were = "were" if who.startswith("ranks") else "was"
    return f"all ranks but {who} aborted, so {who} {were} probably missing" if who else ""


def _named_ranks(hangs: Sequence[LogFinding]) -> AbsentRanks | None:
    """Return the ranks that a monitored barrier names, or the one whose key the others awaited in the store."""
    named = next((f for f in hangs if f.ranks), None)
    if named is not None:
        return AbsentRanks(named.ranks, "according to the barrier's error")
    awaited = {int(f.values["awaited"]) for f in hangs if "awaited" in f.values}
    if len(awaited) == 1 and not awaited & {f.rank for f in hangs}:  # else a number within a smaller group
        return AbsentRanks(tuple(awaited), "the other ranks were waiting for its key in the store")
    return None


def _last_enqueued(logs: Logs) -> dict[int, int]:
    """Return the last collective that each rank's watchdog reports, in the process group with the most reports.

    Collectives and ranks are numbered per process group, so the rank of the line's label is preferred.
    """
    seen: dict[str, dict[int, int]] = {}
    for lines in logs:
        for line in lines:
            if "ast enqueued" not in line.text:
                continue
            rank, text = split_rank(line)
            match = _ENQUEUED.search(text)
            if match is not None:
                who = rank if rank is not None else int(match["rank"])
                seen.setdefault(match["group"] or "", {})[who] = int(match["seq"])
    return max(seen.values(), key=len, default={})


def _late_ranks(seen: dict[int, int]) -> tuple[int, ...]:
    """Return the ranks behind the others, if they are the minority."""
    ranks = tuple(sorted(rank for rank, seq in seen.items() if seq == min(seen.values())))
    return ranks if 2 * len(ranks) < len(seen) or (len(seen) == 2 and len(ranks) == 1) else ()
