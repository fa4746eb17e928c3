"""The settings of a built-in task as a help text."""

from __future__ import annotations

from itertools import groupby

import click

from clusterrun.base.settings import INTERNAL, TASKS, Setting, rows


def write_settings(formatter: click.HelpFormatter, task: str) -> None:
    """Write the settings of a task in sections: ``warmup=10 steps`` is the default with its unit."""
    for section, group in groupby(rows(TASKS[task]), key=lambda row: row.section):
        if section != INTERNAL:
            with formatter.section(section):
                formatter.write_dl([(_term(row), row.text) for row in group])


def _term(row: Setting) -> str:
    unit = f" {row.unit}" if row.unit not in ("", row.name) else ""
    return f"{row.name}={row.shown_default}{unit}" if row.shown_default else row.name
