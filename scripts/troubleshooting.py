"""Write the sections of docs/troubleshooting.md from the tables of `why`: `python -m scripts.troubleshooting`.

Those of failures are the groups of the table of kinds in docs/why.md. What stands before the first section stays.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clusterrun.scheduler.slurm.reasons import limits, words
from clusterrun.why.causes.match import TABLE
from clusterrun.why.causes.model import CauseRow, Strength
from clusterrun.why.causes.table_recorded import RECORDED

SHORTEST = 8  # characters of a text in a log that says something by itself
PLAIN = {"node": "NODE", "awaited": "N", "rank": "N", "ranks": "N", "s": "", "was": "was", "port": "PORT"}
DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "troubleshooting.md"


def page() -> str:
    """Return the page: its beginning as it is, a section for each group of causes, then pending jobs."""
    parts = [PAGE.read_text().partition("\n## ")[0].rstrip()]
    for title, kinds in groups():
        parts.append(section(title, causes([row for row in rows() if row.kind in kinds])))
    pending = [item([f"`{row.word}`: {row.meaning}"], plain(row.what_to_do("JOBID"))) for row in words.ROWS]
    parts.append(section("a pending job", pending))
    parts.append(section("a pending job and a limit", limited()))
    return "\n\n".join(parts) + "\n"


def section(title: str, items: Iterable[str]) -> str:
    """Return a section that is a list."""
    return "\n".join((f"## {title[0].upper()}{title[1:]}", "", *items))


def item(seen: Sequence[str], told: str) -> str:
    """Return an item of a list: what is seen, and in a paragraph of its own what to do."""
    return f"- {'<br>'.join(seen)}\n\n    → {told}\n"


def groups() -> Iterator[tuple[str, set[str]]]:
    """Yield the groups of causes, each with its kinds."""
    table = (DOCS / "why.md").read_text().partition("| causes |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        title, kinds = line.strip("| ").split(" | ")
        yield title, set(re.findall(r"`([\w-]+)`", kinds))


def rows() -> list[CauseRow]:
    """Return the rows that say more than that something failed, those of a job's own records last."""
    every = [*TABLE, *RECORDED.values()]
    return [row for row in every if row.strength is not Strength.ECHO and not row.sentence.startswith("{")]


def causes(rows: Iterable[CauseRow]) -> Iterator[str]:
    """Yield an item for each piece of advice, with the causes that it is for."""
    by_advice: dict[str, list[str]] = {}
    for row in rows:
        command = re.sub(r"^clusterrun submit …| \(.*", "", fill(row.command.replace("[ {node}]", " NODE"))).strip()
        advice = [plain(fill(row.advice)).removeprefix("…"), f"`{command}`" if command else ""]
        seen = max(row.needles, key=len, default="")
        shown = f" (`{seen.strip()}`)" if len(seen) >= SHORTEST and "`" not in seen else ""
        sentence = f"**{plain(fill(row.sentence))}**{shown}"
        by_advice.setdefault(": ".join(filter(None, advice)), []).append(sentence)
    for told, sentences in by_advice.items():
        yield item(list(dict.fromkeys(sentences)), told)


def fill(text: str) -> str:
    """Return a text of the tables without the parts in brackets, and with … for a word that only a log would give."""
    whole = re.sub(r"\[[^\]]*\]", "", text)
    return re.sub(r"\{(\w+)\}", lambda match: PLAIN.get(match[1], "…"), whole).strip()


def plain(text: str) -> str:
    """Return a text in which what looks like a tag or like emphasis is shown as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>])", r"\\\1", part) for part in parts)


def limited() -> Iterator[str]:
    """Yield an item for each limit, with the reasons of all the resources that it counts."""
    families: dict[tuple[str, str], list[words.Reason]] = {}
    for row in limits.ROWS:
        assert row.limit is not None
        families.setdefault((row.limit.owner, row.limit.setting), []).append(row)
    for family in families.values():
        names = ", ".join(f"`{row.word}`" for row in family)
        meaning = family[0].meaning.replace("CPUs", "of the resource in the reason's name").replace("of of", "of")
        yield item([f"{names}: {meaning}"], plain(family[0].what_to_do("JOBID")))


if __name__ == "__main__":
    PAGE.write_text(page())
