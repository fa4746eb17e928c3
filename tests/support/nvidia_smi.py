"""A stand-in for nvidia-smi: it prints what a test says, or does what a shell script says, and keeps its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

GPU, SECOND = "GPU-5f1e0000-aaaa-bbbb-cccc-000000000001", "GPU-5f1e0000-aaaa-bbbb-cccc-000000000002"


class NvidiaSmi:
    """The stand-in in a folder that is the first of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def does(self, script: str) -> None:
        program = self.folder / "nvidia-smi"
        program.write_text(f'#!/bin/sh\necho "$*" >>"$0.calls"\n{script}\n')
        program.chmod(0o755)

    def says(self, *rows: str) -> None:
        (self.folder / "answer").write_text("".join(f"{row}\n" for row in rows))
        self.does('cat "${0%/*}/answer"')

    @property
    def calls(self) -> list[str]:
        file = self.folder / "nvidia-smi.calls"
        return file.read_text().splitlines() if file.exists() else []


def row(pid: int, mebibytes: object, device: str = GPU) -> str:
    """A row of its answer about processes."""
    return f"{device}, {pid}, {mebibytes}"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> NvidiaSmi:
    """The stand-in, in PATH."""
    made = NvidiaSmi(folder)
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    return made
