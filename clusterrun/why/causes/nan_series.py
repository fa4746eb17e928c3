"""Find the step at which a loss became NaN for good, or began to diverge."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median

from clusterrun.why.causes.model import READ, Line, Strength, texts
from clusterrun.why.causes.tracebacks import split_rank

NAN = texts(
    "nan-loss", "{error}",
    "try a lower learning rate, a longer warm-up, gradient clipping, or bf16 instead of fp16; check the data of the"
    " first step with a NaN loss",
    "https://github.com/vpetren/gradnorm_tf/issues/17", "clusterrun logs JOB --grep loss", Strength.HINT,
)  # fmt: skip
_ENOUGH = 3  # values in a row up to the end of the log: a single one is often a skipped step
_WINDOW, _LEAST_WINDOWS, _TIMES_BEST = 5, 4, 3.0  # values, windows of them, and how far above the lowest
_NEAR = 3  # lines before and after it that may name the step
_NUMBER = r"[-+]?(?:nan|inf(?:inity)?|\d[\d.]{0,30}(?:e[-+]?\d{1,3})?)"
# the training loss, not that of a validation or of a part of the model
_LOSS = re.compile(
    r"(?i)(?<![\w./-])(?P<key>(?:(?:train|training|total|lm|avg|avr|mean|nll)[ _/]?)?loss(?:_(?:total|avg|mean))?)"
    rf"[\"']?\s{{0,20}}[:=|]?\s{{0,20}}[\"']?(?:tensor\()?(?P<value>{_NUMBER})(?:\b|(?=Epoch))"
)
_TABLE = re.compile(rf"\s{{0,20}}\d+/\d+\s+[\d.]{{1,10}}G\s+(?P<value>{_NUMBER})\s")  # ultralytics prints columns
_OTHERS = re.compile(
    r"(?i)\b(?:val|valid|validation|eval|evaluation|test|testing|dev|best|min|lowest)\b(?!.{0,40}train).{0,30}$"
)
_GRADIENT = re.compile(r"(?i)\bgrad[ _]?norm[\"']?\s?[:=]\s?[\"']?nan\b")
_UNIT = r"(?i)(?<![a-z]){}s?[\"']?\]?\s{{0,8}}[:=#|\[(]?\s{{0,8}}(?P<number>\d+(?:\.\d+)?)"
_STEPS = (
    ("step", re.compile(_UNIT.format("step"))),
    ("iteration", re.compile(_UNIT.format("(?:iteration|iter)"))),
    ("step", re.compile(r"\|\s{0,4}(?P<number>\d+)/\d+ \[")),  # tqdm's
    ("epoch", re.compile(_UNIT.format("epoch"))),
    ("epoch", re.compile(r"\s*(?P<number>\d+)/\d+\s")),
)


def find_nan_start(lines: Sequence[Line]) -> tuple[int, str] | None:
    """Return the index of the first line where the loss became NaN for good, and the sentence; None if it did not."""
    if not any("nan" in line.text[:READ].lower() for line in lines):
        return None
    begins: dict[tuple[int | None, str], list[int]] = {}  # rank and name -> the lines since it is NaN
    finite: set[tuple[int | None, str]] = set()
    for index, rank, key, value in _values(lines):
        if math.isfinite(value):
            begins.pop((rank, key), None)
            finite.add((rank, key))
        else:
            begins.setdefault((rank, key), []).append(index)
    starts = {whose: indexes[0] for whose, indexes in begins.items() if len(indexes) >= _ENOUGH}
    if not starts:
        return None
    whose = min(starts, key=starts.__getitem__)
    return starts[whose], _in_words(_step(lines, starts[whose]), whose in finite)


def _in_words(step: str, was_finite: bool) -> str:
    if was_finite:
        return f"the loss became NaN{f' at {step}' if step else ''} and stayed NaN"
    return f"the loss was NaN from the first value in the log{f' ({step})' if step else ''} onward"


def find_divergence(lines: Sequence[Line]) -> tuple[int, str] | None:
    """Return the index of the last loss and a sentence if the loss has diverged; None if it has not.

    It has if the median of the last values is three times the lowest such median before it, and still rises: a single
    spike, and a loss that recovers, do not count.
    """
    series: dict[tuple[int | None, str], list[tuple[int, float]]] = {}
    for index, rank, key, value in _values(lines):
        if math.isfinite(value):
            series.setdefault((rank, key), []).append((index, value))
    for values in series.values():
        index, (now, best) = values[-1][0], _last_and_best([value for _, value in values])
        if best:
            at = f" at {step}" if (step := _step(lines, index)) else ""
            return index, f"the loss is diverging: {now:.4g}{at}, after a minimum of {best:.4g}"
    return None


def _last_and_best(values: Sequence[float]) -> tuple[float, float]:
    """Return the median of the last values, and the lowest before it, if the values diverge; zeros if they do not."""
    ends = range(len(values), _WINDOW - 1, -_WINDOW)
    medians = [median(values[end - _WINDOW : end]) for end in ends]  # the newest first
    if len(medians) < _LEAST_WINDOWS:
        return 0, 0
    now, best = medians[0], min(medians[1:])
    return (now, best) if now > medians[1] and now > _TIMES_BEST * best > 0 else (0, 0)


def _values(lines: Sequence[Line]) -> Iterator[tuple[int, int | None, str, float]]:
    """Yield the printed losses: index of the line, rank, name of the loss, value."""
    for index, line in enumerate(lines):
        rank, text = split_rank(line)
        column, loss = _TABLE.match(text[:READ]), _training_loss(text[:READ])
        if column is not None:
            yield index, rank, "", _number(column["value"])
        if loss is not None:
            yield index, rank, loss["key"].lower(), _value(loss)


def _training_loss(text: str) -> re.Match[str] | None:
    """Return the first loss in a line that is of the training."""
    if "loss" not in text.lower():
        return None
    for match in _LOSS.finditer(text):
        if not _OTHERS.search(text[max(0, match.start() - 40) : match.start()]):
            return match
    return None


def _value(loss: re.Match[str]) -> float:
    value = _number(loss["value"])
    return math.nan if value == 0 and _GRADIENT.search(loss.string) else value  # with a NaN gradient, 0 is not real


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # 1.2.3 is a version; it is no NaN
        return 0.0


def _step(lines: Sequence[Line], index: int) -> str:
    """Return the step, iteration or epoch on a line of metrics or near it."""
    before, after = reversed(lines[max(0, index - _NEAR) : index]), lines[index + 1 : index + 1 + _NEAR]
    for line in (lines[index], *before, *after):
        for unit, pattern in _STEPS:
            match = pattern.search(line.text[:READ])
            if match is not None:
                return f"{unit} {match['number']}"
    return ""
