"""Plots of the speed-up: in the terminal with plotext, or a PNG with matplotlib. Both are optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from clusterrun.sizing.scaling import ScalingRow


def can_plot(library: str) -> bool:
    """Return whether ``plotext`` or ``matplotlib`` is installed."""
    return importlib.util.find_spec(library) is not None


def terminal_plot(rows: Sequence[ScalingRow], width: int = 72, height: int = 16) -> list[str]:
    """Return the lines of a plot without colors; it needs plotext."""
    import plotext

    gpus = [row.gpus for row in rows]
    plotext.clear_figure()
    plotext.plot_size(width, height)
    for marker, (label, values) in zip(".+x", _lines(rows).items(), strict=True):
        plotext.plot(gpus, values, label=label, marker=marker)
    plotext.xticks(gpus)
    plotext.xlabel("GPUs")
    plotext.title("speed-up")
    text: str = plotext.uncolorize(plotext.build())
    return [line.rstrip() for line in text.splitlines()]


def write_png(rows: Sequence[ScalingRow], path: str) -> None:
    """Write a plot as a PNG; it needs matplotlib."""
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=(6, 4), dpi=150)).subplots()
    gpus = [row.gpus for row in rows]
    for label, values in _lines(rows).items():
        axes.plot(gpus, values, "--" if label == "ideal" else "o-", label=label)
    axes.set(xlabel="GPUs", ylabel="speed-up", xticks=gpus)
    axes.legend()
    figure.savefig(path, format="png")


def _lines(rows: Sequence[ScalingRow]) -> dict[str, list[float]]:
    unit = rows[0].tokens_per_second / rows[0].speedup
    return {
        "ideal": [float(row.gpus) for row in rows],
        "predicted": [row.predicted_tokens_per_second / unit for row in rows],
        "measured": [row.speedup for row in rows],
    }
