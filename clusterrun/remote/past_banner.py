"""Read past what a login shell prints before the command that was asked for: greetings, quotas, loaded modules.

Many sites print them for every shell. So each command begins with a line of its own, and what comes before it on
standard output is no answer. rsync gets this module as its remote shell: ``python -m clusterrun.remote.past_banner
NUMBER ssh …``, where NUMBER is how many words come before the host, which may have ``-l USER`` before it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import IO

from clusterrun.system import shell

MARK = "clusterrun-begins-here"
COMMAND = f"echo; echo {MARK}; "
"""What each command begins with; a shell may have printed an unfinished line."""
_LONGEST = 1_000_000
"""Bytes of a line, and of all that is kept of a greeting."""


def read_past(stream: IO[bytes]) -> bytes:
    """Read up to the mark; return what was printed instead if there is none, as of an account that is locked."""
    before = b""
    while line := stream.readline(_LONGEST):
        if line == f"{MARK}\n".encode():
            return b""
        before = (before + line)[:_LONGEST]
    return before


def strip(printed: str) -> str:
    """Return a command's output without what came before the mark."""
    before, mark, after = printed.partition(f"{MARK}\n")
    return after if mark else before


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield what comes next as soon as it is there."""
    while data := stream.read1(65_536):  # type: ignore[attr-defined]
        yield data


def main(words: list[str]) -> int:
    """Run a remote shell for rsync, which reads and writes its streams."""
    host = 1 + int(words[0])
    host += 2 if words[host] == "-l" else 0
    argv = [*words[1 : host + 1], COMMAND, *words[host + 1 :]]
    process = shell.start_fed(argv, env=os.environ, stdin=None, piped=True)
    assert process.stdout is not None
    sys.stderr.buffer.write(read_past(process.stdout))
    sys.stderr.flush()
    for data in chunks(process.stdout):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return shell.exit_status(process.wait())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
