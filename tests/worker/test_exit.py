"""How a rank's process ends after its work."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from types import SimpleNamespace
from clusterrun.worker.exit import RankExit

class CrashesAtExit:
    def __del__(self):
        os._exit(9)

kept = CrashesAtExit()
rank = RankExit(SimpleNamespace(rank=0), SimpleNamespace(attempt_dir=None))
rank.install()
rank.runs_own_code = bool(int(sys.argv[1]))
print("done", end="")
sys.exit(rank.succeed())
"""


@pytest.mark.parametrize(("own", "status"), [("1", 0), ("0", 9)])
def test_a_library_that_crashes_at_exit_does_not_spoil_a_task_that_is_done(own: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, own], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "done"), done.stderr
