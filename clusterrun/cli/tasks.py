"""``tasks``: list the built-in tasks, or the settings of one."""

from __future__ import annotations

import click

from clusterrun.base.errors import RequestError, nearest
from clusterrun.base.settings import TASKS, rows
from clusterrun.cli.common import complete
from clusterrun.cli.common.session import json_option
from clusterrun.cli.common.settings_help import write_settings
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete.tasks)
@json_option
@click.pass_context
def tasks(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the built-in tasks, or the settings of one with their defaults.

    \b
      clusterrun tasks
      clusterrun tasks sft

    Change a setting with `--set KEY=VALUE`, or `set.KEY = …` in a job file.
    """
    ui = Ui("tasks", as_json=as_json)
    if name is None:
        ui.data([{"task": task, "about": kind.about} for task, kind in TASKS.items()])
        ui.table(("TASK", "TRAINS"), [(task, kind.about) for task, kind in TASKS.items()])
        ui.note("`clusterrun tasks NAME` lists a task's settings; `clusterrun submit NAME` runs it")
        return
    if name not in TASKS:
        raise RequestError(f"no task {name[:40]!r}", hint=nearest(name, TASKS) or f"available: {', '.join(TASKS)}")
    kind = TASKS[name]
    ui.data({"task": name, "about": kind.about, "settings": [row._asdict() for row in rows(kind)]})
    formatter = ctx.make_formatter()
    write_settings(formatter, name)
    ui.say(f"{name}: {kind.about}. Change a setting with --set KEY=VALUE.", "", *formatter.getvalue().splitlines())
