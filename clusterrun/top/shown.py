"""Values -> the text on the screen. Pure; text of other programs is made safe here."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

from clusterrun.base.series import sparkline
from clusterrun.base.units import plural
from clusterrun.records.progress import MISSED, STEP, USUAL_INTERVAL, Gpu, Metrics, RankProgress
from clusterrun.state import headline
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import find_stragglers, handle, if_known, list_row
from clusterrun.terminal.paint import has_colours, paint
from clusterrun.terminal.plot import plot
from clusterrun.terminal.safe_text import safe_line, safe_text
from clusterrun.top.feeds import Jobs
from clusterrun.top.source import Ranks, key_of

RANK_COLUMNS = ("RANK", "NODE", "PHASE", "STEP", "TOK/S", "GPU", "MEM GiB", "°C", "RSS", "SEEN")
BARS = 16
_LABEL = re.compile(r" *\S+  (?=\S)| +")


def job_rows(jobs: Jobs, now: float) -> dict[str, list[str]]:
    """Return the jobs by key as rows of ``list``; elapsed times advance between two answers."""
    since = now - jobs.at if jobs.at is not None and not jobs.problem else 0.0
    return {
        key: [safe_line(cell) for cell in list_row(state.aged(since))]
        for key, state in zip(keys_of(jobs.states), jobs.states, strict=True)
    }


def rank_rows(ranks: Ranks, now: float, over: bool) -> list[tuple[str, list[str]]]:
    """Return the rows of the ranks by key; ``now`` in seconds since the epoch. A slow rank is marked with its speed."""
    slow = {} if over else {one.rank: speed for one, speed in find_stragglers(ranks.ranks)}
    return [(str(rank.rank), rank_row(rank, now, over, slow.get(rank.rank))) for rank in ranks.ranks]


def rank_row(rank: RankProgress, now: float, over: bool, speed: float | None = None) -> list[str]:
    """Return the row of one rank; ``speed`` is that of a slow one. An unknown value is empty."""
    gpu = rank.gpu or Gpu()
    memory = if_known("{:.1f}", gpu.memory_gib)
    return [
        str(rank.rank),
        safe_line(rank.node),
        safe_line(rank.phase) + if_known(" (slow: {:.2f})", speed),
        if_known("{}", rank.step) + (if_known("/{}", rank.steps) if rank.step is not None else ""),
        if_known("{:,.0f}", rank.tokens_per_second),
        if_known("{:.0f}%", gpu.use),
        memory + (if_known("/{:.0f}", gpu.memory_total_gib) if memory else ""),
        if_known("{:.0f}", gpu.temperature),
        if_known("{:.1f}", rank.memory_gib),
        (age(now - rank.time) if rank.time else "") + (" !" if rank in _silent([rank], now, over) else ""),
    ]


def _silent(ranks: Sequence[RankProgress], now: float, over: bool) -> list[RankProgress]:
    """Return the ranks whose heartbeat is late; none of a job that is over."""
    return [] if over else [rank for rank in ranks if rank.time > 0 and rank.is_silent(now)]


def what_matters(state: RunState, ranks: Ranks, now: float) -> str:
    """Return the job, and what matters about it now."""
    known = [rank for rank in ranks.ranks if rank.time > 0]  # a custom launcher's ranks write no heartbeats
    line = headline.of_job(state.status, ranks.metrics, known, now=now)
    return safe_line(f"{handle(state)} {state.name}: {line}")


def job_line(ranks: Ranks, now: float, over: bool) -> str:
    """Return the figures of one job in a line: its training, what is late in it, and its losses as bars."""
    parts = [f"attempt {ranks.attempt}"] if ranks.attempt > 1 else []
    parts += _step_parts(ranks.metrics)
    if not over:
        parts += _late_parts(ranks, now)
    return "  ".join([*parts, *_loss_parts(ranks)])


def _step_parts(metrics: Metrics | None) -> list[str]:
    return [] if metrics is None else [f"step {metrics.step}{if_known('/{}', metrics.steps)}"]


def _loss_parts(ranks: Ranks) -> list[str]:
    metrics, bars = ranks.metrics, sparkline([loss for _, loss in ranks.losses[0]], BARS)
    if metrics is None:
        return []
    parts = [
        f"{'loss nan' if metrics.is_nan else if_known('loss {:.3f}', metrics.loss)} {bars}".strip(),
        if_known("val {:.3f}", metrics.val_loss),
        if_known("{:,.0f} tokens/s", metrics.tokens_per_second),
    ]
    return list(filter(None, parts))


def loss_chart(name: str, ranks: Ranks, width: int, height: int) -> str:
    """Return the losses of a job as a plot of this size; it needs plotext and two losses."""
    points, over = ranks.losses
    numbers = None if over == STEP else ()
    return "\n".join(plot("loss", {name: points}, x_label=over, xs=numbers, width=width, height=height))


def _late_parts(ranks: Ranks, now: float) -> list[str]:
    """Return what is late in a running job: its steps, the slowest rank."""
    parts = []
    if (since := _seconds_since_step(ranks, now)) is not None:
        parts.append(f"no step for {age(since)}")
    if slow := find_stragglers(ranks.ranks):
        (worst, speed), *others = slow
        more = f" and {len(others)} more" if others else ""
        parts.append(f"slow: rank {worst.rank} on {safe_line(worst.node)} ({speed:.2f}x the median speed){more}")
    return parts


def _seconds_since_step(ranks: Ranks, now: float) -> float | None:
    """Return the seconds since the last step of any rank; None while the next heartbeat may report a newer one."""
    moved = [rank for rank in ranks.ranks if rank.stepped is not None and rank.phase == "training"]
    last = max((rank.stepped for rank in moved if rank.stepped is not None), default=now)
    interval = max((rank.interval or USUAL_INTERVAL for rank in moved), default=USUAL_INTERVAL)
    return now - last if now - last > MISSED * interval else None


def queue_line(jobs: Jobs, now: float) -> str:
    """Return the number of jobs, and the age of the answer; ``now`` in monotonic seconds."""
    if jobs.querying_since is not None and now - jobs.querying_since > 2:
        return f"waiting for the scheduler ({age(now - jobs.querying_since)}) …"
    if jobs.at is None:
        return "no answer yet" if jobs.problem else "loading …"
    return f"{plural(len(jobs.states), 'job')}, {age(now - jobs.at)} ago"


def painted(line: str) -> Text:
    """Return a line with its state, and a command to paste, in colour; it is safe text, without other escapes."""
    return Text.from_ansi(paint(line)) if has_colours(os.environ, is_terminal=True) else Text(line)


def painted_rank(cell: str) -> Text:
    """Return a cell of a rank, in colour if the rank is silent or slow."""
    if not has_colours(os.environ, is_terminal=True):
        return Text(cell)
    if cell.endswith(" !"):
        return Text(cell, "bold red")
    return Text(cell, "yellow" if "(slow: " in cell else "")


def age(seconds: float) -> str:
    """Return a duration in one or two units: ``4s``, ``3m20s``, ``2h05m``, ``3d04h``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def wrapped(text: str, width: int) -> str:
    """Return the text wrapped to a width; continuation lines are indented under the text behind a label."""
    lines = []
    for line in safe_text(text).expandtabs().splitlines():
        label = _LABEL.match(line)
        indent = " " * min(len(label[0]) if label else 0, width // 2)
        lines += textwrap.wrap(
            line, max(width, 10), subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
        ) or [""]  # fmt: skip
    return "\n".join(lines)


def keys_of(states: Sequence[RunState]) -> list[str]:
    """Return the keys of rows, all different."""
    keys: list[str] = []
    for state in states:
        key = key_of(state)
        keys.append(key if key not in keys else f"{key} {state.status.id} {len(keys)}")
    return keys
