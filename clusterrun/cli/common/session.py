"""What all commands share: the ``--json`` option, what click hands to each as ``ctx.obj``, the standard streams.

Streams may be closed (``>&-``), full, or in an encoding without some characters.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # `--help` needs no Cluster
    from pathlib import Path

    from clusterrun.cluster import Cluster
    from clusterrun.logs.request import Resume

AGENT = "CLUSTERRUN_AGENT"
"""Set in the environment of a command that a coding agent runs: see ``cli/common/agent.py``."""
COMPLETE = "_CLUSTERRUN_COMPLETE"
"""Set by a shell that asks for completions (``bash_complete``); ``COMP_LINE`` is then the line up to the cursor."""

#: Errors of a write to a full file or disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_UTF8, _BEFORE = "PYTHONUTF8", "CLUSTERRUN_PYTHONUTF8"

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


class Session:
    """One call of the command line: the words after ``--``, and the only place that makes a Cluster.

    ``script`` is None if no ``--`` was typed. If another machine sent the command (``--remote``), ``terminal`` is
    whether its output is one, and ``resume`` how followed logs continue.
    """

    def __init__(
        self, script: Sequence[str] | None = None, terminal: bool | None = None, resume: Resume | None = None
    ) -> None:  # fmt: skip
        self.script, self.terminal, self.resume = script, terminal, resume
        self.for_agent = AGENT in os.environ

    def cluster(
        self, notify: Callable[[str], None], *, polling: bool = False, cwd: Path | None = None
    ) -> Cluster:  # fmt: skip
        """Return a Cluster that sends notices to ``notify``. With ``polling`` it queries Slurm less often.

        ``cwd`` is the folder to submit from, by default the current one.
        """
        from clusterrun.cluster import Cluster

        return Cluster(cwd=cwd, notify=notify, polling=polling)

    def planner(self, notify: Callable[[str], None], *, submits: bool, cwd: Path | None = None) -> Cluster:
        """Return a Cluster for plans: unless it ``submits`` them, no file of the project chooses what is started here.

        For an agent's command requests are vetted, and its plans start nothing.
        """
        from clusterrun.cluster import Cluster
        from clusterrun.submit.job_python import Starts

        if not self.for_agent:
            return Cluster(cwd=cwd, notify=notify, starts=Starts.ANY if submits else Starts.OWN)
        from clusterrun.cli.common.agent import check_request

        return Cluster(cwd=cwd, notify=notify, starts=Starts.ANY if submits else Starts.NONE, vet=check_request)


def use_utf8() -> None:
    """Start this program again in Python's UTF-8 mode if the locale has another encoding for the names of files.

    Records and scripts hold names in UTF-8; those of an ASCII or Latin-1 locale would name other files. The job gets
    the variable as the user had it.
    """
    before = os.environ.pop(_BEFORE, None)
    if before is None and sys.getfilesystemencoding() != "utf-8":
        environ = {**os.environ, _UTF8: "1", _BEFORE: os.environ.get(_UTF8, "")}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606
    if before is not None:
        os.environ.pop(_UTF8, None)
    if before:
        os.environ[_UTF8] = before


def repair_streams() -> None:
    """Open /dev/null in place of a closed standard stream, and print unencodable characters as escapes."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        # descriptors 0 to 2 must be taken, or the next file opened becomes the standard output of our child processes
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
    """Discard the buffer of standard output, or the interpreter reports an error when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_full(error: Exception) -> bool:
    """Return whether a write to a full file failed: mostly standard output, as errors of other files carry a name."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None
