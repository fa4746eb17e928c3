"""A desk: an empty project folder, a shell's environment, stand-ins for Slurm's commands, and the command line on it.

Commands run in this process, which costs milliseconds; `Desk.process` runs the real program.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterrun.cli import main

CONFIG = """Configuration data as of 2026-11-21T04:00:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = desk
GresTypes               = gpu
"""
#: Logs the number of its words, its name and its words, each ended by a NUL; then answers what stands beside it. An
#: `sbatch --test-only` is answered from `sbatch-test.err` and not logged. `scancel` removes jobs from squeue's.
_FAKE = """#!/bin/sh
case "${0##*/} $1" in "sbatch --test-only")
    /bin/cat >/dev/null; /bin/cat "$0-test.err" >&2; exec /bin/grep -q "to start at" "$0-test.err";;
esac
printf '%s\\0' "$#" "${0##*/}" "$@" >>"${0%/*}/calls"
[ ! -s "$0.err" ] || /bin/cat "$0.err" >&2
[ ! -s "$0.out" ] || /bin/cat "$0.out"
[ ! -s "$0.status" ] || read -r status <"$0.status"
if [ "${0##*/}" = scancel ] && [ "${status:-0}" = 0 ]; then  # what it has cancelled is no longer in the queue
    for job in "$@"; do /bin/sed -i "/^$job[^0-9]/d; /^${job%%_*}_\\[/d" "${0%/*}/squeue.out"; done
fi
exit "${status:-0}"
"""
COMMANDS = ("sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo", "sacctmgr")


class FakeSlurm:
    """Executables in a folder for PATH. Each answers what was set last, and `calls` tells how each was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in COMMANDS:
            path = folder / name
            path.write_text(_FAKE)
            path.chmod(0o755)
        self.answer("scontrol", CONFIG)
        self.estimate("Job 5 to start at 1 using 8 processors on nodes node[1-2] in partition gpu")

    def answer(self, name: str, out: str = "", *, err: str = "", status: int = 0) -> None:
        """What a command says from now on."""
        for kind, text in (("out", out), ("err", err), ("status", f"{status}\n")):
            (self.folder / f"{name}.{kind}").write_text(text)

    def estimate(self, words: str) -> None:
        """What `sbatch --test-only` says from now on."""
        (self.folder / "sbatch-test.err").write_text(f"sbatch: {words}\n")

    @property
    def calls(self) -> list[list[str]]:
        """The commands that were run, each with its arguments."""
        try:
            words = (self.folder / "calls").read_text().split("\0")
        except FileNotFoundError:
            return []
        found = []
        while len(words) > 1:
            end = int(words[0]) + 2
            found.append(words[1:end])
            words = words[end:]
        return found

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)

    def forget(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)["data"]


class Desk:
    """A user's project folder, home and PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "train.py").write_text("print('hello')\n")
        self.slurm = FakeSlurm(folder / "slurm")
        self.state = folder / "state"
        home = folder / "home"
        home.mkdir()
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "SLURM_CONF"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setenv("CLUSTERRUN_STATE", str(self.state))
        monkeypatch.setenv("PATH", f"{self.slurm.folder}:/usr/bin:/bin")
        monkeypatch.chdir(self.project)

    def set(self, **environ: str) -> None:
        """Set variables of the shell."""
        for name, value in environ.items():
            self._monkeypatch.setenv(name, value)

    def without_slurm(self) -> None:
        """No Slurm command is on PATH."""
        nothing = self.slurm.folder.with_name("nothing")
        nothing.mkdir()
        for name in ("bash", "env"):
            (nothing / name).symlink_to(f"/usr/bin/{name}")
        self.set(PATH=str(nothing))

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def type(self, *words: str) -> Said:
        """Type `clusterrun WORDS…`."""
        self._capture.readouterr()
        with pytest.raises(SystemExit) as stop:
            main(list(words))
        said = self._capture.readouterr()
        code = stop.value.code
        return Said(code if isinstance(code, int) else 1, said.out, said.err)

    def process(self, *words: str, env: Mapping[str, str] | None = None, **options: Any) -> Said:
        """The same as a program of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "clusterrun", *words],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            **{"errors": "surrogateescape", "encoding": "utf-8", **options},
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def files(self) -> dict[str, bytes | None]:
        """Everything below the project folder, folders as None."""
        return {
            str(path.relative_to(self.project)): None if path.is_dir() else path.read_bytes()
            for path in sorted(self.project.rglob("*"))
        }


def shell_line(script: str, beginning: str) -> str:
    """The one line of a script that begins so."""
    (line,) = [line for line in script.split("\n") if line.startswith(beginning)]
    return line


def work_words(script: str) -> list[str]:
    """The worker's arguments as the shell reads them in a rendered script."""
    return shlex.split(shell_line(script, "CR_WORK=").removeprefix("CR_WORK=(").removesuffix(")"))


def refused(desk: Desk, *words: str, status: int = 2, calls: bool = False) -> tuple[str, str]:
    """Type a command that must be refused: one line, at most one hint, nothing on stdout, nothing written.

    Returns the line and the hint. With `calls` False no Slurm command may have been run either, but for the one look
    at the configuration.
    """
    before = desk.files()
    said = desk.type(*words)
    assert said.status == status, said
    assert said.out == "", said
    lines = said.err.splitlines()
    assert "Traceback" not in said.err
    assert 1 <= len(lines) <= 2 and lines[0].startswith("clusterrun: "), said.err
    assert len(lines) == 1 or lines[1].startswith("  hint: "), said.err
    assert desk.files() == before
    if not calls:
        assert [call for call in desk.slurm.calls if call[0] != "scontrol"] == []
    return lines[0].removeprefix("clusterrun: "), lines[1].removeprefix("  hint: ") if lines[1:] else ""
