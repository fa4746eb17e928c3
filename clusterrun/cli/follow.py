"""Following a run to its end: what ``logs -f``, ``submit --follow``, ``submit --wait`` and ``wait`` share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from clusterrun.cluster import Cluster
from clusterrun.job import LAUNCH_FAILURE, LAUNCH_REASON, LOCAL, JobId, Outcome
from clusterrun.logs import LineFilter, Look, Notice, Source, log_paths, look_of, show_following
from clusterrun.logs.clock import clock_ticks
from clusterrun.records import run_logs, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import state_json
from clusterrun.state.watch import Watch, Watcher
from clusterrun.terminal.ui import Ui

LATE = 75.0
"""Seconds after the end of a job for which its logs may still be on their way: a network file system keeps what it
knows of a folder for up to a minute (acdirmax)."""
PATIENCE = 3.0
"""Seconds that a job runs without a log before that is said: it opens its files a moment after it starts."""
_BACK = {"PREEMPTION": "after a preemption", "NODE FAILURE": "after a node failure"}


def exit_code(states: Sequence[RunState]) -> int:
    """0 when all are done, 75 where one is unknown or lost, else 1."""
    outcomes = {state.status.outcome for state in states}
    if outcomes & {Outcome.UNKNOWN, Outcome.LOST}:
        return 75
    return 0 if outcomes <= {Outcome.DONE} else 1


def follow_to_end(
    ui: Ui, cluster: Cluster, run: RunRecord, *, job: JobId | None = None, source: Source | None = None,
    want: LineFilter | None = None, look: Look | None = None, tail: int | None = None, since: float | None = None,
) -> int:  # fmt: skip
    """Print a run's lines until it is over; returns the exit code of its outcome."""
    assert run.job_id is not None
    job = job or run.job_id
    source = source or run_logs.source_of(run, job)
    watch = Watch([run], cluster.states, sparing=True, lately=cluster.lately)
    following = _Following(ui, run, job, source, Watcher(watch, grew=watch.grew))
    following.begin(whole=tail is None and since is None)
    how = want or LineFilter(), look or usual_look()
    pieces = show_following([source], *how, stop=following.over, tail=tail, since=since)
    try:
        print_pieces(ui, pieces, following.watcher)
    except KeyboardInterrupt:
        goes_on(ui, job)
        raise
    finally:
        following.watcher.close()
    states = following.watcher.states
    following.last_words(cluster, states[0])
    return report_end(ui, states)


def usual_look() -> Look:
    """How lines look here where nothing else was asked for."""
    return look_of(sys.stdout.isatty(), os.environ)


def print_pieces(ui: Ui, pieces: Iterable[bytes | Notice], watcher: Watcher | None = None) -> bool:
    """Print what ``show`` and ``show_following`` give; whether there was any line."""
    shown = False
    for piece in pieces:
        if isinstance(piece, Notice):
            ui.note(piece.text)
            continue
        shown = True
        ui.log_bytes(piece)
        if watcher is not None:
            watcher.grew()
    return shown


def goes_on(ui: Ui, job: JobId) -> None:
    """Say at Ctrl-C that the job is left alone."""
    ui.note(f"job {job} goes on; `clusterrun cancel {job}` ends it")


def state_line(state: RunState) -> str:
    """How a job stands, in a line: a reason for waiting in words."""
    job = state.status
    if state.note:
        return f"job {job.id}: {state.note}"
    words = f"job {job.id}: {job.state} {job.reason}".rstrip()
    return f"{words}: {meaning}" if job.reason and (meaning := _meaning(job.reason)) else words


def attempt_lines(folders: Sequence[Path]) -> list[str]:
    """A line for each start of a run after its first, by its attempts' folders, oldest first."""
    lines = []
    for before, folder in pairwise(folders):
        restart, launch = folder.name.split(".")[-2:]
        if launch != "0":
            lines.append(f"attempt {restart}, launch {launch}")
            continue
        ended = run_record.read_json(before / "end.json") or {}
        when = _clock(ended.get("time"))
        words = " ".join(word for word in ("requeued", _BACK.get(str(ended.get("due")), ""), when) if word)
        lines.append(f"attempt {restart} ({words})")
    return lines


class Missed:
    """Says once that a job runs and its log is not there: else a follower waits and does not know for what."""

    def __init__(self, ui: Ui, job: JobId) -> None:
        self._ui, self._job = ui, job
        self._since: float | None = None
        self._said = False

    def look(self, missing: Path | None, state: str, now: float) -> None:
        """``missing`` is the log that was looked for, None where there is one; ``now`` in seconds of any clock."""
        if missing is None or state != "RUNNING":
            self._since = None
            return
        self._since = now if self._since is None else self._since
        if not self._said and now - self._since >= PATIENCE:
            self._said = True
            self._ui.note(f"job {self._job} is {state}, and {missing} is not there; waiting for it")


