"""Where Slurm signals all processes of a step, only the rank's main process acts on the signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from clusterrun.worker.node.probe import descendants
from tests.support.installed_command import SCRIPTS
from tests.support.patience import HUNG

TERMINATES = """
import multiprocessing, os, signal, subprocess, sys, time
import torch

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        pipe.send(subprocess.run(["sh", "-c", "kill -TERM $$"]).returncode)
        time.sleep(10_000)

signal.signal(signal.SIGTERM, lambda *_: print("the script's handler", flush=True))
got, pipe = multiprocessing.Pipe()
batches = iter(torch.utils.data.DataLoader(Stuck(), num_workers=1, multiprocessing_context="fork"))
print("a program in a worker:", got.recv())
(worker,) = batches._workers
worker.terminate()
worker.join()
print("a worker:", worker.exitcode)

def work(handles):
    os.kill(os.getpid(), signal.SIGTERM)
    if handles:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    pipe.send("ready")
    time.sleep(10_000)

for handles in (False, True):
    child = multiprocessing.get_context("fork").Process(target=work, args=[handles])
    child.start()
    got.recv()
    child.terminate()
    child.join()
    print("another child:", child.exitcode, flush=True)
"""

# as Lightning and others handle it
CALLS_THE_HANDLER_BEFORE = """
import os, signal, sys, time

def handle(signum, frame):
    before(signum, frame) if callable(before) else print("saves later", flush=True)

before = signal.signal(signal.SIGTERM, handle)
os.kill(os.getpid(), signal.SIGTERM)
assert signal.getsignal(signal.SIGTERM) is handle
assert signal.signal(signal.SIGTERM, before) is handle
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(10_000)
"""

FORKS = """
import os, signal

def note(signum, frame):
    print(signal.Signals(signum).name, flush=True)

signal.signal(signal.SIGUSR1, note)
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(0)
os.wait()
"""


@contextmanager
def rank(worker: Path, script: Path, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A single rank that runs this script; it ends with the block."""
    words = [sys.executable, "-u", "-W", "ignore", str(worker / "__main__.py"), "script", "--", str(script), *arguments]
    environ = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""} | variables
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def written(folder: Path, script: str) -> Path:
    file = folder / "train.py"
    file.write_text(script)
    return file


def lines_until(process: subprocess.Popen[str], last: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if lines[-1] == last:
            break
    return lines


@pytest.mark.parametrize(("method", "workers"), [("fork", 4), ("spawn", 1), ("forkserver", 1)])
def test_a_rank_saves_while_its_data_loader_gets_the_same_signals(worker: Path, method: str, workers: int) -> None:
    with rank(worker, SCRIPTS / "loads_with_workers.py", method, str(workers)) as process:
        assert lines_until(process, "ready")[-1] == "ready"
        for signum in (signal.SIGUSR1, signal.SIGTERM):
            for pid in [*descendants(process.pid), process.pid]:
                os.kill(pid, signum)
            assert lines_until(process, "saved") == [f"{signum.name} in the rank", "saved"]
        assert process.wait(HUNG) == 0


def test_a_rank_ends_its_children_by_sigterm(tmp_path: Path, worker: Path) -> None:
    with rank(worker, written(tmp_path, TERMINATES)) as process:
        ends = ["a program in a worker: -15", "a worker: 0", "another child: -15", "another child: 7"]
        assert lines_until(process, "")[-4:] == ends
        assert process.wait(HUNG) == 0


def test_a_handler_that_calls_the_one_before_it_does_not_end_the_rank(tmp_path: Path, worker: Path) -> None:
    with rank(worker, written(tmp_path, CALLS_THE_HANDLER_BEFORE)) as process:
        assert lines_until(process, "")[-1] == "saves later"
        assert process.wait(HUNG) == 128 + signal.SIGTERM


@pytest.mark.parametrize(("variables", "seen"), [({}, []), ({"CLUSTERRUN_RANKS_PER_NODE": "2"}, ["SIGUSR1"])])
def test_a_forked_child_keeps_the_scripts_handlers_only_where_it_is_a_rank(
    tmp_path: Path, worker: Path, variables: dict[str, str], seen: list[str]
) -> None:
    with rank(worker, written(tmp_path, FORKS), **variables) as process:
        assert [line for line in lines_until(process, "") if line.startswith("SIG")] == seen
        assert process.wait(HUNG) == 0
