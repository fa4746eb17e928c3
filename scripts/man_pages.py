"""Man pages of clusterrun and of each of its commands, made from the help texts.

usage: python -m scripts.man_pages FOLDER
"""

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from clusterrun import __version__
from clusterrun.cli import SECTIONS, cli
from scripts.reference import of_verb, sections


def pages() -> Iterator[tuple[str, str]]:
    """Yield the name of each page, `clusterrun-submit`, and its text for man."""
    root = click.Context(cli, info_name="clusterrun", **cli.context_settings)
    yield "clusterrun", page(cli, root, "launch, follow and debug multi-node PyTorch training", commands())
    for summaries in SECTIONS.values():
        for verb, summary in summaries.items():
            made, ctx = of_verb(verb)
            yield f"clusterrun-{verb}", page(made, ctx, summary, [])
            for name, inner in getattr(made, "commands", {}).items():
                inner_ctx = click.Context(inner, info_name=name, parent=ctx)
                yield f"clusterrun-{verb}-{name}", page(inner, inner_ctx, inner.get_short_help_str(100), [])


def page(made: click.Command, ctx: click.Context, summary: str, more: list[str]) -> str:
    """Return the page of a command; ``more`` are lines for its end."""
    name = ctx.command_path.replace(" ", "-")
    lines = [f'.TH "{name.upper()}" "1" "" "clusterrun {__version__}" "clusterrun"', ".SH NAME"]
    lines += [f"{roff(name)} \\- {roff(summary.rstrip('.'))}", ".SH SYNOPSIS"]
    lines += [roff(" ".join((ctx.command_path, *made.collect_usage_pieces(ctx)))), ".SH DESCRIPTION", *described(made)]
    lines.append(".SH OPTIONS")
    for section, options in sections(made, ctx, every=True).items():
        lines.append(f".SS {section}")
        for option, meaning in options:
            lines += [".TP", f"\\fB{roff(option)}\\fR", roff(meaning)]
    return "\n".join([*lines, *more]) + "\n"


def described(made: click.Command) -> Iterator[str]:
    """Yield the paragraphs of a help text, its examples unfilled and indented."""
    for text in cleandoc(made.help or "").split("\n\n"):
        first, *others = text.splitlines()
        if first == "\b":
            yield from (".PP", ".RS 4", ".nf", *(roff(line.strip()) for line in others), ".fi", ".RE")
        else:
            yield from (".PP", *map(roff, (first, *others)))


def commands() -> list[str]:
    """Return the lines that list the commands."""
    lines = [".SH COMMANDS"]
    for title, summaries in SECTIONS.items():
        lines.append(f".SS {title}")
        for verb, summary in summaries.items():
            lines += [".TP", f"\\fBclusterrun\\-{verb}\\fR(1)", roff(summary)]
    return lines


def roff(text: str) -> str:
    """Return a line of text as man reads it."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / f"{name}.1").write_text(text, encoding="utf-8")
