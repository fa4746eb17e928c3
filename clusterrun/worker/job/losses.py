"""Notices that the losses in the job's own logs have become NaN; standard library only."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

TAIL = 65_536  # bytes of each log
ENOUGH = 3  # values in a row up to the end: a single one is often a skipped step
LOSS = re.compile(
    rb"(?i)(?:(?<![\w./-])|(?<=train[/_]))(?<!val )(?<!eval )(?<!test )(?<!best )(?<!validation )"
    rb"loss[\"']?[ :=|]{1,20}(?:tensor\()?(?:(?P<nan>nan)\b|[-+]?\d)"
)


def is_nan(begin: Sequence[int], logs: Sequence[int] = (1, 2)) -> bool:
    """Return whether the last losses printed into one of these open files are NaN; raises OSError.

    `begin` has the offset in bytes of each file from which on it is read. Only regular files are read: the batch
    script's streams are the job's logs.
    """
    for log, first in zip(logs, begin, strict=True):
        found = os.fstat(log)
        if not stat.S_ISREG(found.st_mode):
            continue
        with open(f"/proc/self/fd/{log}", "rb") as file:  # the descriptor itself is for writing only
            file.seek(max(first if first <= found.st_size else 0, found.st_size - TAIL))
            last = [match["nan"] for match in LOSS.finditer(file.read(TAIL))][-ENOUGH:]
        if len(last) == ENOUGH and all(last):
            return True
    return False
