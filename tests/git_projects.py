"""Git repositories for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

_NOBODY = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return its output."""
    return subprocess.run(
        ["git", "-C", str(folder), *_NOBODY, *words], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def make_repository(folder: Path, files: Mapping[str, str]) -> None:
    """Make a repository of a folder, and commit these files and what the folder has already."""
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, files)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "first")
