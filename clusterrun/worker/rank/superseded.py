"""Ends a rank whose run has been started again elsewhere: its node was cut off, and came back. Standard library only.

Built-in tasks check the attempt number before each write. The user's code does not, so its process is ended.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from ...run_folder import attempt_number
from ..node import probe

PRINT_S = 1.0  # a pipe that nobody reads must not keep this process alive


def end_if_superseded(rank: int) -> None:
    """Kill this process and all its descendants if a newer attempt of the run has started.

    Raises OSError if the number cannot be read. Not SIGTERM: many scripts save a checkpoint then, into the folder that
    the newer attempt writes to.
    """
    try:
        attempt_number.check()
        return
    except attempt_number.Superseded as error:
        line = f"clusterrun: rank {rank}: {error}\n"
    printing = threading.Thread(target=_print, args=(line,), daemon=True)
    printing.start()
    printing.join(PRINT_S)
    for pid in probe.descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _print(line: str) -> None:
    with suppress(OSError, ValueError):
        os.write(2, line.encode())
