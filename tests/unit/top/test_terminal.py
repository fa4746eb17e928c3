"""``top`` gives the terminal back as it was, however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from tests.support.patience import HUNG

SHOW = """
import tempfile
from pathlib import Path
from clusterrun.top.app import Top
from clusterrun.top.source import TopData
from tests.support.fake_cluster import FakeCluster, run, status
cluster = FakeCluster()
cluster.put((run(Path(tempfile.mkdtemp()), 1), status(1)))
raise SystemExit(Top(TopData(cluster)).run() or 0)
"""

#: A driver that never ends, as seen after its terminal was gone.
HANGS = """
import threading
from textual.drivers.linux_driver import LinuxDriver
from clusterrun.top import app
LinuxDriver.close = lambda self: threading.Event().wait()
app.LEAVE_S = 1.0
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_from_outside_leaves_the_terminal_as_it_was(number: signal.Signals, code: int) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    before = termios.tcgetattr(theirs)
    env = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen([sys.executable, "-c", SHOW], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as view:
        written = _until(ours, b"RUNNING")
        view.send_signal(number)
        written += _until(ours, b"\x1b[?1049l")  # the other screen is left
        assert view.wait(HUNG) == code
    assert b"Traceback" not in written
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_a_signal_ends_it_although_the_terminal_takes_nothing_more() -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    env = {**os.environ, "TERM": "xterm-256color"}
    code = HANGS + SHOW
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as view:
        os.close(theirs)
        _until(ours, b"RUNNING")
        view.send_signal(signal.SIGTERM)
        try:
            assert view.wait(HUNG) == 143
        finally:
            view.kill()
            os.close(ours)


def _until(terminal: int, wanted: bytes, seconds: float = HUNG) -> bytes:
    written, deadline = b"", time.monotonic() + seconds
    while wanted not in written:
        assert time.monotonic() < deadline, written[-2000:]
        if select.select([terminal], [], [], 0.2)[0]:
            written += os.read(terminal, 65536)
    return written
