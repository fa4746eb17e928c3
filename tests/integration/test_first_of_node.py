"""With --local-main-process-first the other ranks of a node start their work once local rank 0 joins them."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.patience import until

SCRIPT = Path(__file__).parents[1] / "data" / "scripts" / "tells_its_start.py"


def options(**more: str) -> dict[str, str]:
    return {"CLUSTERRUN_LOCAL_MAIN_PROCESS_FIRST": "True", "CLUSTERRUN_TOKEN": uuid.uuid4().hex, **more}


@pytest.mark.parametrize("mesh", ["", "mesh"])
def test_each_node_starts_the_script_in_turn(step: Callable, mesh: str) -> None:
    done = step(2, 2, "script", "--", str(SCRIPT), environ=options(**({"MESH": "1"} if mesh else {})))
    assert done.status == 0, done.err
    times = [[int(word) for word in done.lines(rank)[-1].split()[1:]] for rank in range(4)]
    for first, other in ((0, 1), (2, 3)):
        assert times[other][0] >= times[first][1], "the other rank began when the first one joined"
    assert "local0: the other ranks waited" in done.err and "local1: the other" not in done.err


def test_the_others_commands_start_when_the_firsts_program_has_loaded_torch(step: Callable) -> None:
    done = step(1, 2, "command", "--", sys.executable, str(SCRIPT), environ=options())
    assert done.status == 0, done.err
    first, other = ([int(word) for word in done.lines(rank)[-1].split()[1:]] for rank in range(2))
    assert other[0] > first[0] and "waited" in done.err


def test_a_script_that_joins_nothing_lets_the_others_start_at_its_end(step: Callable, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import time\nprint(time.monotonic_ns())\ntime.sleep(1)\nprint(time.monotonic_ns())\n")
    environ = options(CLUSTERRUN_PROCESS_GROUP="independent")
    done = step(1, 2, "script", "--", str(script), environ=environ)
    assert done.status == 0, done.err
    assert int(done.lines(1)[-2]) >= int(done.lines(0)[-1])


def test_a_failure_of_the_first_is_the_runs_first_failure(step: Callable, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import os\nraise ValueError('rank ' + os.environ['RANK'])\n")
    done = step(1, 2, "script", "--", str(script), environ=options())
    assert done.status == 1 and "rank 0" in done.json("first_failure.json")["error"]


def test_signals_reach_a_rank_that_waits(step: Callable, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = tmp_path / "waits.py"
    script.write_text(f"import time\nopen({str(ready)!r}, 'w').close()\ntime.sleep(600)\n")

    def stop(process: subprocess.Popen[str], _: subprocess.Popen[str]) -> None:
        until(ready.exists)
        process.send_signal(signal.SIGTERM)

    done = step(1, 2, "script", "--", str(script), environ=options(), during=stop)
    assert done.status, done.err
