"""--stage-env in the supervisor: which archive it takes, and the ranks' Python without and with a copy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.job.staged_env import KEEPER, RECORD, StagedEnvironment, _find_archive
from tests.support.installed_command import until
from tests.support.patience import HUNG


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
    with pytest.raises(WorkerError, match="is not a regular file that you own"):
        _find_archive(tmp_path)
    record(tmp_path, archive)
    monkeypatch.setattr(os, "geteuid", lambda: archive.stat().st_uid + 1)
    with pytest.raises(WorkerError, match="is not a regular file that you own"):
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


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The task of one node, which has made its folder, `copy`."""
    with subprocess.Popen(
        ["sh", "-c", KEEPER, "sh", str(tmp_path / "copy"), "e.tar.gz"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, bufsize=0, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == b"made\n"
        yield process
        process.kill()


@pytest.mark.parametrize("warning", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
def test_a_warning_to_the_job_does_not_keep_the_copy_from_being_removed(
    keeper: subprocess.Popen[bytes], tmp_path: Path, warning: signal.Signals
) -> None:
    os.killpg(keeper.pid, warning)
    assert keeper.stdin is not None
    keeper.stdin.close()
    assert keeper.wait(HUNG) == 0 and not (tmp_path / "copy").exists()


def test_a_cancel_stops_the_unpacking_and_the_copy_is_removed(keeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    slow = tmp_path / "tar"
    slow.write_text('#!/bin/sh\ntouch "$4/half"\necho unpacking >&2\nexec sleep 600\n')
    slow.chmod(0o755)
    assert keeper.stdin is not None and keeper.stdout is not None
    keeper.stdin.write(b"unpack\n")
    until((tmp_path / "copy" / "half").exists, 10)
    os.killpg(keeper.pid, signal.SIGTERM)
    assert keeper.stdout.readline().startswith(b"failed: ")
    keeper.stdin.close()
    assert keeper.wait(HUNG) == 0 and not (tmp_path / "copy").exists()
