"""Why a job ended, from its records, its logs and the scheduler.

collect.py      the facts of the end, from the run's records and Slurm, and the lines of the logs, up to a size
resubmit.py     the command that resumes the run, or submits the job again with changes
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobStatus, Outcome
from clusterrun.base.units import clause
from clusterrun.records import run_record
from clusterrun.records.code_store import project_path
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import training_progress
from clusterrun.scheduler import Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.nodes import parse_partitions
from clusterrun.scheduler.slurm.sacct import exit_status
from clusterrun.scheduler.slurm.scontrol import show_argv
from clusterrun.state.reconcile import RunState
from clusterrun.why.causes import Cause, EndFacts, first_cause
from clusterrun.why.causes.frames import is_own
from clusterrun.why.causes.limits import with_limit
from clusterrun.why.causes.table_launch import ONE_LAUNCHER
from clusterrun.why.causes.table_recorded import SEPARATE
from clusterrun.why.ended.collect import (
    LogsAndNotes,
    load_end_facts,
    read_folder,
    read_foreign_logs,
    read_job_logs,
    show_job,
    with_slurm_facts,
)
from clusterrun.why.ended.resubmit import load_spec, submitted_option, with_command, with_longer_limit

__all__ = ["explain", "explain_logs", "in_one_line"]

_JOB = re.compile(r"\bJOB\b")  # stands for the job's id in the texts of the tables
_SLURM = r"(?:sacct|scontrol|sinfo|squeue)\b"
_ASIDE = re.compile(rf" \({_SLURM}[^)]*\)")


class Cluster(Protocol):
    """The part of clusterrun.cluster.Cluster that is needed here."""

    def scheduler(self, name: str) -> Scheduler: ...


def explain(cluster: Cluster, state: RunState) -> Cause:
    """Return why a job ended, also a job of another tool. Missing evidence never raises.

    Runs at most three Slurm commands: for the job, and for accounting (a cancelled job), the nodes (a lost one) or the
    partitions (a time limit).
    """
    facts = load_end_facts(state)
    slurm = _find_slurm(cluster, state)
    shown: dict[str, str] = {}
    silence = ""
    if slurm is not None:
        is_unexplained = facts.state == "FAILED" and facts.exit_status is None
        if state.record is None or is_unexplained:
            shown, silence = show_job(slurm, state)
        if facts.exit_status is None and shown.get("JobState") == facts.state:
            facts = replace(facts, exit_status=exit_status(shown.get("ExitCode", "")))
        facts = with_slurm_facts(slurm, state, facts)
    run = state.record
    read = read_foreign_logs(shown, silence) if run is None else read_job_logs(state.status, run)
    # without an answer Slurm is not queried again
    return _diagnose(state, facts, read, shown, None if silence or state.note else slurm)


def in_one_line(state: RunState) -> str:
    """Return the first cause of an ended run on one line, from its own files only; empty if there is none."""
    if state.record is None or state.status.outcome in (Outcome.DONE, Outcome.RUNNING):
        return ""
    cause = _diagnose(state, load_end_facts(state), read_job_logs(state.status, state.record, search=False), {})
    return "" if cause.kind in ("none", "unknown") else cause.short()


def local_cause(cause: Cause, job: JobStatus) -> Cause:
    """Return the cause of a local job: without Slurm's commands, and with the local scheduler's reason."""
    if cause.kind == "node-failure" and job.state == "NODE_FAIL":
        return replace(cause, sentence=job.reason, advice="", command="clusterrun submit …")
    command = "" if re.match(_SLURM, cause.command) else cause.command.removeprefix("srun ")
    return replace(cause, advice=_ASIDE.sub("", cause.advice), command=command)


def explain_logs(folder: Path) -> Cause:
    """Return the first cause in a folder of logs of an unknown job.

    Raises RequestError if it is not a folder or has no log.
    """
    logs, notes = read_folder(folder)
    cause = first_cause(logs, EndFacts())
    if cause.command.startswith("clusterrun logs"):  # the job is unknown, but the file is not
        cause = replace(cause, command=_less_command(cause))
    elif _JOB.search(cause.command):
        cause = replace(cause, command="")
    return with_command(replace(cause, advice=_JOB.sub("JOBID", cause.advice), notes=tuple(notes)), None)


def _less_command(cause: Cause) -> str:
    """Return the command that opens the log at the evidence; empty if there is none."""
    for line in cause.evidence:
        if line.file:
            return f"less {clause(line.number, '+{} ')}{shlex.quote(line.file)}"
    return ""


def _diagnose(
    state: RunState, facts: EndFacts, read: LogsAndNotes, shown: dict[str, str], slurm: SlurmCommands | None = None
) -> Cause:
    logs, log_notes = read
    cause = with_limit(first_cause(logs, facts), facts.limits, by_slurm=not state.status.id.is_local)
    if state.status.id.is_local:
        cause = local_cause(cause, state.status)
    if slurm is not None and cause.kind == "time-limit" and "--time LONGER" in cause.command:
        partitions = parse_partitions(slurm.answer(show_argv("partition")).text)
        cause = with_longer_limit(cause, state.status, partitions, state.record)
    if cause.kind == "log-unopened":
        cause = replace(cause, command=_folder_command(state, shown))
    notes = (*_state_notes(state), *_fact_notes(facts, cause), *log_notes)
    job = str(state.status.id)
    cause = replace(cause, command=_JOB.sub(job, cause.command), advice=_JOB.sub(job, cause.advice), notes=notes)
    if facts.state == "FAILED" and facts.failure is not None:
        cause = replace(cause, status=facts.failure.status)
    cause = _at_its_node(_with_module(cause, state), state)
    return _for_this_user(cause, state.record, shown)


def _at_its_node(cause: Cause, state: RunState) -> Cause:
    """Return the cause with the command that looks for a file on the node that lacks it; others may have it."""
    if not cause.node or not cause.command.startswith("srun ls "):
        return cause
    words = ["srun", "-w", cause.node, "-N1"]
    if state.status.partition and submitted_option(state.record, "partition"):
        words += ["-p", state.status.partition]
    return replace(cause, command=cause.command.replace("srun", shlex.join(words), 1))


def _for_this_user(cause: Cause, run: RunRecord | None, shown: dict[str, str]) -> Cause:
    """Return the cause with a command to paste; another user's record must not add text to it."""
    if run is not None:  # the file that the user edits, not its saved copy
        cause = replace(cause, place=project_path(run, cause.place))
    if run is None or run.mine:
        return with_command(cause, run, shown.get("Command", ""))
    return replace(cause, command="") if cause.command.startswith("clusterrun submit") else cause


