"""Collect what is known of a job's end: what its run recorded, what Slurm answers, and its logs within bounds."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.job import JobStatus, Outcome, log_paths
from clusterrun.logs.ends import Ends, read_ends
from clusterrun.logs.files import LogFile, Stream
from clusterrun.records import end_records, progress, run_record
from clusterrun.records.launches import log_source
from clusterrun.records.progress import RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, launches
from clusterrun.run_folder.safe_files import written_at
from clusterrun.scheduler import SlurmCommands
from clusterrun.scheduler.slurm.hostlist import expand
from clusterrun.scheduler.slurm.sacct import ended_argv, lost_nodes, parse_canceller
from clusterrun.scheduler.slurm.scontrol import parse_jobs, parse_show, show_argv
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import canceller, format_user
from clusterrun.why.causes.flight_recorder import ranks_behind, read_dump
from clusterrun.why.causes.model import EndFacts, Line

_DUMP = re.compile(r"flight_recorder_(\d{1,7})")
_LARGEST_DUMP, _DUMPS_READ = 64 * 1024 * 1024, 256 * 1024 * 1024  # bytes; 2000 entries of a few kB each are a dump
#: Texts of errors: the lines around one in the middle of a large log are read too.
MENTION = (
    b"Traceback (most recent call last)",
    b"srun: error:",
    b"slurmstepd: error:",
    b"CUDA out of memory",
    b"oom_kill",
    b"oom-kill",
    b"Watchdog caught collective",
    b"NVRM: Xid",
    b"failed first",
    b"Fatal Python error",
    b"thread terminated with exception",
    b"terminate called after",
    b"exited on signal",
    b"(first observed failure)",
)
_MOST_FILES = 64
_LOGS = re.compile(r"\.(?:out|err|log|txt|stdout|stderr)(?:\.\d+)?$|^(?:slurm-|stdout|stderr)|^(?:out|err|log)$")
_ERR = re.compile(r"(?i)stderr|err[^.]*$")
_RANK = re.compile(r"(?:rank|task|proc)[_.-]?(\d{1,6})(?!\d)|(?:^|[_/])(\d{1,6})/(?:std(?:out|err)|out|err)")

#: The lines of each log, most trusted first, and notes on what was not read.
LogsAndNotes = tuple[list[tuple[Line, ...]], list[str]]

# -- what the run recorded ---------------------------------------------------------------------------------------------


def load_end_facts(state: RunState) -> EndFacts:
    """Return the facts of a job's end; without a run record they are its state and exit status only."""
    status, run = state.status, state.record
    first = "".join(expand(status.nodes, 1))
    facts = EndFacts(state=status.state, exit_status=status.exit_status, reason=status.reason, first_node=first)
    if run is None:
        return facts
    facts = replace(
        facts, world_size=run.world_size, cancelled_by=canceller(run, status), other_owner=_other_owner(run, status)
    )
    folders = run_record.attempts(run, status.id.task)
    return _with_attempt(facts, run, status, folders[-1]) if folders else facts


def _other_owner(run: RunRecord, status: JobStatus) -> str:
    """Return the job that has claimed the run if it is not this one; empty if it is, or if that is not known."""
    claim = run_record.claim_of(run)
    if claim is None or claim.job == status.id.base:
        return ""
    return claim.job


def _with_attempt(facts: EndFacts, run: RunRecord, status: JobStatus, folder: Path) -> EndFacts:
    """Return the facts with what the job recorded in the folder of its last launch."""
    end = ends.load_job_end(folder) or ends.JobEnd()
    ranks = progress.read_ranks(folder)
    is_done = status.outcome is Outcome.DONE
    return replace(
        facts,
        due=end.due,
        nodes={entry["rank"]: entry["node"] for entry in progress.started_ranks(folder)},
        failure=ends.find_failure(folder),
        launch=launches.find_failure(folder),
        stop=ends.find_stop(folder),
        unmarked=end.unmarked or 0,
        hang=ends.find_hang(folder),
        ends=ends.load_ends(folder),
        behind=ranks_behind(_load_dumps(folder)) or stalled_ranks(ranks),
        separate=ends.find_separate(folder) if end_records.were_separate(run, folder) else None,
        own_worlds="" if is_done else progress.separate_worlds(run, ranks, ended=True),
        limits=launches.find_limits(folder),
    )


