"""Ranks over time: the phases of each rank in each launch, and what a step of it takes, as its records have them."""

from __future__ import annotations

import signal
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any

from clusterrun.base.job import JobStatus
from clusterrun.records import progress
from clusterrun.records.progress import RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.run_folder.ends import RankEnd
from clusterrun.run_folder.launches import Launch
from clusterrun.state.launches import launches_of
from clusterrun.state.show import FEW, OF_RANK, slow_json, wait_seconds

LAUNCHES = 20  # the last ones of a run
RANKS = 32  # with a row each
ENDED_BY_OTHERS = 128 + signal.SIGTERM  # the exit status of a rank that the end of another one ended
#: Seconds, and lengths of a step, after which a rank that makes no step is shown to stand still.
STILL_S, STILL_STEPS = 30.0, 5.0
_NAMES = {"script": "running", "": "running"}  # of phases; others are named as they are


def load(run: RunRecord, job: JobStatus, newest: Sequence[RankProgress], now: float) -> dict[str, Any]:
    """Return the ``timeline`` of a run: when it began and ended, a row for each rank, and how many were left out.

    What a rank does in a step, and which are slow, is that of the last launch, whose ranks are ``newest``. None: no
    launch has begun.
    """
    launches = [launch for launch in launches_of(run, job, newest, now) if launch.began is not None]
    shown = launches[-LAUNCHES if run.world_size <= FEW else -1 :]
    if not shown:
        return {"timeline": None, "slow_ranks": []}
    rows: dict[int, dict[str, Any]] = {}
    for launch in shown:
        _add(rows, launch)
    slow = slow_json(list(map(_in_its_steps, newest)))[:RANKS]
    kept = _notable(list(rows.values()), {row["rank"] for row in slow})
    ended = max(launch.ended or 0 for launch in shown)
    return {
        "timeline": {"began": shown[0].began, "ended": ended, "ranks": kept, "left_out": len(rows) - len(kept)},
        "slow_ranks": slow,
    }


def _in_its_steps(rank: RankProgress) -> RankProgress:
    """Return a rank as it was in training. A rank that ends keeps the times of its last steps."""
    return rank._replace(phase="training")


def _add(rows: dict[int, dict[str, Any]], launch: Launch) -> None:
    """Add what the ranks of a launch did; what is known of a rank besides is that of its last launch."""
    ended = {end.rank: end for end in ends.load_ends(launch.folder)}
    for rank in progress.read_ranks(launch.folder):
        end = ended.get(rank.rank, RankEnd(rank.rank))
        before = rows.get(rank.rank, {"spans": []})["spans"]
        rows[rank.rank] = _facts(rank, end) | {"spans": [*before, *spans(launch, rank, end.time or launch.ended)]}


def _facts(rank: RankProgress, end: RankEnd) -> dict[str, Any]:
    gpu = rank.gpu
    return {
        **{name: getattr(rank, name) for name in (*OF_RANK, "memory_gib")},
        "wait_s": wait_seconds(_in_its_steps(rank)),
        "gpu": gpu and gpu._asdict(),
        "status": end.status,
        "error": end.error or None,
    }


def spans(launch: Launch, rank: RankProgress, until: float | None) -> list[dict[str, Any]]:
    """Return the phases of a rank in a launch, each with the moments at which it began and ended, in epoch seconds.

    Records have the beginning of the launch, of a user's script and of the last phase, and the first step; what lies
    between belongs to the phase before.
    """
    if launch.began is None or until is None:
        return []
    moments = _moments(launch.began, rank)
    if _stands_still(rank, until):
        moments["no step"] = rank.stepped
    begun = sorted((max(at, launch.began), name) for name, at in moments.items() if at is not None and at < until)
    return [
        {"phase": name, "began": at, "ended": following}
        for (at, name), (following, _) in pairwise([*begun, (until, "")])
        if following > at
    ]


def _moments(began: float, rank: RankProgress) -> dict[str, float | None]:
    """Return when each phase of a rank began, as far as it is known."""
    moments = {"starting": began, "running": rank.script_since, "training": rank.first_step_at}
    phase = _NAMES.get(rank.phase, rank.phase)
    if rank.since is not None:  # training begins again after each evaluation
        moments[phase] = min(rank.since, moments.get(phase) or rank.since)
    return moments


def _stands_still(rank: RankProgress, until: float) -> bool:
    """Return whether a rank in training made no step for long."""
    if rank.phase != "training" or rank.stepped is None:
        return False
    return until - rank.stepped > max(STILL_S, STILL_STEPS * (rank.step_s or 0.0))


def has_failed(row: Mapping[str, Any]) -> bool:
    """Return whether a rank failed by itself."""
    return row["status"] not in (None, 0, ENDED_BY_OTHERS)


def _notable(rows: Sequence[Mapping[str, Any]], slow: Container[int]) -> list[Mapping[str, Any]]:
    """Return at most ``RANKS`` of the rows, by rank: those that failed, the slow ones, then the first ones."""
    by_interest = sorted(rows, key=lambda row: (not has_failed(row), row["rank"] not in slow, row["rank"]))
    return sorted(by_interest[:RANKS], key=lambda row: int(row["rank"]))