def _with_module(cause: Cause, state: RunState) -> Cause:
    """Return the cause with the started module (``-m``) if its place is in a library."""
    if state.record is None or not cause.place or is_own(cause.place.rpartition(":")[0]):
        return cause
    work = load_spec(state.record)["work"]
    if work.get("kind") != "module":
        return cause
    return replace(cause, sentence=f"{cause.sentence}, in module {work.get('name')} (-m)")


def _folder_command(state: RunState, shown: dict[str, str]) -> str:
    """Return the command that checks the log folder."""
    if state.record is not None:
        logs = state.record.logs
    elif shown.get("StdOut"):
        logs = Path(shown["StdOut"]).parent
    else:
        return "quota -s"
    folder = shlex.quote(str(logs))
    return f"ls -ld {folder}; df -h {folder}; quota -s"


def _state_notes(state: RunState) -> list[str]:
    status = state.status
    reason = status.reason if status.outcome in (Outcome.UNKNOWN, Outcome.LOST) else ""
    attempt = run_record.newest_attempt(state.record, status.id.task) if state.record is not None else None
    loss = training_progress.load_warning(attempt) if attempt is not None else ""
    return list(filter(None, (reason, clause(state.note, "some information is not available: {}"), loss)))


def _fact_notes(facts: EndFacts, cause: Cause) -> list[str]:
    """Return facts of the end that may have nothing to do with its cause."""
    notes = []
    if facts.lost_nodes and cause.kind != "node-failure":  # the node may have failed later
        notes.append(f"nodes of the job that are now down or not responding: {', '.join(facts.lost_nodes)}")
    if facts.own_worlds and cause.kind != SEPARATE.kind:
        notes.append(f"{facts.own_worlds}; {ONE_LAUNCHER}")
    if facts.hang is not None and facts.hang.nccl_problem:
        notes.append(f"NCCL did not say which ranks hang: {facts.hang.nccl_problem}")
    return notes


def _find_slurm(cluster: Cluster, state: RunState) -> SlurmCommands | None:
    if state.status.id.is_local:
        return None
    try:
        scheduler = cluster.scheduler(state.scheduler)
    except SchedulerError:
        return None
    return scheduler.slurm
