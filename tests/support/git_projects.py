"""Git repositories for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.installed_command import ONE_RANK, Job, Site
from tests.support.patience import HUNG

_NOBODY = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, and return its output."""
    return subprocess.run(
        ["git", "-C", str(folder), *_NOBODY, *words], check=True, capture_output=True, text=True, timeout=HUNG
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


def edit_while_pending(site: Site) -> tuple[Job, Job]:
    """Submit a job that waits for another one, edit its script and its settings file, and let it start.

    Returns the job after its end, and a job submitted after the edit.
    """
    make_repository(site.project, {"run.sh": "cat $1; echo script one; pwd\n", "a.yaml": "settings one\n"})
    gate = site.submit(*ONE_RANK, "--no-snapshot", "--", "sleep", "600")
    job = site.submit(*ONE_RANK, "--dependency", f"afterany:{gate.id}", "--", "bash", "run.sh", "a.yaml")
    write_files(site.project, {"run.sh": "cat $1; echo script two; pwd\n", "a.yaml": "settings two\n"})
    site.cli("cancel", gate.id)
    site.wait_state(job, "COMPLETED")
    later = site.submit(*ONE_RANK, "--", "bash", "run.sh", "a.yaml")
    return job, later


def check_saved_code(site: Site) -> None:
    """Check that a job runs the code that was submitted, and that `diff` shows a later edit."""
    job, later = edit_while_pending(site)
    lines = job.out.read_text().splitlines()
    for line in ("0: settings one", "0: script one", f"0: {site.project}"):
        assert line in lines, lines
    said = site.cli("diff", job.id, later.id).stdout
    assert "\n-settings one\n+settings two\n" in said and "script two" in said, said
