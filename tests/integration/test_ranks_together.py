"""What four real gloo ranks do, as a batch script starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.patience import HUNG, until
from tests.support.rank_files import ends_of


def test_a_script_for_torchrun_runs_unchanged(step: Callable) -> None:
    done = step(2, 2, "script", "--", "allreduce.py", "--help", "-x")
    assert done.status == 0, done.err
    for rank in range(4):
        assert done.lines(rank)[-1] == f"rank {rank} of 4: sum 10 args ['--help', '-x']"
    assert done.lines(0)[:3] == ["Distributed environment: MULTI_CPU", "Number of processes: 4", "Number of GPUs: 0"]
    assert done.statuses() == {0: 0, 1: 0, 2: 0, 3: 0} and not done.has("first_failure.json")
    start = done.json("start.json")
    assert (start["version"], start["world_size"], start["backend"]) == (1, 4, "gloo")
    assert [(r["rank"], r["node"], r["local_rank"], r["device"]) for r in start["ranks"]] == [
        (0, "local0", 0, "cpu"),
        (1, "local0", 1, "cpu"),
        (2, "local1", 0, "cpu"),
        (3, "local1", 1, "cpu"),
    ]


def test_the_first_failing_rank_is_named_and_its_status_kept(step: Callable) -> None:
    done = step(2, 2, "script", "--", "worker/exit_three.py", forked=True)
    assert done.status in (1, 3)  # of the rank whose process ended first; the supervisor prefers the record's
    first = done.json("first_failure.json")
    assert (first["rank"], first["node"], first["status"], first["line"]) == (2, "local1", 3, 11)
    assert first["file"].endswith("worker/exit_three.py")
    assert done.statuses()[2] == 3 and 0 not in done.statuses().values()


def test_an_exception_is_the_users_traceback_alone(step: Callable) -> None:
    done = step(1, 2, "script", "--", "worker/raises.py", forked=True)
    assert done.status == 1
    said = [line[3:] for line in done.err.splitlines() if line.startswith("1: ")]
    assert said[0] == "Traceback (most recent call last):" and said[-2:] == ["ValueError: no such", "thing"]
    assert "clusterrun/worker" not in done.err and "runpy" not in done.err
    first = done.json("first_failure.json")
    assert (first["rank"], first["error"], first["line"]) == (1, "ValueError: no such", 8)
    assert done.statuses() == {0: 143, 1: 1}


def test_rank_0_may_leave_last(step: Callable) -> None:
    done = step(2, 1, "script", "--", "worker/leaves_late.py")
    assert done.status == 0, done.err
    assert set(done.lines(0)[-3:]) == {"thread done", "executor done", "atexit done"}
    assert done.statuses() == {0: 0, 1: 0}
    ends = [end["time"] for end in done.ends().values()]
    started = done.json("start.json")["time"]
    assert min(ends) - started > 1.3, "no rank may leave before the last has returned"


def test_a_rank_that_never_comes_is_named_within_the_limit(step: Callable, tmp_path: Path) -> None:
    began = time.time()
    (tmp_path / "sitecustomize.py").write_text("import os, time\nos.environ.get('RANK') == '1' and time.sleep(600)\n")
    environ = {"CLUSTERRUN_JOIN_TIMEOUT": "4", "PYTHONPATH": str(tmp_path)}
    done = step(2, 1, "script", "--", "allreduce.py", environ=environ)
    assert done.status == 1
    assert "join barrier: 1 of 2 ranks did not join within 4 s: rank 1 on local1" in done.err
    assert done.json("first_failure.json")["error"].startswith("join barrier: 1 of 2 ranks")
    assert not done.has("start.json") and time.time() - began < 2 * HUNG


def test_sigterm_reaches_ranks_inside_a_collective(step: Callable) -> None:
    took = []

    def stop(process: subprocess.Popen[str], helper: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        waiting = 0
        while waiting < 4:
            waiting += "waiting" in process.stdout.readline()
        time.sleep(0.3)
        took.append(time.monotonic())
        process.send_signal(signal.SIGTERM)
        process.wait(HUNG)
        took.append(time.monotonic())

    done = step(2, 2, "script", "--", "worker/hangs.py", during=stop, forked=True)
    assert done.status == 143 and took[1] - took[0] < HUNG
    assert done.statuses() == {0: 143, 1: 143, 2: 143, 3: 143}
    assert not done.has("first_failure.json")


def test_a_rank_whose_sigterm_comes_after_its_peers_end_is_not_the_cause(step: Callable, tmp_path: Path) -> None:
    attempt, lost = tmp_path / "attempt", tmp_path / "lost"

    def stop(process: subprocess.Popen[str], helper: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        waiting = 0
        while waiting < 2:
            waiting += "waiting" in process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)  # the launcher would send rank 1 its SIGTERM at rank 0's end
        os.kill(json.loads((attempt / "start.json").read_text())["ranks"][0]["pid"], signal.SIGTERM)
        until(lost.exists, what="the loss of the connection")
        time.sleep(1)  # long enough for a rank that does not wait to report a failure
        os.kill(json.loads((attempt / "start.json").read_text())["ranks"][1]["pid"], signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
        process.send_signal(signal.SIGTERM)

    done = step(1, 2, "script", "--", "worker/hangs.py", environ={"LOST": str(lost)}, during=stop, forked=True)
    assert done.statuses() == {0: 143, 1: 143}
    assert not done.has("first_failure.json")


def test_a_world_of_another_size_is_refused(step: Callable) -> None:
    done = step(1, 2, "script", "--", "allreduce.py", environ={"CLUSTERRUN_WORLD_SIZE": "8"}, forked=True)
    assert 1 in done.statuses().values() and done.status in (1, 143)  # the other rank may be ended before it has looked
    assert "the run's world size is 8, but the world size in the environment" in done.err
    assert not done.has("start.json")


def test_an_unreachable_store_is_named(step: Callable) -> None:
    unreachable = {"CLUSTERRUN_JOIN_TIMEOUT": "2", "MASTER_PORT": "1"}
    done = step(1, 2, "command", "--", "true", environ=unreachable)
    first = done.json("first_failure.json")  # of either rank: the other one may be ended before its own time-out
    assert done.status == first["status"] == done.ends()[first["rank"]]["status"] == 1
    assert "cannot reach the run's store at 127.0.0.1:1 within 2 s: Connection refused" in done.err


def test_ranks_that_return_after_the_store_has_died_decide_the_end(step: Callable, tmp_path: Path) -> None:
    def lose(process: subprocess.Popen[str], helper: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        joined = 0
        while joined < 2:  # both have passed the join barrier
            joined += "up" in process.stdout.readline()
        helper.kill()
        helper.wait()
        go.touch()

    go = tmp_path / "go"
    waits = f"while not os.path.exists({str(go)!r}): time.sleep(0.05)"
    script = f"import os, time; print('up', flush=True)\n{waits}\ntime.sleep(int(os.environ['RANK']))"
    done = step(2, 1, "command", "--", sys.executable, "-c", script, during=lose)
    assert done.status == 0, done.err
    assert done.statuses() == {0: 0, 1: 0} and not done.has("first_failure.json")
    assert done.err.count("the run's store is gone") == 1


def test_a_rank_that_waits_for_the_others_ends_at_sigterm(step: Callable) -> None:
    def terminate(process: subprocess.Popen[str], helper: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("1: returned"):
            pass
        pid = int(line.split()[-1])
        deadline = time.monotonic() + 2 * HUNG
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, "the rank waits on"
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.2)

    done = step(1, 3, "script", "--", "worker/term_at_the_end.py", during=terminate)
    assert done.statuses()[1] == 143 and done.statuses()[2] != 0


STRANGER = """
import sys, time
from datetime import timedelta
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
while True:  # whatever our ranks post, a stranger copies to every name that may mean the end
    for key in store.list_keys():
        prefix, _, name = key.partition("/")
        if name in ("join/0", "plan"):
            value = store.get(key)
            for told in ("done", "done/0", "done/all"):
                store.set(f"{prefix}/{told}", value)
            if name == "plan":
                open("planted", "w").close()
    time.sleep(0.01)
