"""Stand-ins for ssh and a home there: commands run on this machine, in another home folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

#: ``-O`` asks about the shared connection, ``-f`` opens it; each command counts, and the first ``lost`` ones are lost.
SSH = """#!/bin/bash
here=${0%/*}
printf '%s\\n' "$*" >>"$here/calls"
for word; do
    case $word in
        -O) [ ! -e "$here/down" ]; exit ;;
        -fNn) [ ! -e "$here/down" ] && exit; echo "ssh: connect to host: Connection refused" >&2; exit 255 ;;
    esac
done
while [[ $1 == -* ]]; do [[ $1 == -[ol] ]] && shift; shift; done
shift  # the host
read -r lost <"$here/lost"
if [ "$lost" -gt 0 ] && [[ $* != *"rsync --server"* ]]; then echo $((lost - 1)) >"$here/lost"; exit 255; fi
[ ! -e "$here/greeting" ] || cat "$here/greeting"
cd / && HOME="$here/home" exec sh -c "$*"
"""
CLUSTERRUN = """#!/bin/bash
here=${0%%/home/*}
printf '%s\\n' "$PWD: $*" >>"$here/ran"
[ "$CLUSTERRUN_REMOTE" = end ] || cat >>"$here/sent"
[ ! -e "$here/answer" ] || . "$here/answer"
"""


@dataclass
class Cluster:
    """A host whose ssh and clusterrun are scripts; what they were called with is in files."""

    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def answer(self, script: str) -> None:
        """What clusterrun does there: lines of bash."""
        (self.folder / "answer").write_text(script)

    def lose(self, count: int) -> None:
        """Lose the next connections of commands."""
        (self.folder / "lost").write_text(f"{count}\n")

    def ran(self) -> list[str]:
        """The commands that clusterrun got there, each with its folder."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def calls(self) -> str:
        """The command lines of ssh."""
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""

    @property
    def sent(self) -> str:
        """What clusterrun got on standard input there."""
        return (self.folder / "sent").read_text()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    folder = tmp_path / "there"
    installed = folder / "home/.local/share/clusterrun/bin"
    installed.mkdir(parents=True)
    for path, text in ((folder / "ssh", SSH), (installed / "clusterrun", CLUSTERRUN)):
        path.write_text(text)
        path.chmod(0o755)
    made = Cluster(folder)
    made.lose(0)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTERRUN_STATE", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return made