class _Following:
    """What is said beside the lines of a run while it is followed, and when its logs have come to their end."""

    def __init__(self, ui: Ui, run: RunRecord, job: JobId, source: Source, watcher: Watcher) -> None:
        self._ui, self._run, self._job, self._source = ui, run, job, source
        self.watcher = watcher
        self._said = ""
        self._marked = 0
        self._seen: set[Path] = set()
        self._over_at: float | None = None
        self._missed = Missed(ui, job)
        self._looked = -1.0

    def begin(self, *, whole: bool) -> None:
        """Say which start this is, where it is not the first; later ones are marked where they come."""
        marks = attempt_lines(run_record.attempts(self._run, self._job.task))
        self._marked = len(marks)
        if marks:
            self._ui.note(f"this is {marks[-1]}" + ("; its log begins with attempt 0" if whole else ""))

    def over(self) -> bool:
        """Whether the run is over and its logs are here; says on the way what changed."""
        now = time.monotonic()
        if now - self._looked < 0.25:
            return False
        self._looked = now
        self._look_at_files()
        states = self.watcher.look()
        if not states:
            return False
        state, settled = states[0], self.watcher.settled
        line = state_line(state)
        if line != self._said and state.status.state != "RUNNING" and not settled:
            self._ui.note(line)
        self._said = line
        if not settled:
            self._missed.look(self._paths[0] if not self._seen else None, state.status.state, now)
            return False
        if self._over_at is None:
            self._over_at = now
        return self._arrived(state, now)

    def last_words(self, cluster: Cluster, state: RunState) -> None:
        """What there is to say of logs that are not there."""
        gone = [path for path in self._paths if path in self._seen and not path.exists()]
        if gone:
            self._ui.note(f"the log was removed: {gone[0]}; what was written after that is not here")
        elif not self._seen:
            self._ui.note(no_log(cluster, self._run, self._job, state))

    @property
    def _paths(self) -> list[Path]:
        return [path for path in (self._source.out, self._source.err) if path is not None]

    def _look_at_files(self) -> None:
        self._seen.update(path for path in self._paths if path not in self._seen and path.exists())
        marks = attempt_lines(run_record.attempts(self._run, self._job.task))
        for line in marks[self._marked :]:
            self._ui.note(line)
        self._marked = max(self._marked, len(marks))

    def _arrived(self, state: RunState, now: float) -> bool:
        """Whether the logs are as long as the clock beside the job saw them; or it is too late for that."""
        assert self._over_at is not None
        folders = run_record.attempts(self._run, self._job.task)
        ended = state.status.ended
        if not folders or now - self._over_at >= LATE or (ended is not None and time.time() - ended >= LATE):
            return True
        ticks = clock_ticks(folders)
        least = ticks[-1][1:] if ticks else (0, 0)
        missing = [
            path for path, size in zip(self._paths, least, strict=False)
            if not (path in self._seen and not path.exists()) and _size(path) < size
        ]  # fmt: skip
        if not missing and (ticks or self._seen):
            return True
        if now == self._over_at:
            self._ui.note(f"job {self._job} is over; waiting up to {LATE:.0f} s for its logs to appear here")
        return False


def no_log(cluster: Cluster, run: RunRecord, job: JobId, state: RunState) -> str:
    """Why there is no log of a run."""
    out = log_paths(run.logs, job)[0]
    if run_record.attempts(run, job.task):
        return f"no log of job {job} is here: {out} does not exist; was it removed?"
    if state.status.outcome is not Outcome.FAILED or run.scheduler == LOCAL:
        over = state.status.is_over and state.status.outcome is not Outcome.UNKNOWN
        return f"job {job} never started, so it has no log" if over else f"no log of job {job} yet"
    # accounting's word is in the state already; only scontrol has it where there is none, and forgets it soon
    code = "0:53" if state.status.exit_status == LAUNCH_FAILURE else _exit_code(cluster, run, job)
    what = "open its logs (exit code 0:53)" if code == "0:53" else ""
    if not code and state.status.reason == LAUNCH_REASON:
        what = f"start it on its node ({LAUNCH_REASON})"
    if what:
        return (
            f"job {job} failed before its script began: Slurm could not {what};"
            f" is {run.logs} gone, full or not writable on the node?"
        )
    return f"job {job} failed before its script began" + (f" (exit code {code})" if code else "") + ", so it has no log"


def _exit_code(cluster: Cluster, run: RunRecord, job: JobId) -> str:
    from clusterrun.scheduler.slurm.client import SlurmScheduler
    from clusterrun.scheduler.slurm.scontrol import parse_show, show_argv

    scheduler = cluster.scheduler(run.scheduler)
    if not isinstance(scheduler, SlurmScheduler):
        return ""
    blocks = parse_show(scheduler.answer(show_argv("job", [str(job)])).text)
    return blocks[0].get("ExitCode", "") if blocks else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _clock(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < 2**40:
        return ""
    return time.strftime("at %H:%M:%S", time.localtime(seconds))


def _meaning(reason: str) -> str:
    from clusterrun import reasons  # late: a thousand words that only a waiting job needs

    found = reasons.find_reason(reason)
    return found.meaning if found is not None else ""


def wait_to_end(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord], *, one: bool = False) -> int:
    """Wait for runs and print how each ended; returns the exit code of their outcomes.

    With ``one`` the JSON data is the one run's state, else a list of them.
    """
    states = cluster.wait(runs, sleep=time.sleep)
    data = [state_json(state) for state in states]
    ui.data(data[0] if one else data)
    return report_end(ui, states)


def report_end(ui: Ui, states: Sequence[RunState]) -> int:
    """One line on how each run ended, with the first cause where its files show one."""
    from clusterrun.why import ended as diagnose  # and not above: most commands end without it

    for state in states:
        job = state.status
        words = f"job {job.id}: {job.state}" + (f" ({job.outcome.value})" if job.outcome is not Outcome.DONE else "")
        ui.note(words + (f": {job.reason}" if job.reason else ""))
        first = diagnose.in_one_line(state)
        if first:
            ui.note(first)
    return exit_code(states)