"""


def test_a_stranger_at_the_store_ends_no_wait(step: Callable, tmp_path: Path) -> None:
    strangers: list[subprocess.Popen[bytes]] = []
    left: list[int] = []

    def meddle(process: subprocess.Popen[str], helper: subprocess.Popen[str]) -> None:
        while b"MASTER_PORT=" not in (environ := Path("/proc", str(process.pid), "environ").read_bytes()):
            time.sleep(0.01)
        port = environ.split(b"MASTER_PORT=")[1].split(b"\0")[0].decode()
        strangers.append(subprocess.Popen([sys.executable, "-c", STRANGER, port], cwd=tmp_path))
        while not (tmp_path / "planted").exists():
            time.sleep(0.05)
        time.sleep(2)  # long enough for the three ranks that have returned to look several times
        left.extend(ends_of(tmp_path / "attempt"))
        strangers[0].kill()
        strangers[0].wait()
        (tmp_path / "go").touch()

    script = "import os, time\nwhile os.environ['RANK'] == '0' and not os.path.exists('go'): time.sleep(0.05)"
    secret = {"CLUSTERRUN_SECRET": "s3cret"}
    done = step(2, 2, "command", "--", sys.executable, "-c", script, environ=secret, during=meddle, cwd=tmp_path)
    assert left == [], "no rank left before the last had returned"
    assert (done.status, done.statuses()) == (0, {0: 0, 1: 0, 2: 0, 3: 0}), done.err


def test_waiting_ranks_are_silent(step: Callable) -> None:
    done = step(2, 1, "command", "--", "sh", "-c", '[ "$RANK" != 0 ] || sleep 12')
    assert (done.status, done.err) == (0, "")
