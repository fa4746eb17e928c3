"""The processes of a local job, as /proc shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clusterrun.system import processes
from lab import procs
from tests.support.installed_command import until

DEAD_MAIN_THREAD = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit, of this thread alone
"""


def test_a_process_whose_main_thread_alone_is_dead_still_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAD_MAIN_THREAD]) as child:
        try:
            until(lambda: ") Z" in Path(f"/proc/{child.pid}/stat").read_text(), 20)
            process = processes.find_process(child.pid)
            assert process is not None and processes.is_alive(child.pid, process.start)
            assert procs.start_time(child.pid) == process.start
        finally:
            child.kill()


def test_a_dead_process_that_nobody_has_waited_for_is_not_alive() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = processes.find_process(child.pid)
        child.kill()
        assert process is not None
        until(lambda: not processes.is_alive(child.pid, process.start), 20)
        assert procs.start_time(child.pid) is None
