"""--stage-env in the supervisor: which archive it takes, and the ranks' Python without and with a copy."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from clusterrun.worker.errors import WorkerError
from clusterrun.worker.staged_env import RECORD, StagedEnvironment, _find_archive


def record(run_dir: Path, archive: Path) -> None:
    (run_dir / RECORD).write_text(json.dumps({"archive": str(archive)}))


def test_the_archive_of_the_run_is_found(tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    archive.touch()
    record(tmp_path, archive)
    assert _find_archive(tmp_path) == archive


def test_an_archive_that_is_gone_a_link_or_of_another_user_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, link = tmp_path / "environment.tar.gz", tmp_path / "link"
    with pytest.raises(WorkerError, match="gone"):
        _find_archive(tmp_path)
    record(tmp_path, archive)
    with pytest.raises(WorkerError, match="gone"):
        _find_archive(tmp_path)
    archive.touch()
    link.symlink_to(archive)
    record(tmp_path, link)
    with pytest.raises(WorkerError, match="not a file of yours"):
        _find_archive(tmp_path)
    record(tmp_path, archive)
    monkeypatch.setattr(os, "geteuid", lambda: archive.stat().st_uid + 1)
    with pytest.raises(WorkerError, match="not a file of yours"):
        _find_archive(tmp_path)
    (tmp_path / RECORD).write_text("[")
    with pytest.raises(WorkerError, match="cannot read"):
        _find_archive(tmp_path)


def test_the_ranks_use_the_copy_and_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/shared/venv")
    monkeypatch.setattr(sys, "executable", "/shared/venv/bin/python")
    monkeypatch.setenv("VIRTUAL_ENV", "/shared/venv")
    monkeypatch.setenv("CONDA_PREFIX", "/shared/conda")
    staged = StagedEnvironment()
    assert staged.python == "/shared/venv/bin/python" and staged.variables() == {"VIRTUAL_ENV": "/shared/venv"}
    staged.prefix = "/tmp/copy"
    assert staged.python == "/tmp/copy/bin/python" and staged.variables() == {"VIRTUAL_ENV": "/tmp/copy"}
