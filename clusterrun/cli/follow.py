"""Follow a run to its end, for ``logs -f``, ``submit --follow``, ``submit --wait`` and ``wait``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from clusterrun.base.job import LAUNCH_FAILURE, LAUNCH_REASON, LOCAL, JobId, Outcome, log_paths
from clusterrun.cluster import Cluster
from clusterrun.logs.files import Source, clock_ticks
from clusterrun.logs.follow import Notice
from clusterrun.logs.request import LogRequest, detect_format
from clusterrun.logs.show import show_following
from clusterrun.records import launches, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends
from clusterrun.state.canceller import canceller
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import state_json
from clusterrun.state.watch import RunWatch, WatchThread
from clusterrun.terminal.ui import Ui

LATE = 75.0
"""Seconds after the end of a job until its logs must be visible: a network file system caches a folder for a minute."""
PATIENCE = 3.0
"""Seconds that a job runs without a log before a note: it opens its files shortly after it starts."""
_CAUSES = {"PREEMPTION": "after a preemption", "NODE FAILURE": "after a node failure"}


def exit_code(states: Sequence[RunState]) -> int:
    """Return 0 if all are done, 75 if one is unknown or lost, else 1."""
    outcomes = {state.status.outcome for state in states}
    if outcomes & {Outcome.UNKNOWN, Outcome.LOST}:
        return 75
    return 0 if outcomes <= {Outcome.DONE} else 1


def follow_run(
    ui: Ui, cluster: Cluster, run: RunRecord, *,
    job: JobId | None = None, source: Source | None = None, request: LogRequest | None = None,
) -> int:  # fmt: skip
    """Print a run's lines until it ends; return the exit code of its outcome."""
    assert run.job_id is not None
    job = job or run.job_id
    source = source or launches.log_source(run, job)
    request = request or LogRequest(display=detect_format(sys.stdout.isatty(), os.environ))
    watch = RunWatch([run], cluster.current_states, cluster.cached_states, follow=True)
    follower = _RunFollower(ui, run, job, source, WatchThread(watch))
    follower.note_attempt(whole=request.tail is None and request.since is None)
    try:
        print_pieces(ui, show_following([source], request, stop=follower.is_complete), follower.watcher)
    except KeyboardInterrupt:
        note_still_running(ui, job)
        raise
    finally:
        follower.watcher.close()
    states = follower.watcher.states
    follower.note_missing_logs(cluster, states[0])
    return report_end(ui, states)


def print_pieces(ui: Ui, pieces: Iterable[bytes | Notice], watcher: WatchThread | None = None) -> None:
    """Print the output of ``show`` or ``show_following``. The watcher learns of each line."""
    for piece in pieces:
        if isinstance(piece, Notice):
            ui.note(piece.text)
            continue
        ui.log_bytes(piece)
        if watcher is not None:
            watcher.on_output()


def note_still_running(ui: Ui, job: JobId) -> None:
    """Print at Ctrl-C that the job keeps running."""
    ui.note(f"job {job} was not cancelled; to cancel it, run `clusterrun cancel {job}`")


def format_state(state: RunState) -> str:
    """Return the state of a job in one line, with an explanation of its reason."""
    job = state.status
    if state.note:
        return f"job {job.id}: {state.note}"
    line = f"job {job.id}: {job.state} {job.reason}".rstrip()
    return f"{line}: {meaning}" if job.reason and (meaning := _explain_reason(job.reason)) else line


def format_attempts(folders: Sequence[Path]) -> list[str]:
    """Return a line for each attempt after the first, by the folders of the attempts, oldest first."""
    lines = []
    for before, folder in pairwise(folders):
        restart, launch = folder.name.split(".")[-2:]
        if launch != "0":
            lines.append(f"attempt {restart}, launch {launch}")
            continue
        ended = ends.load_job_end(before) or ends.JobEnd()
        parts = "requeued", _CAUSES.get(ended.due, ""), _format_clock(ended.time)
        lines.append(f"attempt {restart} ({' '.join(filter(None, parts))})")
    return lines


class MissingLogNote:
    """Notes once that a job runs and has no log, so that the user knows what the follower waits for."""

    def __init__(self, ui: Ui, job: JobId) -> None:
        self._ui, self._job = ui, job
        self._since: float | None = None
        self._noted = False

    def update(self, missing: Path | None, state: str, now: float) -> None:
        """``missing`` is the path that does not exist, None if a log does; ``now`` in seconds of any clock."""
        if missing is None or state != "RUNNING":
            self._since = None
            return
        self._since = now if self._since is None else self._since
        if not self._noted and now - self._since >= PATIENCE:
            self._noted = True
            self._ui.note(f"job {self._job} is {state}, but its log {missing} does not exist yet; waiting")


