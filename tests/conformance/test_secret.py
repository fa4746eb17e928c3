"""`--secret` on this machine and on Slurm: the ranks have the value, and nobody finds it anywhere else."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.installed_command import ONE_RANK, Site, until
from tests.support.proc import command_lines

VALUE = "correct-horse-battery-staple"


def test_the_value_reaches_the_ranks_and_is_written_nowhere(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    script = site.project / "shows.sh"
    script.write_text('#!/bin/sh\necho "${#MY_TOKEN} letters"\nwhile [ ! -e go ]; do sleep 0.1; done\n')
    script.chmod(0o755)
    monkeypatch.setitem(site.env, "MY_TOKEN", VALUE)
    job = site.submit(*ONE_RANK, "--secret", "MY_TOKEN", "--", str(script))
    site.wait_joined(job)
    until(lambda: f"{len(VALUE)} letters" in job.out.read_text(), 30)
    assert VALUE.encode() not in command_lines()
    if not job.id.startswith("L"):
        shown = subprocess.run(
            ["scontrol", "show", "job", "-d", job.id], env=site.env, capture_output=True, text=True, check=True
        )
        assert f"JobId={job.id}" in shown.stdout and VALUE not in shown.stdout
    (site.project / "go").touch()
    site.wait_state(job, "COMPLETED")
    texts = {path: path.read_bytes() for folder in (site.project, site.home) for path in folder.rglob("*")
             if path.is_file() and os.access(path, os.R_OK)}  # fmt: skip
    assert job.out in texts and not [path for path, text in texts.items() if VALUE.encode() in text]
