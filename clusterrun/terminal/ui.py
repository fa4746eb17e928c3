"""The only printer: results on standard output, progress and warnings on standard error, or one JSON envelope.

All text of other programs (names, reasons, logs, messages of Slurm) passes through ``safe_text`` here and is never
read as markup.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TextIO

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.units import format_duration
from clusterrun.terminal.paint import PROGRAMS, has_colours, paint
from clusterrun.terminal.safe_text import safe_line, safe_text
from clusterrun.terminal.tables import Column, cut, fit

#: Version of the JSON envelope.
VERSION = 1


class Ui:
    """Print the result of one command, as text or as JSON."""

    def __init__(self, command: str, *, as_json: bool = False, out: TextIO | None = None) -> None:
        self.command, self.as_json = command, as_json
        self._out, self._err = out or sys.stdout, sys.stderr
        self._wide = False
        self._status: tuple[str, ...] = ()  # the lines at the bottom of the terminal
        self._status_rows = 0
        self._lock: contextlib.AbstractContextManager[object] = contextlib.nullcontext()  # of what is on the terminal

    def say(self, *lines: str) -> None:
        """Print lines of a result; nothing in JSON mode."""
        if self.as_json:
            return
        with self._above_status():
            for line in lines:
                print(_painted(safe_text(line), self._out), file=self._out)
            self._out.flush()

    def facts(self, named: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Print names and their lines; on a terminal long lines are wrapped and indented.

        A line that is a command stays whole, so that it can be copied.
        """
        width = _terminal_size().columns - 11 if self._out.isatty() else 0
        for name, lines in named:
            parts = chain.from_iterable(_folded(safe_line(line), width) for line in lines)
            self.say(*(f"{'' if n else name:>9}  {part}".rstrip() for n, part in enumerate(parts)))

    def note(self, line: str) -> None:
        """Print progress or a warning on standard error, in both modes."""
        with self._above_status():
            print(_painted(f"clusterrun: {safe_line(line)}", self._err), file=self._err, flush=True)

    def status_lines(self, *lines: str) -> None:
        """Show lines below the output of a terminal, in place of the last ones; the next output removes them.

        Of many, those are shown that fit into half of the terminal, and the last one.
        """
        if lines == self._status or not self.can_redraw:
            return
        with self._lock:
            self._show_status(lines)

    def _show_status(self, lines: tuple[str, ...]) -> None:
        self._out.flush()
        size = _terminal_size()
        up = f"\x1b[{self._status_rows - 1}A" if self._status_rows > 1 else ""
        rows = _at_most(lines, size.lines // 2)
        shown = "\n".join(cut(safe_line(row), size.columns - 1) for row in rows)
        if rows and has_colours(os.environ, is_terminal=True):
            shown = f"\x1b[2m{shown}\x1b[0m"
        self._err.write(f"\r{up}\x1b[J{shown}")
        self._err.flush()
        self._status, self._status_rows = lines, len(rows)

    @contextlib.contextmanager
    def _above_status(self) -> Iterator[None]:
        """Remove the lines at the bottom; they stay away until the output in this block is written."""
        with self._lock:
            self.status_lines()
            yield

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show on a terminal what takes longer than a second, and for how long it has; elsewhere nothing."""
        if not self.can_redraw:
            yield
            return
        import threading  # late: most commands do not need it

        ended, began = threading.Event(), time.monotonic()
        self._lock = threading.RLock()

        def show() -> None:
            while not ended.wait(1.0):
                self.status_lines(f"{what} … {format_duration(time.monotonic() - began)}")

        shower = threading.Thread(target=show, daemon=True)
        shower.start()
        try:
            yield
        finally:
            ended.set()
            shower.join()
            self.status_lines()

    @property
    def can_redraw(self) -> bool:
        """Whether both streams are a terminal that can move its cursor."""
        return self.on_terminal and self._err.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def raw(self, text: str) -> None:
        """Print a text byte for byte: a rendered script."""
        self._out.flush()
        self._out.buffer.write(text.encode("utf-8", "surrogateescape"))
        self._out.flush()

    def data(self, data: Any) -> None:
        """Print the JSON envelope of a successful command; nothing in text mode."""
        if self.as_json:
            self._envelope(data, None)

    def error(self, error: ClusterrunError) -> None:
        """Print what failed, the scheduler's own message, and a hint."""
        if self.as_json:
            self._envelope(None, {
                "message": error.message, "hint": error.hint, "said": error.detail, "exit_code": error.exit_code,
            })  # fmt: skip
            return
        self.status_lines()
        print(f"clusterrun: {safe_line(error.message)}", file=self._err)
        for line in error.detail.splitlines():
            print(f"  | {safe_text(line)}", file=self._err)
        if error.hint:
            print(_painted(f"  hint: {safe_line(error.hint)}", self._err), file=self._err)
        self._err.flush()

    def table(self, columns: Sequence[str] | Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Print a table with a heading: aligned to fit a terminal, or as tab-separated lines in a pipe."""
        if self.as_json:
            return
        safe = lru_cache(maxsize=4096)(safe_line)  # the rows of an array share most cells
        cells, columns = [list(map(safe, row)) for row in rows], _as_columns(columns)
        if self._out.isatty():
            lines = fit(columns, cells, _terminal_size().columns)
        else:
            lines = list(map("\t".join, ([column.name for column in columns], *cells)))
        if has_colours(os.environ, is_terminal=self._out.isatty()):
            lines = [f"\x1b[1m{lines[0]}\x1b[0m", *map(paint, lines[1:])]
        self._lines(lines)

    def screen(self, lines: Sequence[str], before: int) -> int:
        """Replace the last ``before`` lines on the terminal by the first line and as many of the last as fit.

        The newest job and any problem come last. Returns the number of lines drawn, which is ``before`` next time.
        """
        size = _terminal_size()
        shown = [_painted(cut(safe_line(line), size.columns), self._out) for line in lines]
        if len(shown) >= size.lines:
            room = max(1, size.lines - 3)
            left_out = cut(f"… {len(shown) - room - 1} more lines …", size.columns)
            shown = [shown[0], left_out, *shown[-room:]]
        self._out.write(f"\x1b[{before}A" * (before > 0) + "\r\x1b[J")
        self._lines(shown)
        return len(shown)

    @property
    def on_terminal(self) -> bool:
        """Whether output can be redrawn in place."""
        return not self.as_json and self._out.isatty()

    def _lines(self, lines: Sequence[str]) -> None:
        with self._above_status():
            if lines:
                print("\n".join(lines), file=self._out)  # one call: a print for each line takes longer than all else
            self._out.flush()

    def log_bytes(self, data: bytes) -> None:
        """Print bytes of ``logs.show`` and flush them."""
        self.status_lines()
        if not self._wide:
            self._wide = True
            _widen(self._out)
        self._out.flush()
        encoding = codecs.lookup(self._out.encoding or "utf-8").name
        if encoding != "utf-8" and self._out.isatty():
            data = data.decode("utf-8", "replace").encode(encoding, "backslashreplace")
        self._out.buffer.write(data)
        self._out.buffer.flush()

    def _envelope(self, data: Any, error: Mapping[str, Any] | None) -> None:
        envelope = {"version": VERSION, "command": self.command, "data": data, "error": error}
        print(json.dumps(envelope), file=self._out, flush=True)


def _terminal_size() -> os.terminal_size:
    import shutil  # it loads the archive formats, which a pipe does without

    return shutil.get_terminal_size()


def _painted(line: str, out: TextIO) -> str:
    return paint(line) if has_colours(os.environ, is_terminal=out.isatty()) else line


def _at_most(lines: Sequence[str], room: int) -> Sequence[str]:
    """Return lines; of more than ``room``, the first ones, how many are left out, and the last one."""
    hidden = len(lines) - max(room, 3)
    return lines if hidden <= 0 else [*lines[: -hidden - 2], f"… {hidden + 1} more …", lines[-1]]


def _folded(line: str, width: int) -> list[str]:
    if width < 20 or line.partition(" ")[0] in (*PROGRAMS, "cd"):
        return [line]
    import textwrap  # a pipe does without

    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [line]


def _widen(out: TextIO) -> None:
    """Enlarge a pipe to the limit for unprivileged users: fewer context switches, a tenth of the time."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(out.fileno(), fcntl.F_SETPIPE_SZ, 1024 * 1024)  # fails if it is not a pipe


def _as_columns(columns: Sequence[str] | Sequence[Column]) -> list[Column]:
    return [one if isinstance(one, Column) else Column(one, least=10 * (one == columns[-1])) for one in columns]