def stalled_ranks(ranks: Iterable[RankProgress]) -> dict[int, str]:
    """Return the ranks, at most half, that were silent or at an earlier step at the others' last heartbeats."""
    records = list(ranks)
    if not records:
        return {}
    for stalled in (_silent_ranks(records), _late_ranks(records)):
        if 0 < 2 * len(stalled) <= len(records):
            return stalled
    return {}


def _silent_ranks(ranks: Sequence[RankProgress]) -> dict[int, str]:
    newest = max(one.time for one in ranks)
    silent = {}
    for one in ranks:
        earlier = newest - one.time
        if earlier > 3 * (one.interval or 10):
            silent[one.rank] = f"rank {one.rank} sent its last heartbeat {earlier:.0f} s before the other ranks"
            if one.step is not None:
                silent[one.rank] += f", at step {one.step}"
    return silent


def _late_ranks(ranks: Sequence[RankProgress]) -> dict[int, str]:
    """Return the ranks at an earlier step than most; none if a step is not known."""
    steps = {one.rank: one.step for one in ranks if one.step is not None}
    if len(steps) < len(ranks):
        return {}
    usual, late = statistics.mode(steps.values()), {}
    for rank, step in steps.items():
        if step < usual:
            late[rank] = f"rank {rank} reached only step {step}; the others reached step {usual}"
    return late


def _load_dumps(folder: Path) -> dict[int, tuple[Mapping[str, int], str]]:
    """Return the flight recorder dumps in an attempt's folder by rank, up to a total size."""
    dumps = {}
    left = _DUMPS_READ
    for path in _entries(folder):
        match = _DUMP.fullmatch(path.name)
        if match is None:
            continue
        data = _read_whole(path, min(left, _LARGEST_DUMP))
        left -= len(data)
        dump = read_dump(data)
        if dump is not None:
            dumps[int(match[1])] = dump
    return dumps


def _read_whole(path: Path, most: int) -> bytes:
    """Return the bytes of a plain file, no link; none if there are more than ``most`` or it cannot be read."""
    try:
        with closing(LogFile(path)) as file:
            size = file.size()
            return b"".join(file.blocks(0, size)) if size <= most else b""
    except (OSError, ClusterrunError):
        return b""


# -- what Slurm answers ------------------------------------------------------------------------------------------------


def show_job(slurm: SlurmCommands, state: RunState) -> tuple[dict[str, str], str]:
    """Return the fields of ``scontrol show job``, and the error if Slurm did not respond."""
    reply = slurm.answer(show_argv("job", [str(state.status.id)]))
    blocks = parse_jobs(reply.text)
    if blocks:
        return blocks[-1], ""
    return {}, "" if "Invalid job id" in reply.note + reply.stderr else reply.note


def with_slurm_facts(slurm: SlurmCommands, state: RunState, facts: EndFacts) -> EndFacts:
    """Return the facts with what only Slurm knows: the user who cancelled the job, the lost nodes."""
    if facts.state == "CANCELLED" and not facts.cancelled_by and slurm.facts.accounting:
        user = parse_canceller(slurm.answer(ended_argv(state.status.id)).text)
        if user is not None:
            return replace(facts, cancelled_by=format_user(user))
    nodes = sorted(set(facts.nodes.values()) or {state.status.nodes} - {""})
    if not nodes or not _may_have_lost_node(facts):
        return facts
    return replace(facts, lost_nodes=tuple(lost_nodes(parse_show(slurm.answer(show_argv("node", nodes)).text))))


def _may_have_lost_node(facts: EndFacts) -> bool:
    """Return whether a node failed, by Slurm or because some ranks left no end record."""
    if facts.state == "NODE_FAIL" or facts.due == "NODE FAILURE":
        return True
    return facts.state == "FAILED" and 0 < len(facts.ends) < facts.world_size


# -- the logs ----------------------------------------------------------------------------------------------------------


def read_job_logs(status: JobStatus, run: RunRecord, search: bool = True) -> LogsAndNotes:
    job, source = status.id, log_source(run, status.id)
    out, err = log_paths(run.logs, job)
    paths, metrics = [err, out], run.run_dir / "metrics.jsonl"
    if metrics.exists():  # those of a task show a loss that became NaN
        paths.append(metrics)
    started_again = status.restarts or len(run_record.attempts(run, job.task)) > 1
    return read_logs(
        paths, world_size=run.world_size, run_id=run.run_id if started_again else "",
        search=search, begin=source.begin[::-1], owners=source.owners,
    )  # fmt: skip


