"""The supervisor reads the ranks' records once after each launch: at the end of one there may be 10,000 files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import HUNG
from tests.support.rank_files import put_end, put_progress

#: The supervisor with a command of bash in the place of the ranks; it prints how often it opened a rank's file.
COUNTED = """
import subprocess, sys
from clusterrun.worker.job import step, supervisor
files = []
sys.addaudithook(lambda event, found: files.append(found[0]) if event == "open" and "node-" in str(found[0]) else None)
supervisor.ProgressFollower.look = lambda self: None  # it reads rank 0's record every few seconds
step.hold_port = lambda job, address: (subprocess.Popen(["sleep", "60"]), "1")
step.command = lambda job, nodes, work: ["bash", "-c", 'cp "$RECORDS"/* "$CLUSTERRUN_ATTEMPT_DIR"; exit ' + work[1]]
status = supervisor.main(sys.argv[1:])
print(status, len(files))
"""


@pytest.mark.parametrize(("status", "restarts", "reads"), [(0, 0, 1), (7, 0, 1), (7, 2, 3)])
def test_the_records_of_a_launch_are_read_once(tmp_path: Path, status: int, restarts: int, reads: int) -> None:
    (records := tmp_path / "records").mkdir()
    put_end(records, 0, {"rank": 0, "status": status})
    put_progress(records, 0, {"step": 7})
    options = ["--local", "--hang-timeout", "0", "--shown-late", "5", "--max-restarts", str(restarts)]
    environ = {**os.environ, "CLUSTERRUN_FORCE": "1", "CLUSTERRUN_TOKEN": "t", "RECORDS": str(records)}
    command = [sys.executable, "-c", COUNTED, *options, "--", "script", str(status)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=HUNG, check=True)
    assert done.stdout.split() == [str(status), str(reads)], done.stderr


@pytest.mark.parametrize(("ended", "status"), [([0, 1], 143), ([0], 1)])
def test_a_rank_without_a_record_is_the_cause_if_the_others_were_ended_by_sigterm(
    tmp_path: Path, ended: list[int], status: int
) -> None:
    (records := tmp_path / "records").mkdir()
    for rank in ended:
        put_end(records, rank, {"rank": rank, "status": 143})
    environ = {**os.environ, "CLUSTERRUN_FORCE": "1", "CLUSTERRUN_TOKEN": "t", "RECORDS": str(records)}
    options = ["--local", "--tasks-per-node", "2", "--hang-timeout", "0", "--shown-late", "5"]
    command = [sys.executable, "-c", COUNTED, *options, "--", "script", "143"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=HUNG, check=True)
    assert done.stdout.split()[0] == str(status), done.stderr
