"""The only printer: people's text on standard output, progress and warnings on standard error, or one JSON envelope.

Every text that is not ours (names, reasons, logs, Slurm's words) passes through ``safe_text`` here and is never read
as markup.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from clusterrun.errors import ClusterrunError
from clusterrun.job import Outcome
from clusterrun.logs import LogLine
from clusterrun.logs.look import terminal_line
from clusterrun.states import RunState
from clusterrun.text import safe_line, safe_text

VERSION = 1


class Ui:
    """Prints the result of one command, as text or as JSON."""

    def __init__(
        self, command: str, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.command, self.as_json = command, as_json
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self._wide = False

    def say(self, *lines: str) -> None:
        """A result for people; nothing when JSON is asked for."""
        if not self.as_json:
            for line in lines:
                print(safe_text(line), file=self._out)
            self._out.flush()

    def facts(self, named: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Names and their lines; on a terminal a long line is folded under its own beginning.

        A line that is a command is to be copied, so it stays whole.
        """
        width = shutil.get_terminal_size().columns - 11 if self._out.isatty() else 0
        for name, lines in named:
            parts = [part for line in lines for part in _folded(safe_line(line), width)]
            self.say(*(f"{'' if n else name:>9}  {part}".rstrip() for n, part in enumerate(parts)))

    def note(self, line: str) -> None:
        """Progress or a warning, on standard error in both modes."""
        print(f"clusterrun: {safe_line(line)}", file=self._err, flush=True)

    def raw(self, text: str) -> None:
        """A text that is printed byte for byte: a rendered script."""
        self._out.flush()
        self._out.buffer.write(text.encode("utf-8", "surrogateescape"))
        self._out.flush()

    def data(self, data: Any) -> None:
        """The JSON envelope of a command that worked; nothing in text mode."""
        if self.as_json:
            self._envelope(data, None)

    def error(self, error: ClusterrunError) -> None:
        """What failed, what the scheduler said, what to try."""
        if self.as_json:
            self._envelope(None, {
                "message": error.message, "hint": error.hint, "said": error.said, "exit_code": error.exit_code,
            })  # fmt: skip
            return
        print(f"clusterrun: {safe_line(error.message)}", file=self._err)
        for line in error.said.splitlines():
            print(f"  | {safe_text(line)}", file=self._err)
        if error.hint:
            print(f"  hint: {safe_line(error.hint)}", file=self._err)
        self._err.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table for people; tab-separated where the output is not a terminal."""
        if self.as_json:
            return
        if not self._out.isatty():
            for row in rows:
                print("\t".join(safe_line(cell) for cell in row), file=self._out)
            self._out.flush()
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(safe_line(cell)) for cell in row))
        Console(file=self._out, highlight=False).print(table)

    def log_bytes(self, data: bytes) -> None:
        """What ``logs.show`` made: bytes that are ready to be written, and are seen at once."""
        if not self._wide:
            self._wide = True
            _widen(self._out)
        self._out.flush()
        encoding = (self._out.encoding or "utf-8").lower().replace("-", "")
        if encoding != "utf8" and self._out.isatty():
            data = data.decode("utf-8", "replace").encode(encoding, "backslashreplace")
        self._out.buffer.write(data)
        self._out.buffer.flush()

    def log_line(self, line: LogLine, width: int) -> None:
        """A line of a log for people: its rank, then its text; one of err is marked by ``!``; a notice is a note."""
        if line.notice:
            self.note(line.text)
            return
        print(terminal_line(line, width), file=self._out, flush=True)

    def _envelope(self, data: Any, error: Mapping[str, Any] | None) -> None:
        envelope = {"version": VERSION, "command": self.command, "data": data, "error": error}
        print(json.dumps(envelope), file=self._out, flush=True)


def _folded(line: str, width: int) -> list[str]:
    if width < 20 or line.startswith(("scontrol ", "clusterrun ")):
        return [line]
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [line]


def _widen(out: TextIO) -> None:
    """Let a pipe hold as much as Linux gives everybody: fewer turns between the two programs, a tenth of the time."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(out.fileno(), fcntl.F_SETPIPE_SZ, 1024 * 1024)  # fails where it is no pipe


def state_json(state: RunState) -> dict[str, Any]:
    """A run's state as ``--json`` shows it; times in seconds since the epoch, durations in seconds."""
    job, run = state.status, state.record
    known = run is None or run.job_id is not None
    return {
        "job_id": str(job.id) if known else None,
        "run_id": run.run_id if run else None,
        "name": run.name if run else job.name,
        "state": job.state,
        "outcome": job.outcome.value,
        "reason": job.reason,
        "exit_status": job.exit_status,
        "cluster": run.cluster if run else job.id.cluster,
        "scheduler": run.scheduler if run else "slurm",
        "user": run.user if run else job.user,
        "partition": job.partition,
        "nodes": job.nodes,
        "node_count": job.node_count,
        "restarts": job.restarts,
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "elapsed": job.elapsed,
        "time_limit": job.time_limit,
        "source": job.source,
        "note": state.note,
        "run_dir": str(run.run_dir) if run else None,
        "logs": [str(path) for path in _logs(state)],
        "sources": {k: {"value": v, "source": s} for k, (v, s) in run.sources.items()} if run else {},
    }


def state_row(state: RunState) -> list[str]:
    """A run's state as a row of ``COLUMNS``."""
    job, run = state.status, state.record
    word = job.state if job.outcome not in (Outcome.LOST, Outcome.STOPPED) else f"{job.state} ({job.outcome.value})"
    return [
        handle(state),
        run.name if run else job.name,
        word,
        clock(job.elapsed),
        clock(job.time_limit) if job.time_limit else "",
        job.nodes or (f"({job.node_count})" if job.node_count else ""),
        state.note or job.reason,
    ]


def handle(state: RunState) -> str:
    """What to type for a job: its id, or its run id while it has none."""
    run = state.record
    return run.run_id if run is not None and run.job_id is None else str(state.status.id)


COLUMNS = ("JOBID", "NAME", "STATE", "TIME", "LIMIT", "NODES", "REASON")


def state_lines(state: RunState, *, explain: bool = False) -> list[str]:
    """A run's state in full, a line a fact; with ``explain`` each asked value and where it came from."""
    job, run = state.status, state.record
    row = dict(zip(COLUMNS, state_row(state), strict=True))
    facts = {
        "job": f"{row['JOBID']}  {row['NAME']}",
        "state": row["STATE"] + (f"  exit status {job.exit_status}" if job.exit_status else ""),
        "reason": row["REASON"],
        "nodes": row["NODES"],
        "time": row["TIME"] + (f" of {row['LIMIT']}" if row["LIMIT"] else ""),
        "restarts": str(job.restarts) if job.restarts else "",
        "told by": job.source,
        "run": str(run.run_dir) if run else "",
        "logs": ", ".join(str(path) for path in _logs(state)),
    }
    lines = [f"{name:>9}  {value}" for name, value in facts.items() if value.strip()]
    if explain and run:
        lines += [f"{name:>16} = {value!r}  ({source})" for name, (value, source) in run.sources.items()]
    return lines


def clock(seconds: int | None) -> str:
    """Seconds as squeue writes them: ``1-02:03:04``, ``2:03:04``, ``3:04``."""
    if seconds is None or seconds < 0:
        return ""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def _logs(state: RunState) -> list[Any]:
    from clusterrun.logs import log_paths

    if state.record is None or state.record.job_id is None:
        return []
    return list(log_paths(state.record.logs, state.status.id))
