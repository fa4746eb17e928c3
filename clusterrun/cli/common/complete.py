"""What a shell completes: jobs, job files, profiles, tasks, settings. It calls neither Slurm nor other programs.

A name that another user could have written (of a job file, a profile) goes into the command line as it is: only
plain characters are offered.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from clusterrun.cli.common.session import COMPLETE

if TYPE_CHECKING:
    from clusterrun.base.fields import Field
    from clusterrun.base.settings import Setting
    from clusterrun.records.ended_index import RunSummary
    from clusterrun.records.store import Store

FILES = CompletionItem("<files>", type="file")
"""Stands for the names of files, which the shell completes."""
_PLAIN = re.compile(r"[A-Za-z0-9_./@%+,=-]+", re.ASCII)
_MOST = 50  # jobs

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def answer(cli: click.Command) -> None:
    """Print the completions of ``COMP_LINE``, each in a line; nothing if something goes wrong."""
    with suppress(Exception, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        from clusterrun.terminal.ui import Ui

        shell = os.environ[COMPLETE].partition("_")[0]
        lines = completions(cli, os.environ["COMP_LINE"], shell)
        Ui("completion", out=sys.stdout).raw("".join(f"{line}\n" for line in lines))


def completions(cli: click.Command, line: str, shell: str) -> list[str]:
    """Return what may stand in place of the last word of a line; zsh and fish get ``VALUE<tab>MEANING``.

    bash breaks words at ``=``, so it gets only what follows.
    """
    words = split_arg_string(line)
    typed = words.pop() if words and not line[-1].isspace() else ""
    items = [FILES] if "--" in words else _items_at(cli, words, typed)
    if FILES in items:
        return [FILES.value]
    if shell == "bash":
        return [item.value[typed.rfind("=") + 1 :] for item in items]
    return [_with_meaning(item.value, item.help) for item in items]


def _items_at(cli: click.Command, words: Sequence[str], typed: str) -> list[CompletionItem]:
    """Return what may follow ``words`` in place of ``typed``."""
    items = ShellComplete(cli, {"obj": words}, "clusterrun", COMPLETE).get_completions(list(words[1:]), typed)
    if typed.startswith("-") and "=" in typed:  # of --option=VALUE, click completes the value
        option = typed[: typed.index("=") + 1]
        items = [item if item is FILES else CompletionItem(f"{option}{item.value}", help=item.help) for item in items]
    return [item for item in items if item is FILES or (item.value.startswith(typed) and _PLAIN.fullmatch(item.value))]


def _with_meaning(value: str, meaning: str | None) -> str:
    text = " ".join((meaning or "").split())
    return f"{value}\t{text}" if text else value


# -- what the parameters of the verbs complete ----------------------------------------------------------------------


def jobs(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the id or name of a job that clusterrun submitted, the newest first."""
    summaries = sorted(_store().summaries(), key=lambda run: run.age_key, reverse=True)
    return [CompletionItem("last", help="the job submitted last from here"), *_items(summaries)]


def active_jobs(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the id or name of a job whose end is not recorded."""
    from clusterrun.records.ended_index import summarize

    return _items([summarize(run) for run in reversed(_store().open_runs())])


def _store() -> Store:
    from clusterrun.config.files import find_root
    from clusterrun.records.store import Store
    from clusterrun.run_folder.files import state_folder

    return Store(find_root(), state_folder(os.environ))


def _items(runs: Sequence[RunSummary]) -> list[CompletionItem]:
    shown = runs[:_MOST]
    names = dict.fromkeys(run.name for run in shown)
    ids = [CompletionItem(run.handle, help=run.name) for run in shown]
    return [*ids, *map(CompletionItem, names)]


def job_files(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the name of a job file, of the project or shipped; a path if one is begun."""
    from clusterrun.config.files import find_root
    from clusterrun.config.profiles import list_jobs

    return [FILES] if "/" in typed else [*map(CompletionItem, list_jobs(find_root()))]


def profiles(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the name of a profile in clusterrun.toml or the user's file."""
    from clusterrun.config.files import find_root
    from clusterrun.config.profiles import list_profiles

    return [*map(CompletionItem, list_profiles(find_root(), os.environ))]


def tasks(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the name of a built-in task."""
    from clusterrun.base.settings import TASKS

    return described((name, kind.about) for name, kind in TASKS.items())


def settings(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete ``KEY=`` by the settings of the job's task, of all tasks if it is not known; then its value."""
    by_name = _settings_of(ctx)
    key, equals, _ = typed.partition("=")
    if not equals:
        return described((f"{name}=", row.text) for name, row in by_name.items())
    row = by_name.get(key)
    return _values(row) if row is not None else []


def _values(row: Setting) -> list[CompletionItem]:
    choices = ("true", "false") if isinstance(row.default, bool) else row.choices
    if choices:
        return [CompletionItem(f"{row.name}={choice}") for choice in choices]
    return [] if isinstance(row.default, int | float) else [FILES]


def _settings_of(ctx: click.Context) -> dict[str, Setting]:
    from clusterrun.base.settings import INTERNAL, TASKS, rows

    # click reads no words before an unfinished option
    typed = [word for word in ctx.obj[2:] if not word.startswith("-")]
    named = [task for task in map(_task_of, typed) if task in TASKS]
    kinds = [TASKS[named[0]]] if named else [*TASKS.values()]
    return {row.name: row for kind in kinds for row in rows(kind) if row.section != INTERNAL}


def _task_of(job: str) -> str:
    """Return the task of a job file; empty if it has none, or cannot be read."""
    from clusterrun.config.files import find_root
    from clusterrun.config.profiles import load_job

    with suppress(Exception):
        file = load_job(job, find_root())
        return file.target if file.kind == "task" else ""
    return ""


def any_of(*values: str) -> Completer:
    """Return a completer of fixed values."""
    return lambda ctx, param, typed: [*map(CompletionItem, values)]


def files(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the name of a file."""
    return [FILES]


_OF_FIELD: dict[str, Completer] = {
    "set": settings,
    "scheduler": any_of("slurm", "local", "auto"),
    "launcher": any_of("srun", "torchrun", "accelerate", "deepspeed", "none"),
    "container-runtime": any_of("pyxis", "apptainer"),
}
_FILE_NAMES = ("FILE", "PATH", "DIR", "IMAGE")


def of_field(field: Field) -> Any:
    """Return what completes the value of an option of the table of fields; None if nothing does."""
    return _OF_FIELD.get(field.name) or (files if field.metavar in _FILE_NAMES else None)


def described(summaries: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    """Return names with their meanings as completions."""
    return [CompletionItem(name, help=meaning) for name, meaning in summaries]
