"""A series of numbers of any length, kept as a few of them and drawn in one line."""

from __future__ import annotations

from collections.abc import Sequence

SPARKS = "▁▂▃▄▅▆▇█"


class Thinned:
    """At most ``most`` values of a series: each value at first, then every second, every fourth and so on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._every, self._skipped = 1, 0
        self.values: list[float] = []

    def add(self, value: float) -> None:
        """Take the next value of the series."""
        self._skipped += 1
        if self._skipped < self._every:
            return
        self._skipped = 0
        self.values.append(value)
        if len(self.values) > self._most:
            self._every *= 2
            self.values = self.values[::2]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as one line of bars, at most ``width`` of them; empty if there are fewer than two."""
    if len(values) < 2:
        return ""
    step = max(1.0, len(values) / width)
    shown = [values[int(at * step)] for at in range(min(width, len(values)))]
    shown[-1] = values[-1]
    least, most = min(shown), max(shown)
    if least == most:
        return SPARKS[0] * len(shown)
    return "".join(SPARKS[int((value - least) / (most - least) * (len(SPARKS) - 1) + 0.5)] for value in shown)
