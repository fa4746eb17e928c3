"""The parts of the documents that are made from the code: the verbs with their options, keys of files, settings.

usage: python -m scripts.reference     writes them into docs/, between `<!-- made by … -->` and `<!-- end -->`
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from pathlib import Path

import click

from clusterrun.base.fields import FIELDS, SECTIONS, Field
from clusterrun.base.settings import SECTIONS as SETTING_SECTIONS
from clusterrun.base.settings import TASKS, Setting, rows
from clusterrun.cli import SECTIONS as VERB_SECTIONS
from clusterrun.cli import cli
from clusterrun.cli.common.options import Grouped, option_sections

DOCS = Path(__file__).parents[1] / "docs"
_PART = re.compile(r"(<!-- made by `make reference`: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LINK = re.compile(r"docs/([\w-]+\.md)")
_VALUE = {"int": "number", "text": "text", "flag": "true, false", "list": "list of texts", "map": "table"}


def documents() -> Iterator[tuple[Path, str]]:
    """Yield each document that has a made part, with its text as it should be."""
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if _PART.search(text):
            yield path, _PART.sub(lambda part: part[1] + "\n".join(MAKERS[part[2]]()) + "\n\n" + part[3], text)


def table(heading: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> list[str]:
    """Return a table in Markdown."""
    rule = ("---",) * len(heading)
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (heading, rule, *lines)]


# -- settings of the tasks --------------------------------------------------------------------------------------------


def settings() -> Iterator[str]:
    """Yield a table for each section of settings."""
    by_name: dict[str, dict[str, Setting]] = {}
    for task, kind in TASKS.items():
        for row in rows(kind):
            by_name.setdefault(row.name, {})[task] = row
    for section in SETTING_SECTIONS:
        own = [of_task for of_task in by_name.values() if next(iter(of_task.values())).section == section]
        yield from ("", f"## {section}")
        yield from table(
            ("setting", "default", "meaning"), [line for of_task in own for line in setting_lines(of_task)]
        )


def setting_lines(of_task: Mapping[str, Setting]) -> Iterator[tuple[str, str, str]]:
    """Yield a line for each meaning of a setting, which may differ by task."""
    for text in dict.fromkeys(row.text for row in of_task.values()):
        meant = {task: row for task, row in of_task.items() if row.text == text}
        only = "" if len(meant) == len(TASKS) else f"{', '.join(f'`{task}`' for task in meant)}: "
        row = next(iter(meant.values()))
        yield f"`{row.name}`", default_cell(meant), f"{only}{text}"


def default_cell(by_task: Mapping[str, Setting]) -> str:
    """Return the usual default with its unit, and the tasks that have another."""
    shown = {task: row.shown_default or "–" for task, row in by_task.items()}
    usual = max(shown.values(), key=[*shown.values()].count)
    row = next(iter(by_task.values()))
    unit = row.unit if row.unit != row.name else ""
    others = ", ".join(f"`{task}`: {text}" for task, text in shown.items() if text != usual)
    return f"{usual} {unit}".strip() + (f" ({others})" if others else "")


# -- keys of job files and clusterrun.toml ----------------------------------------------------------------------------


def keys() -> Iterator[str]:
    """Yield a table of keys for each section of options."""
    for section in SECTIONS:
        yield from ("", f"### {section}")
        own = [field for field in FIELDS if field.section == section]
        yield from table(("key", "value", "meaning"), map(key_line, own))


def key_line(field: Field) -> tuple[str, str, str]:
    """Return a key with the kind of its value and its meaning."""
    return f"`{field.name}`", _VALUE[field.kind], field.help.replace("; repeatable", "")


# -- commands ---------------------------------------------------------------------------------------------------------


def commands() -> Iterator[str]:
    """Yield the verbs, as their help shows them."""
    for title, summaries in VERB_SECTIONS.items():
        yield from ("", f"## {title}")
        for verb in summaries:
            yield from command(*of_verb(verb))


def of_verb(verb: str) -> tuple[click.Command, click.Context]:
    """Return a verb's command, and a context in which to ask it for its help."""
    parent = click.Context(cli, info_name="clusterrun", **{**cli.context_settings, "max_content_width": 100})
    made = cli.get_command(parent, verb)
    assert made is not None
    return made, click.Context(made, info_name=verb, parent=parent)


def command(made: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield what a verb does, its examples and its options, then its own verbs.

    Options that stand below `submit` are not repeated.
    """
    name = ctx.command_path.removeprefix("clusterrun ")
    takes = [piece for piece in made.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
    yield from ("", f"### {name}", f"`{' '.join((name, *takes))}`", "", *described(made))
    told = {} if name == "submit" else sections(*of_verb("submit"))
    own = sections(made, ctx)
    same = [section for section, lines in own.items() if lines and lines == told.get(section)]
    for section, lines in own.items():
        if lines and section not in same:
            yield from ("", *table((section, ""), [(f"`{option}`", meaning) for option, meaning in lines]))
    if same:
        yield from ("", f"It also takes the options of [submit](#submit): {', '.join(same)}.")
    for inner_name, inner in getattr(made, "commands", {}).items():
        yield from command(inner, click.Context(inner, info_name=inner_name, parent=ctx))


def described(made: click.Command) -> list[str]:
    """Return the paragraphs of a help text; those that are not to be wrapped are code."""
    lines: list[str] = []
    for text in cleandoc(made.help or "").split("\n\n"):
        first, *others = text.splitlines()
        is_code = first == "\b"
        lines += [f"    {line.strip()}" for line in others] if is_code else [_LINK.sub(r"[\g<0>](\1)", text)]
        lines.append("")
    return lines[:-1]


def sections(made: click.Command, ctx: click.Context, *, every: bool = False) -> dict[str, list[tuple[str, str]]]:
    """Return a verb's options by the sections of its help; without ``every``, not those of all verbs."""
    by_section = (
        made.sections(ctx) if isinstance(made, Grouped) else option_sections(made, ctx, lambda option: "Options")
    )
    left_out = () if every else OF_ALL
    return {section: [line for line in lines if line[0] not in left_out] for section, lines in by_section.items()}


OF_ALL = ("--json", "-h, --help", "--help")
MAKERS = {"settings": settings, "keys": keys, "commands": commands}


if __name__ == "__main__":
    for path, text in documents():
        path.write_text(text, encoding="utf-8")
        print(path.name)
