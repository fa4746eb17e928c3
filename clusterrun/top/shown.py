"""Values -> the words on the screen. Pure; every foreign text is made safe here."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from clusterrun.records.progress import MISSED, USUAL_INTERVAL, Gpu, RankProgress
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import handle, list_row
from clusterrun.terminal.safe_text import safe_line, safe_text
from clusterrun.terminal.units import plural
from clusterrun.top.feeds import Jobs
from clusterrun.top.source import Ranks, key_of

RANK_COLUMNS = ("RANK", "NODE", "PHASE", "STEP", "TOK/S", "GPU", "MEM GiB", "°C", "RSS", "SAID")
_LABEL = re.compile(r" *\S+  (?=\S)| +")


def job_rows(jobs: Jobs, now: float) -> dict[str, list[str]]:
    """The jobs by key, as ``list`` shows them; the time of one that runs goes on between two answers."""
    since = now - jobs.at if jobs.at is not None and not jobs.trouble else 0.0
    return {
        key: [safe_line(cell) for cell in list_row(state.aged(since))]
        for key, state in zip(keys_of(jobs.states), jobs.states, strict=True)
    }


def rank_row(rank: RankProgress, now: float, over: bool) -> list[str]:
    """One rank; ``now`` in seconds since the epoch. A figure that nobody told is left empty."""
    gpu = rank.gpu or Gpu()
    step = "" if rank.step is None else f"{rank.step}/{rank.steps}" if rank.steps is not None else str(rank.step)
    total = f"/{gpu.memory_total_gib:.0f}" if gpu.memory_total_gib is not None else ""
    said = "" if not rank.time else age(now - rank.time)
    return [
        str(rank.rank),
        safe_line(rank.node),
        safe_line(rank.phase),
        step,
        "" if rank.tokens_per_second is None else f"{rank.tokens_per_second:,.0f}",
        "" if gpu.use is None else f"{gpu.use:.0f}%",
        "" if gpu.memory_gib is None else f"{gpu.memory_gib:.1f}{total}",
        "" if gpu.temperature is None else f"{gpu.temperature:.0f}",
        "" if rank.memory_gib is None else f"{rank.memory_gib:.1f}",
        said + (" !" if not over and rank.time > 0 and rank.is_silent(now) else ""),
    ]


def job_line(state: RunState | None, told: Ranks, now: float, over: bool) -> str:
    """One job in a line: its state, how far its training is, and which ranks are silent."""
    if state is None:
        return ""
    parts = [handle(state), safe_line(state.record.name if state.record else state.status.name), state.status.state]
    if told.attempt > 1:
        parts.append(f"attempt {told.attempt}")
    figures = told.metrics
    if figures is not None:
        parts.append(f"step {figures.step}")
        parts += [f"{name} {value:.3f}" for name, value in (("loss", figures.loss), ("val", figures.val_loss))
                  if value is not None]  # fmt: skip
        if figures.tokens_per_second is not None:
            parts.append(f"{figures.tokens_per_second:,.0f} tokens/s")
    if not over and (since := _since_a_step(told, now)) is not None:
        parts.append(f"no step seen for {age(since)}")
    silent = [] if over else [str(rank.rank) for rank in told.ranks if rank.time > 0 and rank.is_silent(now)]
    if silent:
        shown = ", ".join(silent[:8]) + (" …" if len(silent) > 8 else "")
        parts.append(f"silent: rank{'s'[: len(silent) > 1]} {shown}")
    return "  ".join(parts)


def _since_a_step(told: Ranks, now: float) -> float | None:
    """Seconds since a rank was last seen to make a step; None where one may have been made and not yet told."""
    moved = [rank for rank in told.ranks if rank.stepped is not None and rank.phase == "training"]
    last = max((rank.stepped for rank in moved if rank.stepped is not None), default=now)
    interval = max((rank.interval or USUAL_INTERVAL for rank in moved), default=USUAL_INTERVAL)
    return now - last if now - last > MISSED * interval else None


def top_line(jobs: Jobs, user: str, now: float) -> str:
    """The first line: whose jobs, how many, and how old what is shown is; ``now`` in monotonic seconds."""
    count = plural(len(jobs.states), "job")
    parts = ["clusterrun top", user, count if jobs.at is not None else ""]
    if jobs.trouble:
        old = f"what is shown is {age(now - jobs.at)} old" if jobs.at is not None else "nothing is known yet"
        parts.append(f"NO ANSWER: {safe_line(jobs.trouble)}; {old}")
    elif jobs.asking_since is not None and now - jobs.asking_since > 2:
        parts.append(f"asking for {age(now - jobs.asking_since)} …")
    elif jobs.at is None:
        parts.append("asking …")
    else:
        parts.append(f"asked {age(now - jobs.at)} ago")
    return "  ".join(part for part in parts if part)


def age(seconds: float) -> str:
    """A duration in one or two units: ``4s``, ``3m20s``, ``2h05m``, ``3d04h``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02}h"


def wrapped(text: str, width: int) -> str:
    """Lines broken at blanks to fit, the rest of each under its beginning: under its words where a label leads it."""
    lines = []
    for line in safe_text(text).expandtabs().splitlines():
        label = _LABEL.match(line)
        indent = " " * min(len(label[0]) if label else 0, width // 2)
        lines += textwrap.wrap(
            line, max(width, 10), subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True
        ) or [""]  # fmt: skip
    return "\n".join(lines)


def keys_of(states: Sequence[RunState]) -> list[str]:
    """The keys of rows, all different."""
    keys: list[str] = []
    for state in states:
        key = key_of(state)
        keys.append(key if key not in keys else f"{key} {state.status.id} {len(keys)}")
    return keys
