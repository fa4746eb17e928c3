"""Load what a run recorded about its end: the first failure, the ranks' end records, the stalled ranks."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobStatus, Outcome
from clusterrun.logs.files import LogFile
from clusterrun.records import end_records, progress, run_record
from clusterrun.records.progress import RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, launches
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import canceller
from clusterrun.why.causes.flight_recorder import LARGEST, Reached, ranks_behind, read_dump
from clusterrun.why.causes.model import EndFacts

_DUMP = re.compile(r"flight_recorder_(\d{1,7})")
_DUMPS_READ = 256 * 1024 * 1024  # bytes, of all flight recorder dumps


def load_end_facts(state: RunState) -> EndFacts:
    """Return the facts of a job's end; without a run record they are its state and exit status only."""
    status, run = state.status, state.record
    facts = EndFacts(state=status.state, exit_status=status.exit_status, reason=status.reason)
    if run is None:
        return facts
    facts = replace(
        facts, world_size=run.world_size, cancelled_by=canceller(run, status), other_owner=_other_owner(run, status)
    )
    folders = run_record.attempts(run, status.id.task)
    return _with_attempt(facts, run, status, folders[-1]) if folders else facts


def _other_owner(run: RunRecord, status: JobStatus) -> str:
    """Return the job that has claimed the run if it is not this one; empty if it is, or if that is not known."""
    claim = run_record.claim_of(run)
    if claim is None or claim.job == status.id.base:
        return ""
    return claim.job


def _with_attempt(facts: EndFacts, run: RunRecord, status: JobStatus, folder: Path) -> EndFacts:
    """Return the facts with what the job recorded in the folder of its last launch."""
    end = ends.load_job_end(folder) or ends.JobEnd()
    ranks = progress.read_ranks(folder)
    is_done = status.outcome is Outcome.DONE
    return replace(
        facts,
        due=end.due,
        nodes={entry["rank"]: entry["node"] for entry in progress.started_ranks(folder)},
        failure=ends.find_failure(folder),
        launch=launches.find_failure(folder),
        stop=ends.find_stop(folder),
        unmarked=end.unmarked or 0,
        hang=ends.find_hang(folder),
        ends=ends.load_ends(folder),
        behind=ranks_behind(_load_dumps(folder)) or stalled_ranks(ranks),
        separate=ends.find_separate(folder) if end_records.were_separate(run, folder) else None,
        own_worlds="" if is_done else progress.separate_worlds(run, ranks, ended=True),
        limits=launches.find_limits(folder),
    )


def stalled_ranks(ranks: Iterable[RankProgress]) -> dict[int, str]:
    """Return the ranks, at most half, that were silent or at an earlier step at the others' last heartbeats."""
    records = list(ranks)
    if not records:
        return {}
    for stalled in (_silent_ranks(records), _late_ranks(records)):
        if 0 < 2 * len(stalled) <= len(records):
            return stalled
    return {}


def _silent_ranks(ranks: Sequence[RankProgress]) -> dict[int, str]:
    newest = max(one.time for one in ranks)
    silent = {}
    for one in ranks:
        earlier = newest - one.time
        if earlier > 3 * (one.interval or 10):
            silent[one.rank] = f"rank {one.rank} sent its last heartbeat {earlier:.0f} s before the other ranks"
            if one.step is not None:
                silent[one.rank] += f", at step {one.step}"
    return silent


def _late_ranks(ranks: Sequence[RankProgress]) -> dict[int, str]:
    """Return the ranks at an earlier step than most; none if a step is not known."""
    steps = {one.rank: one.step for one in ranks if one.step is not None}
    if len(steps) < len(ranks):
        return {}
    usual, late = statistics.mode(steps.values()), {}
    for rank, step in steps.items():
        if step < usual:
            late[rank] = f"rank {rank} reached only step {step}; the others reached step {usual}"
    return late


def _load_dumps(folder: Path) -> dict[int, Reached]:
    """Return the flight recorder dumps in an attempt's folder by rank, up to a total size."""
    found: dict[int, Reached] = {}
    left = _DUMPS_READ
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return {}
    for path in paths:
        match = _DUMP.fullmatch(path.name)
        if match is None:
            continue
        try:
            with closing(LogFile(path)) as file:  # a plain file, no link
                size = file.size()
                if size > min(left, LARGEST):
                    continue
                reached = read_dump(b"".join(file.blocks(0, size)))
        except (OSError, ClusterrunError):
            continue
        left -= size
        if reached is not None:
            found[int(match[1])] = reached
    return found
