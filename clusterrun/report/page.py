"""Fill the templates of pages: one file each, which loads nothing and escapes everything."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterrun import __version__
from clusterrun.base.errors import RequestError
from clusterrun.base.units import format_clock, format_duration, format_left, format_short, plural
from clusterrun.report.draw import Chart, draw, lines_of
from clusterrun.report.timeline import has_failed
from clusterrun.run_folder import atomic
from clusterrun.terminal.safe_text import safe_text
from clusterrun.terminal.tables import Column
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parents[1] / "templates"
#: How a verdict looks, by the outcome of a job.
TONES = {"done": "good", "running": "busy", "stopped": "calm", "failed": "bad", "lost": "bad"}


def report_page(runs: Sequence[Mapping[str, Any]], difference: Mapping[str, Any] | None, now: float) -> str:
    """Return the page of one run, or of several with their curves over each other; ``runs`` are from ``collect``."""
    return _render("report.html.j2", now, runs=runs, difference=difference, charts=charts_of(runs))


def table_page(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], now: float) -> str:
    """Return the page of a table; the cells may be any text."""
    return _render("list.html.j2", now, title=title, columns=columns, rows=rows)


def charts_of(runs: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return the charts that have values, with the restarts of a single run."""
    marks = _restarts(runs[0]) if len(runs) == 1 else []
    charts = (
        draw(title, lines, x_label=runs[0]["curves_over"], marks=marks, from_zero=from_zero)
        for title, lines, from_zero in lines_of(runs)
    )
    return [chart for chart in charts if chart is not None]


def _restarts(run: Mapping[str, Any]) -> list[float]:
    """Return the first steps that a run's launches after the first one reported."""
    return [launch["first_step"] for launch in run["launches"][1:] if launch["first_step"] is not None]


def _render(name: str, now: float, **values: Any) -> str:
    environment = _environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(name).render(
        **values, now=now, version=__version__, script_digest=digest, plural=plural
    )


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # only pages and scripts need it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_visible,
    )  # fmt: skip
    environment.filters |= {
        "clock": format_clock, "duration": format_duration, "left": format_left, "moment": _moment,
        "short": format_short, "has_failed": has_failed, "tone": lambda outcome: TONES.get(outcome, "calm"),
    }  # fmt: skip
    return environment


def _visible(value: Any) -> Any:
    """Return a value as it is printed: without characters that hide or reorder text; markup of ours as it is."""
    if hasattr(value, "__html__"):
        return value
    return safe_text(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _moment(at: float | None) -> str:
    """Return a moment with its date and time zone."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))
    except (OverflowError, ValueError, OSError):  # in a record that was changed
        return str(at)


def send(ui: Ui, page: str, file: str) -> None:
    """Write a page in the place of any file of this name and print the name; ``-`` prints the page itself."""
    if file in ("-", "/dev/stdout"):
        ui.raw(page)
        return
    if Path(file).exists() and not Path(file).is_file():  # root could replace a device
        raise RequestError(f"cannot write {file}: it is no file", hint="choose another file, or - for standard output")
    try:
        with atomic.replacing(Path(file), mode=None, lasting=False) as out:
            out.write(page.encode())
    except OSError as error:
        raise RequestError(f"cannot write {file}: {error.strerror}", hint="choose another file") from error
    ui.say(file)
