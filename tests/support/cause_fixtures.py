"""The fixtures of tests/data/causes: a log excerpt, what is known of the job's end, and the cause that is to be named.

A file is a head of ``key: value`` lines (``expect`` the kind; ``rank``, ``place``, ``says`` where they matter;
``state``, ``exit``, ``signal``, ``reason``, ``world``, and ``failure``, what a rank recorded; ``source`` the public
page or the lab it is from), then the streams, ``=== err`` and ``=== out``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from clusterrun.logs.lines import LineReader
from clusterrun.why.causes import Cause, EndFacts, Failure, Line, first_cause

FOLDER = Path(__file__).parents[1] / "data" / "causes"


@dataclass
class Fixture:
    name: str
    head: dict[str, str]
    streams: dict[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> EndFacts:
        head = self.head
        status = int(head["exit"]) if "exit" in head else None
        if head.get("signal"):
            status = 128 + int(head["signal"])
        return EndFacts(
            state=head.get("state", ""), exit_status=status, reason=head.get("reason", ""),
            world_size=int(head.get("world", 0)),
            failure=Failure(**json.loads(head["failure"])) if "failure" in head else None,
        )  # fmt: skip

    def lines(self, stream: str) -> list[Line]:
        world = int(self.head.get("world", 0))
        reader = LineReader("err" if stream == "err" else "out", world_size=world or None)
        found = []
        for number, raw in enumerate(self.streams.get(stream, "").encode().splitlines(keepends=True), 1):
            found += [Line(f"train_1.{stream}", number, line.rank, line.text) for line in reader.feed(raw)]
        return found + [Line(f"train_1.{stream}", None, line.rank, line.text) for line in reader.end()]

    def judged(self) -> Cause:
        return first_cause([self.lines("err"), self.lines("out")], self.facts)

    def complaint(self) -> str:
        """What is wrong with the cause that is named; empty where it is right."""
        cause = self.judged()
        if cause.kind != self.head["expect"]:
            return f"{self.name}: {cause.kind} ({cause.sentence}), expected {self.head['expect']}"
        if "rank" in self.head and cause.rank != int(self.head["rank"]):
            return f"{self.name}: rank {cause.rank}, expected {self.head['rank']}"
        if "place" in self.head and cause.place != self.head["place"]:
            return f"{self.name}: at {cause.place}, expected {self.head['place']}"
        if self.head.get("says", "") not in cause.sentence:
            return f"{self.name}: {cause.sentence}, expected {self.head['says']}"
        return ""


def load(path: Path) -> Fixture:
    head, *sections = re.split(r"(?m)^=== (?=(?:err|out|none)$)", path.read_text())
    fixture = Fixture(path.stem, dict(line.split(": ", 1) for line in head.splitlines() if line))
    for section in sections:
        stream, _, text = section.partition("\n")
        fixture.streams[stream.strip()] = text
    return fixture


def load_all() -> list[Fixture]:
    return [load(path) for path in sorted(FOLDER.glob("*.txt"))]
