"""Read a training's progress from the lines that it prints: the step it has reached, of how many, and the loss.

A script that knows nothing of clusterrun prints `step 150/900 loss 0.03`, `Epoch [2/3], Step [100/600]`, a bar of tqdm,
or the dictionaries of transformers' Trainer. What such a line says is a `Reading`; `PrintedProgress` joins the readings
of a launch. It reports only what is certain: a counter is used after it has advanced, a counter that starts again has
no known total, and counters of other work (loading, tokenizing, evaluating) are ignored.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .series import Thinned

#: Characters of a line that are read: counters stand before.
LONGEST = 2000
LOSSES = 64  # that are kept for a curve
#: If a counter has not advanced for so many seconds, another one may replace it before it reaches its total.
QUIET_S = 120.0
#: The most counters of one launch; later ones are ignored.
MOST_COUNTERS = 32

_GAP = r"[\s:=#\[(\"']{0,12}"
_OF = r"\s{0,12}(?:/|of)\s{0,12}(\d{1,12})(?!\w|[.,]\d)"  # no part of 10,000 or of 10k
_NUMBER = r"(\d{1,12})(?!\w|[.,]\d|\s{0,9}%)"
_STEP = re.compile(
    rf"(?i)\b(?:global[_ ])?(?:step|iter|iteration|batch|update)\b(?:{_GAP}{_NUMBER})(?:{_OF})?"
    rf"|\b(?:steps|iterations|batches|updates)\b{_GAP}{_NUMBER}{_OF}"
)
#: Not transformers' 'epoch': '1', which is a fraction in most rows.
_EPOCH = re.compile(rf"(?i)\bepoch\b(?:\(train\))?{_GAP}(?<![:=] [\"']){_NUMBER}(?:{_OF})?")
_BRACKET = re.compile(rf"\[\s{{0,12}}{_NUMBER}{_OF}")
_BAR = re.compile(
    r"\b\d{1,3}%(?:\|[^|\n]{0,200}\|\s{0,9}(\d{1,12})/(\d{1,12})\s{0,9}\[|\s[━╸─]{1,99}\s(\d{1,12})/(\d{1,12})(?!\S))"
)
#: The title of a bar of YOLO: the epoch, of how many, and numbers.
_EPOCH_AND_NUMBERS = re.compile(r"\s{0,12}(\d{1,6})/(\d{1,6})(?:\s{1,20}[\d.]{1,12}[KMG]?){0,20}\s{0,20}:?\s{0,9}")
_LOSS = re.compile(
    r"(?i)(?:(?<![\w./-])|(?<=train[/_]))(?<!val )(?<!eval )(?<!test )(?<!best )(?<!validation )"
    r"loss[\"']?[ :=|]{1,20}(?:tensor\(|[\"'])?(nan\b|[-+]?\d{1,20}(?:\.\d{0,30})?(?:e[-+]?\d{1,3})?)"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[mK]")  # or a line that is wiped
#: What a counter of other work is called, in the words before it.
_OTHER_WORK = re.compile(
    r"(?i)\b(?:eval|evaluat\w*|valid\w*|val|test\w*|predict\w*|sanity|map|filter|load\w*|download\w*|fetch\w*|sav\w*|"
    r"best|accum\w*|warmup|inner|sampling|denois\w*|dev|class|tokeniz\w*|generat\w*|resolv\w*|upload\w*|extract\w*|prepar\w*|pack\w*|install\w*|build\w*|compil\w*|shards?)\b"
)
_AVERAGE = re.compile(r"(?i)\b(?:average|avg|mean)\b|train_runtime")  # no loss of the last step
_BEFORE = 60  # characters before a counter that name it


class Reading(NamedTuple):
    """What one line says; None where it says nothing.

    Its counter is ``at`` a number, of ``total``; ``name`` tells it from others. ``epoch`` is the current one, as it is
    printed: from 0 or from 1 on.
    """

    name: str = ""
    at: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None  # perhaps NaN


def read_line(line: str) -> Reading:
    """Return what a line says about the progress of a training."""
    line = _COLOUR.sub("", line[:LONGEST])
    bar = _BAR.search(line)
    if bar is not None:
        return _read_bar(line, bar)
    epoch, epochs = _find_epoch(line)
    loss = _find_loss(line)
    counter = _STEP.search(line) or (_BRACKET.search(line) if epoch is not None or loss is not None else None)
    if counter is None:
        return Reading(epoch=epoch, epochs=epochs, loss=loss)
    if _OTHER_WORK.search(line[max(0, counter.start() - _BEFORE) : counter.start()]):
        return Reading()
    count, total = _numbers(counter)
    return Reading("counter", count, total, epoch, epochs, loss)


def _read_bar(line: str, bar: re.Match[str]) -> Reading:
    """Return what a bar of tqdm says; the numbers in its title, as an epoch's, are no part of its name."""
    title = line[: bar.start()]
    if _OTHER_WORK.search(title):
        return Reading()
    count, total = _numbers(bar)
    beside_numbers = _EPOCH_AND_NUMBERS.fullmatch(title)
    if beside_numbers:
        return Reading("bar epoch", count, total, *_numbers(beside_numbers), _find_loss(line))
    name = re.sub(r"[\d/:\s]+", " ", title).strip().lower()
    if name in ("epoch", "epochs") and not _EPOCH.search(title):  # a bar whose unit is an epoch
        return Reading(epoch=count + 1, epochs=total)
    epoch, epochs = _find_epoch(title)
    return Reading(f"bar {name}", count, total, epoch, epochs, _find_loss(line))


