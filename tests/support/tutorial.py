"""Follow a page of docs/ as a reader does: save its files, type its commands, and see what it says one sees.

A block with a title is a file. In a block of the language `console` each `$` begins a command that is typed, and each
line below is one that it prints, whatever its numbers, names of nodes and paths; `…` stands for more lines. A command
that ends with `^C` is interrupted once it has printed the line above.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.folders import ROOT
from tests.support.installed_command import CLUSTERRUN, Site

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def follow(site: Site, page: str, *smaller: tuple[str, str]) -> list[str]:
    """Do what a page says in a site's project; ``smaller`` replaces words. Return the commands that were typed."""
    text = (ROOT / "docs" / page).read_text()
    for long, short in smaller:
        text = text.replace(long, short)
    typed = []
    for language, title, content in BLOCK.findall(text):
        if title:
            (site.project / title).write_text(content)
        for command, shown in COMMAND.findall(content) if language == "console" else ():
            expected = [line for line in shown.splitlines() if line.strip() not in ("", "…")]
            printed = _type(site, command, expected)
            seen = set(map(_outline, printed))
            missing = [line for line in expected if line != "^C" and _outline(line) not in seen]
            assert not missing, f"{page}: $ {command}\nprints no {missing}\nbut:\n{''.join(printed)}"
            typed.append(command)
    return typed


def _type(site: Site, command: str, expected: list[str]) -> list[str]:
    """Type a command, interrupt it if the page does, and return the lines that it printed."""
    env = site.env | {"PATH": f"{Path(CLUSTERRUN[0]).parent}:{site.env['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", command], cwd=site.project, env=env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        printed = list(_lines(process, _outline(expected[-2]) if expected[-1:] == ["^C"] else None))
    assert process.returncode in (0, 1, 130), f"$ {command}\n{''.join(printed)}"
    return printed


def _lines(process: subprocess.Popen[str], last: str | None) -> Iterator[str]:
    """Yield what a command prints; after a line like ``last`` it gets Ctrl-C."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line
        if last is not None and _outline(line) == last:
            process.send_signal(signal.SIGINT)
            last = None


def _outline(line: str) -> str:
    """Return a line without what differs from run to run: words with digits, paths, and the width of its columns."""
    return " ".join("#" if re.search(r"\d|/", word) else word for word in line.split())