def read_foreign_logs(shown: dict[str, str], silence: str) -> LogsAndNotes:
    """Return the lines of the logs of another tool's job, whose paths Slurm knows."""
    paths = [shown[key] for key in ("StdErr", "StdOut") if shown.get(key, "").startswith("/")]
    if paths:
        return read_logs(list(map(Path, dict.fromkeys(paths))))
    why = f"Slurm did not respond ({silence})" if silence else "Slurm no longer has a record of the job"
    unknown = f"the location of the job's logs is unknown: {why}"
    return [], [f"{unknown}; if you know the folder, run `clusterrun why --logs DIR`"]


def read_logs(
    paths: Sequence[Path], *, world_size: int | None = None, run_id: str = "", search: bool = True,
    begin: Sequence[int] = (), owners: Collection[int] | None = None,
) -> LogsAndNotes:  # fmt: skip
    """Return the lines of these files, errors first; with ``run_id`` only those since the newest start.

    ``begin`` is the offset of the job's own lines in each file, ``owners`` are the users that may own the files. With
    ``search`` the middle of a large file is searched for the first error.
    """
    since = (f"clusterrun: {run_id}: job ".encode(), b"DUE TO JOB REQUEUE ***\n", b"Distributed environment: ")
    logs: list[tuple[Line, ...]] = []
    notes: list[str] = []
    for path, offset in zip_longest(paths, begin, fillvalue=0):
        assert isinstance(path, Path)
        stream: Stream = "err" if path.suffix == ".err" else "out"
        try:
            ends = read_ends(
                path, stream, world_size=world_size, since=since if run_id else (), begin=offset, owners=owners,
                mention=MENTION if search else (),
            )  # fmt: skip
        except FileNotFoundError:
            notes.append(f"not found: {_shown(path)}")
            continue
        except ClusterrunError as error:
            notes.append(error.message)
            continue
        logs.append(_lines(ends))
        if ends.skipped:
            notes.append(
                f"{_shown(path)} is large ({ends.size / 1e6:,.0f} MB): only the beginning, the end and the first errors"
                f" were read; {ends.skipped / 1e6:,.0f} MB were not read"
            )
    return logs, notes


def read_folder(folder: Path) -> LogsAndNotes:
    """Return the lines of all logs in a folder and its subfolders; raises RequestError if there are none.

    Error streams come first, then by the time of the last write, since the rank that failed first stops writing first.
    """
    if not os.path.isdir(folder):
        raise RequestError(f"not a folder: {folder}", hint="specify the folder that contains the job's logs")
    found = [path for path in _walk(folder) if _LOGS.search(path.name)]
    if not found:
        raise RequestError(f"no logs in {folder}", hint="log files are named *.out, *.err, *.log or slurm-*")
    found.sort(key=lambda path: (not _is_err(path), written_at(path)))
    logs, notes = read_logs(found[:_MOST_FILES])
    if len(found) > _MOST_FILES:
        notes.append(f"only {_MOST_FILES} of the {len(found)} logs in {folder} were read")
    return logs, notes


def _lines(ends: Ends) -> tuple[Line, ...]:
    name, rank_of_log = _shown(ends.path), rank_of_file(ends.path)
    lines = []
    for number, line in ends.lines:
        rank = rank_of_log if line.rank is None else line.rank
        lines.append(Line(name, number, rank, line.text))
    return tuple(lines)


def rank_of_file(path: Path) -> int | None:
    """Return the rank in a log's name (``rank3.err``, ``…/3/stderr.log``), None if there is none."""
    match = _RANK.search("/".join(path.parts[-2:]))
    return int(match[1] or match[2]) if match else None


def _is_err(path: Path) -> bool:
    return _ERR.search(path.name) is not None


def _walk(folder: Path) -> list[Path]:
    """Return the regular files below a folder, three levels deep, without links, at most some 10,000."""
    files: list[Path] = []
    level = [folder]
    for _ in range(3):
        below: list[Path] = []
        for parent in level:
            entries = _entries(parent)
            files += [entry for entry in entries if entry.is_file()]
            below += [entry for entry in entries if entry.is_dir()]
            if len(files) > 10_000:
                return files
        level = below
    return files


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder, without links; nothing if it cannot be read."""
    try:
        return [entry for entry in sorted(folder.iterdir()) if not entry.is_symlink()]
    except OSError:
        return []


def _shown(path: Path) -> str:
    """Return a path relative to the current folder if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