def _find_epoch(text: str) -> tuple[int | None, int | None]:
    """Return the epoch in a text and how many there are."""
    match = _EPOCH.search(text)
    return (None, None) if match is None else _numbers(match)


def _find_loss(line: str) -> float | None:
    match = _LOSS.search(line)
    if match is None or _AVERAGE.search(line) or _OTHER_WORK.search(line[: match.start()]):
        return None
    return float(match[1])


def _numbers(match: re.Match[str]) -> tuple[int, int | None]:
    """Return a counter's count and its total, None without one."""
    count, *total = [int(group) for group in match.groups() if group is not None]
    return count, total[0] if total else None


class PrintedProgress:
    """The progress of one launch, joined from its readings.

    ``step`` and ``steps`` are over all epochs, and count what the script counts: steps, samples, or epochs if it prints
    nothing else. None: not known. ``step`` was reached at ``stepped``; ``first_step`` is the first step that
    was printed, and ``first_step_at`` when it was read, both times in seconds since 1970.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.steps: int | None = None
        self.loss: float | None = None
        self.first_step: int | None = None
        self.first_step_at = 0.0
        self._first_count: int | None = None
        self._has_gap = False  # lines before the first count were not read
        self.stepped = 0.0
        self.losses = Thinned[tuple[int, float]](LOSSES)  # with the step that each is of
        self.nan_losses = 0  # in a row, up to the last one
        self._name = ""
        self._at: int | None = None  # the number that was printed last, by any counter
        self._counts: dict[str, int] = {}  # the last count of each counter
        self._counts_per_epoch: set[str] = set()  # counters that start again in each epoch
        self._counts_all: set[str] = set()  # counters that run over all epochs
        self._epoch: int | None = None
        self._counted_epoch: int | None = None  # in which the last count was printed
        self._epochs: int | None = None
        self._first_epoch = 1
        self._begins_at_1: bool | None = None  # whether the first epoch that was printed was 1
        self._bars = NestedBars()

    def note_gap(self) -> None:
        """Note that lines were left out: if no count was read before, the first one is not known."""
        self._has_gap = self._has_gap or self.step is None

    @property
    def has_advanced(self) -> bool:
        """Whether more than one count was printed: a single number may mean anything."""
        return self.step is not None and self._first_count is not None and self.step > self._first_count

    def take(self, reading: Reading, now: float) -> None:
        """Join a reading of a line that was printed at about ``now``."""
        loss = reading.loss if reading.at is None or reading.at != self._at else None  # a bar draws old ones again
        self._at = reading.at
        if reading.epoch is not None and not self._bars.outer:
            self._note_epoch(reading.epoch, reading.epochs)
        if reading.at is not None:
            self._take_counter(reading, reading.at, now)
        elif reading.epoch is not None and self._name in ("", "epoch"):
            done = reading.epoch - self._first_epoch + (reading.loss is not None)  # else it may just have begun
            self._count("epoch", done, reading.epochs, now)
        if loss is not None:  # the line says the step too
            self._note_loss(loss)

    def _take_counter(self, reading: Reading, at: int, now: float) -> None:
        """Join a reading that has a counter; a bar around another one counts epochs."""
        name = f"{reading.name}/{reading.total}"
        if reading.name.startswith("bar"):
            self._bars.note(name, at, reading.total)
        if self._bars.outer:
            done, self._epochs = self._bars.outer_state
            self._epoch, self._first_epoch, self._begins_at_1 = done + 1, 1, True
        if name != self._bars.outer:
            self._count(name, at, reading.total, now)

    def _note_loss(self, loss: float) -> None:
        self.nan_losses = self.nan_losses + 1 if math.isnan(loss) else 0
        self.loss = loss if math.isfinite(loss) else None
        if self.loss is not None and self.step is not None:
            self.losses.add((self.step, self.loss))

    def _note_epoch(self, epoch: int, epochs: int | None) -> None:
        self._epoch = epoch
        self._epochs = epochs or self._epochs
        self._first_epoch = min(self._first_epoch, epoch)
        if self._begins_at_1 is None:
            self._begins_at_1 = epoch == 1

    def _count(self, name: str, count: int, total: int | None, now: float) -> None:
        """Use a count of the current counter, and a count of another one only if that may replace it."""
        if name != self._name and not self._may_follow(name, now):
            return
        last = self._counts.get(name)
        if last == count and self._counted_epoch == self._epoch and name == self._name:
            return
        self._judge(name, last, count)
        step, self.steps = self._overall(name, count, total)
        if name != self._name or self._first_count is None or step < self._first_count:
            self._first_count, self.first_step_at = step, now
            self.first_step = None if self._has_gap else step
        self._name, self.step, self.stepped = name, step, now
        self._counts[name], self._counted_epoch = count, self._epoch

    def _may_follow(self, name: str, now: float) -> bool:
        """Return whether this counter may replace the current one."""
        if len(self._counts) >= MOST_COUNTERS and name not in self._counts:
            return False
        is_done = self.steps is not None and self.step == self.steps
        is_quiet = self._name == "epoch" or now - self.stepped > QUIET_S
        return not self.has_advanced or is_done or is_quiet or self._bars.has_passed(name, self._name)

    def _judge(self, name: str, last: int | None, count: int) -> None:
        """Note whether a counter starts again in each epoch or runs over all epochs."""
        if last is None or name == "epoch":
            return
        if count < last:
            self._counts_per_epoch.add(name)
        elif count > last and self._epoch != self._counted_epoch and self._counted_epoch is not None:
            self._counts_all.add(name)

    def _overall(self, name: str, count: int, total: int | None) -> tuple[int, int | None]:
        """Return count and total over all epochs; the total is None where it is not certain."""
        # of epochs that are counted from 0 on, the last one may have the printed number, or one less; of a launch that
        # began in a later one it is not known from what they are counted
        epochs = self._epochs if self._begins_at_1 and self._first_epoch else None
        if name == "epoch":
            return count, epochs
        if total is None or name in self._counts_all:
            return count, total
        if self._epoch is None:
            return count, None if name in self._counts_per_epoch or self._bars.is_inside(name) else total
        before = (self._epoch - self._first_epoch) * total
        return before + count, None if epochs is None else epochs * total


class NestedBars:
    """Find the bar that is drawn around another: a bar of epochs, perhaps without a title, around a bar of steps.

    While the inner bar runs for the first time, the outer bar stands still. When the inner bar starts again, the outer
    bar has advanced by one. Only then ``outer`` is its name.
    """

    def __init__(self) -> None:
        self.outer = ""
        self._states: dict[str, tuple[int, int | None]] = {}  # count and total
        self._waiting: set[str] = set()  # bars that have not advanced
        self._around: dict[str, dict[str, int]] = {}  # of a bar: those that waited, with their counts when it began

    @property
    def outer_state(self) -> tuple[int, int | None]:
        """The count and the total of ``outer``."""
        return self._states[self.outer]

    def is_inside(self, name: str) -> bool:
        """Return whether this bar may be drawn inside another."""
        return bool(self._around.get(name))

    def has_passed(self, name: str, inner: str) -> bool:
        """Return whether a bar that may be around this inner one has advanced since."""
        around = self._around.get(inner, {})
        return name in around and self._states[name][0] > around[name]

    def note(self, name: str, count: int, total: int | None) -> None:
        """Note the state of a bar."""
        if name not in self._states:
            if len(self._states) == MOST_COUNTERS:
                return
            self._around[name] = {other: self._states[other][0] for other in self._waiting}
            self._waiting |= {name} if count != total else set()
        elif count > self._states[name][0]:
            self._waiting.discard(name)
        elif count < self._states[name][0] and not self.outer:
            self._begin_anew(name)
        self._states[name] = count, total

    def _begin_anew(self, name: str) -> None:
        around = self._around[name]
        for other, before in list(around.items()):
            advanced = self._states[other][0] - before
            if advanced == 1:
                self.outer = other
            elif advanced:
                del around[other]
