"""The options of ``submit``, ``render`` and ``free``, made from the table of fields."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS, SECTIONS, Field
from clusterrun.cli.common import complete
from clusterrun.jobspec.fields import Value

if TYPE_CHECKING:
    from clusterrun.submit.request import SubmitArgs

F = TypeVar("F", bound=Callable[..., Any])


_COMMAND = "This command"
_TYPED = "clusterrun.typed"


class Grouped(click.Command):
    """A command whose help shows its options in sections, and the settings of a built-in task if one is typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = tuple(args)  # --help is carried out before the other words are read
        return super().parse_args(ctx, args)

    def sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return the options and their meanings by section."""
        by_section = option_sections(self, ctx, _section)
        return {section: by_section[section] for section in (*SECTIONS, _COMMAND) if section in by_section}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, lines in self.sections(ctx).items():
            with formatter.section(section):
                formatter.write_dl(lines)
        from clusterrun.base.settings import TASKS
        from clusterrun.cli.common.settings_help import write_settings

        task = next((word for word in ctx.meta.get(_TYPED, ()) if word in TASKS), None)
        if task is not None:
            with formatter.section(f"Settings of {task} (--set KEY=VALUE)"):
                write_settings(formatter, task)


def option_sections(
    command: click.Command, ctx: click.Context, section_of: Callable[[click.Option], str]
) -> dict[str, list[tuple[str, str]]]:  # fmt: skip
    """Return the options of a command and their meanings, by the section that ``section_of`` gives."""
    lines: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        line = param.get_help_record(ctx)
        if line is not None and isinstance(param, click.Option):
            lines.setdefault(section_of(param), []).append(line)
    return lines


def _section(option: click.Option) -> str:
    field = FIELD.get(option.opts[-1].lstrip("-"))
    return field.section if field is not None else _COMMAND


BARE = "-"
"""The value of an option that was typed without its optional value."""


def spec_options(
    command: F, names: Container[str] = FIELD, *, bare: str = "", with_profile: bool = True
) -> F:  # fmt: skip
    """Add an option for each field of ``FIELDS``, or only those of these names, and ``--profile``.

    The value of the option ``bare`` is optional.
    """
    for one in reversed(FIELDS):
        if one.name in names:
            command = _option(one, bare=one.name == bare)(command)
    if not with_profile:
        return command
    text = "Use [profile.NAME] from clusterrun.toml."
    return click.option("--profile", metavar="NAME", help=text, shell_complete=complete.profiles)(command)


def submit_args(job: str | None, words: tuple[str, ...], profile: str | None, options: dict[str, Any]) -> SubmitArgs:
    """Return what was typed as SubmitArgs; an option that was not given is left out."""
    from clusterrun.submit.request import SubmitArgs

    flags = {}
    for one in FIELDS:
        value = options.pop(one.attribute, None)
        if value in (None, ()):
            continue
        if one.kind == "map":
            value = dict(_pair(one, text) for text in value)
        elif one.kind == "list":
            value = list(value)
        flags[one.name] = Value(value, f"--{one.name}")
    return SubmitArgs(job=job, command=words, flags=flags, profile=profile)


def _option(one: Field, *, bare: bool) -> Callable[[F], F]:
    name = one.attribute
    if one.kind == "flag":
        declaration = f"--{one.name}/--no-{one.name}" if one.negatable else f"--{one.name}"
        return click.option(declaration, name, is_flag=True, default=None, help=one.help)
    value: dict[str, Any] = {"metavar": one.metavar or None, "shell_complete": complete.of_field(one)}
    if bare:
        value |= {"metavar": f"[{one.metavar}]", "is_flag": False, "flag_value": BARE}
    kind = click.INT if one.kind == "int" else click.STRING
    multiple = one.kind in ("list", "map")
    names = *filter(None, (one.short, f"--{one.name}")), name
    return click.option(*names, type=kind, multiple=multiple, help=one.help, **value)


def _pair(one: Field, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise RequestError(f"--{one.name} must be KEY=VALUE, not {text!r}", hint=f"use --{one.name} NAME=value")
    return key, value


def job_and_script(before: tuple[str, ...], after: Sequence[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the job's name and the words after ``--``; raises RequestError if they cannot be combined."""
    from clusterrun.cli.common.meanings import with_separator

    if len(before) > 1:
        typed = " ".join(before)
        hint = f"put a script after `--`: {with_separator(sys.argv[1:], before)}"
        if all(word.endswith(".toml") for word in before):
            hint = f"to run them in order: clusterrun submit {typed} --chain"
        raise RequestError(f"expected one job file or task, not {typed}", hint=hint)
    if after is not None and not after:
        raise RequestError("no script after --", hint="clusterrun submit -- train.py")
    if before and before[0].endswith(".py"):
        raise RequestError(f"{before[0]} is a script, not a job file", hint=with_separator(sys.argv[1:], before))
    return next(iter(before), None), tuple(after or ())
