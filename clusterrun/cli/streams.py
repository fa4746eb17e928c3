"""Standard streams as they may be found: closed (``>&-``), full, or in an encoding that lacks our signs."""

from __future__ import annotations

import errno
import io
import os
import sys

#: What a write to a file says that takes no more.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def stand_ready() -> None:
    """Put /dev/null where a standard stream is closed, and let what an encoding lacks be printed as an escape."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # all three are taken, or the next file that is opened would be the standard output of each program we run
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            if getattr(sys, name) is None:
                setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence_output() -> None:
    """Drop what standard output still holds, or the interpreter complains of it while it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_full(error: Exception) -> bool:
    """Whether an open file took no more: standard output, mostly, as errors of other files bear their names."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None
