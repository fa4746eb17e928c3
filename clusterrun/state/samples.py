"""What a run's model generated first and last for each prompt, side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterrun.base.decode import as_number
from clusterrun.records import progress
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.tables import Column, cut, fit

MOST, LONGEST = 8, 4000  # prompts, and characters of a text
SHOWN, WIDTH = 3, 36  # prompts, and cells of a column, in the terminal
_READ = 1024 * 1024  # bytes at each end of samples.jsonl


def load_samples(run: RunRecord) -> list[dict[str, Any]]:
    """Return the first and the last text that the run generated for each prompt; ``after`` is None for a single one."""
    path, until = run.run_dir / "samples.jsonl", _last_step(run)
    first = _by_prompt(reversed(progress.last_rows(path, _READ, first=True)), until)
    last = _by_prompt(progress.last_rows(path, _READ), until)
    return [
        {"prompt": prompt[:LONGEST], "before": before, "after": last[prompt] if last.get(prompt) != before else None}
        for prompt, before in reversed(first.items())
        if prompt in last
    ][:MOST]


def _last_step(run: RunRecord) -> float:
    """Return the last step of an earlier job, after which samples are those of a later one; else infinity."""
    metrics = progress.last_metrics(run) if run.continued_at is not None else None
    return metrics.step if metrics is not None else math.inf


def _by_prompt(rows: Iterable[Mapping[str, Any]], until: float) -> dict[str, dict[str, Any]]:
    """Return the last sample of each prompt, up to this step."""
    samples = {}
    for row in rows:
        prompt, text, step = row.get("prompt"), row.get("text"), as_number(row.get("step"))
        if isinstance(prompt, str) and isinstance(text, str) and (step is None or step <= until):
            samples[prompt] = {"step": step, "text": text[:LONGEST]}
    return samples


def side_by_side(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the first prompts with both texts as a table; empty without a prompt that has two."""
    pairs = [sample for sample in samples if sample["after"] is not None][:SHOWN]
    if not pairs:
        return []
    steps = [f"step {pairs[0][moment]['step']:g}" if pairs[0][moment]["step"] is not None else moment for moment in
             ("before", "after")]  # fmt: skip
    rows = [[_cell(pair["prompt"]), *(_cell(pair[moment]["text"]) for moment in ("before", "after"))] for pair in pairs]
    return fit([Column("prompt"), *map(Column, steps)], rows)


def _cell(text: str) -> str:
    """Return a text as one line of a column."""
    return cut(" ".join(text.split()), WIDTH)
