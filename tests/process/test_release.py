"""What `make release` refuses, before it builds anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.folders import ROOT
from tests.support.git_projects import git, make_repository
from tests.support.patience import HUNG


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of version 1.2.3 that could be released."""
    files = {
        "clusterrun/__init__.py": '__version__ = "1.2.3"\n',
        ".gitignore": "__pycache__/\n",
        "CHANGELOG.md": "# Changelog\n\n## 1.2.3 (2026-11-28)\n- A change.\n",
    }
    make_repository(tmp_path / "project", files)
    return tmp_path / "project"


def release(project: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "release.sh"
    return subprocess.run([script, sys.executable], cwd=project, capture_output=True, text=True, timeout=HUNG)


def test_changes_that_are_not_committed_are_refused(project: Path) -> None:
    (project / "new.py").write_text("")
    done = release(project)
    assert done.returncode == 1 and "not committed" in done.stderr


def test_a_version_without_a_dated_heading_is_refused(project: Path) -> None:
    (project / "CHANGELOG.md").write_text("## 1.2.3 (unreleased)\n\n## 1.2.2 (2026-11-27)\n")
    git(project, "commit", "-aqm", "heading")
    done = release(project)
    assert done.returncode == 1 and "CHANGELOG.md has no heading '## 1.2.3 (" in done.stderr


def test_a_version_that_was_released_is_refused(project: Path) -> None:
    git(project, "tag", "v1.2.3")
    done = release(project)
    assert done.returncode == 1 and "there is a tag v1.2.3" in done.stderr


def test_a_release_that_does_not_build_leaves_no_tag(project: Path) -> None:
    assert release(project).returncode != 0, "it has no pyproject.toml"
    assert git(project, "tag") == ""
