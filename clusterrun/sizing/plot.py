"""A plot of the speed-up in the terminal, with plotext, which is optional."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from clusterrun.sizing.scaling import ScalingRow


def can_plot() -> bool:
    """Return whether plotext is installed."""
    return importlib.util.find_spec("plotext") is not None


def terminal_plot(rows: Sequence[ScalingRow], width: int = 72, height: int = 16) -> list[str]:
    """Return the lines of a plot without colors; it needs plotext."""
    import plotext

    gpus = [row.gpus for row in rows]
    plotext.clear_figure()
    plotext.plot_size(width, height)
    unit = rows[0].tokens_per_second / rows[0].speedup
    plotext.plot(gpus, gpus, label="ideal", marker=".")
    plotext.plot(gpus, [row.predicted_tokens_per_second / unit for row in rows], label="predicted", marker="+")
    plotext.plot(gpus, [row.speedup for row in rows], label="measured", marker="x")
    plotext.xticks(gpus)
    plotext.xlabel("GPUs")
    plotext.title("speed-up")
    text: str = plotext.uncolorize(plotext.build())
    return [line.rstrip() for line in text.splitlines()]