class _RunFollower:
    """Prints notes about a followed run, and decides when its logs are complete."""

    def __init__(self, ui: Ui, run: RunRecord, job: JobId, source: Source, watcher: WatchThread) -> None:
        self._ui, self._run, self._job, self._source = ui, run, job, source
        self.watcher = watcher
        self._state_line = ""
        self._attempts_noted = 0
        self._seen: set[Path] = set()
        self._over_at: float | None = None
        self._missing_log = MissingLogNote(ui, job)
        self._checked = -1.0

    def note_attempt(self, *, whole: bool) -> None:
        """Print the attempt if it is not the first; ``is_complete`` prints later ones."""
        attempts = format_attempts(run_record.attempts(self._run, self._job.task))
        self._attempts_noted = len(attempts)
        if attempts:
            self._ui.note(f"the job is on {attempts[-1]}" + ("; showing the log from the beginning" if whole else ""))

    def is_complete(self) -> bool:
        """Whether the run has ended and its logs are complete. Prints changes of its state."""
        now = time.monotonic()
        if now - self._checked < 0.25:
            return False
        self._checked = now
        self._check_files()
        states = self.watcher.poll()
        if not states:
            return False
        state, settled = states[0], self.watcher.settled
        line = format_state(state)
        if line != self._state_line and state.status.state != "RUNNING" and not settled:
            self._ui.note(line)
        self._state_line = line
        if not settled:
            self._missing_log.update(self._paths[0] if not self._seen else None, state.status.state, now)
            return False
        if self._over_at is None:
            self._over_at = now
        return self._has_whole_logs(state, now)

    def note_missing_logs(self, cluster: Cluster, state: RunState) -> None:
        """Print why logs do not exist."""
        gone = [path for path in self._paths if path in self._seen and not path.exists()]
        if gone:
            self._ui.note(f"the log was removed: {gone[0]}; later lines are lost")
        elif not self._seen:
            self._ui.note(format_missing_log(cluster, self._run, self._job, state))

    @property
    def _paths(self) -> list[Path]:
        return [path for path in (self._source.out, self._source.err) if path is not None]

    def _check_files(self) -> None:
        self._seen.update(path for path in self._paths if path not in self._seen and path.exists())
        attempts = format_attempts(run_record.attempts(self._run, self._job.task))
        for line in attempts[self._attempts_noted :]:
            self._ui.note(line)
        self._attempts_noted = max(self._attempts_noted, len(attempts))

    def _has_whole_logs(self, state: RunState, now: float) -> bool:
        """Whether the logs are as large as the log clock recorded, or the time to wait for that is over."""
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
            self._ui.note(f"job {self._job} has ended; waiting up to {LATE:.0f} s for its logs to appear")
        return False


def format_missing_log(cluster: Cluster, run: RunRecord, job: JobId, state: RunState) -> str:
    """Return why a run has no log."""
    out = log_paths(run.logs, job)[0]
    if run_record.attempts(run, job.task):
        return f"no log for job {job}: {out} does not exist; was it removed?"
    if state.status.outcome is not Outcome.FAILED or run.scheduler == LOCAL:
        over = state.status.is_over and state.status.outcome is not Outcome.UNKNOWN
        return f"job {job} never started, so it has no log" if over else f"no log for job {job} yet"
    # the state has the exit code of accounting; without accounting only scontrol has it, for some minutes
    code = "0:53" if state.status.exit_status == LAUNCH_FAILURE else _exit_code(cluster, run, job)
    problem = "open the log files (exit code 0:53)" if code == "0:53" else ""
    if not code and state.status.reason == LAUNCH_REASON:
        problem = f"start the job on its node ({LAUNCH_REASON})"
    if problem:
        return (
            f"job {job} failed before its script began: Slurm could not {problem};"
            f" is {run.logs} missing, full or not writable on the node?"
        )
    return f"job {job} failed before its script began" + (f" (exit code {code})" if code else "") + ", so it has no log"


def _exit_code(cluster: Cluster, run: RunRecord, job: JobId) -> str:
    from clusterrun.scheduler.slurm.scontrol import parse_jobs, show_argv

    slurm = cluster.scheduler(run.scheduler).slurm
    if slurm is None:
        return ""
    blocks = parse_jobs(slurm.answer(show_argv("job", [str(job)])).text)
    return blocks[0].get("ExitCode", "") if blocks else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _format_clock(seconds: Any) -> str:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < 2**40:
        return ""
    return time.strftime("at %H:%M:%S", time.localtime(seconds))


def _explain_reason(reason: str) -> str:
    from clusterrun.scheduler.slurm import reasons  # late import: only a pending job needs this large table

    found = reasons.find_reason(reason)
    return found.meaning if found is not None else ""


def wait_to_end(ui: Ui, cluster: Cluster, runs: Sequence[RunRecord], *, one: bool = False) -> int:
    """Wait for runs and print how each ended; return the exit code of their outcomes.

    With ``one``, the JSON data is the state of the only run, else a list of states.
    """
    states = cluster.wait(runs, sleep=time.sleep)
    data = [state_json(state) for state in states]
    ui.data(data[0] if one else data)
    return report_end(ui, states)


def report_end(ui: Ui, states: Sequence[RunState]) -> int:
    """Print how each run ended, with the first cause if its files show one; return the exit code."""
    from clusterrun.why import ended as diagnose  # late import: most commands do not need it

    for state in states:
        job = state.status
        is_plain = job.outcome is Outcome.DONE or job.outcome.value == job.state.lower()
        line = f"job {job.id}: {job.state}" + ("" if is_plain else f" ({job.outcome.value})")
        named = state.record is not None and canceller(state.record, job)  # the next line names who cancelled it
        ui.note(line + (f": {job.reason}" if job.reason and not named else ""))
        first = diagnose.in_one_line(state)
        if first:
            ui.note(first)
    return exit_code(states)
