"""Why a job ended, from its records, its logs and the scheduler.

records.py      the run's records -> facts
logs.py         the logs -> lines, up to a size
resubmit.py     the command that resumes the run, or submits the job again with changes
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobStatus, Outcome, log_paths
from clusterrun.base.units import clause
from clusterrun.records import launches, run_record
from clusterrun.records.code_store import project_path
from clusterrun.records.run_record import RunRecord
from clusterrun.scheduler import Scheduler, SlurmCommands
from clusterrun.scheduler.slurm.nodes import parse_partitions
from clusterrun.scheduler.slurm.sacct import ended_argv, exit_status, lost_nodes, parse_canceller
from clusterrun.scheduler.slurm.scontrol import parse_jobs, parse_show, show_argv
from clusterrun.state.reconcile import RunState
from clusterrun.state.show import format_user
from clusterrun.why.causes import Cause, EndFacts, first_cause
from clusterrun.why.causes.frames import is_own
from clusterrun.why.causes.limits import with_limit
from clusterrun.why.causes.recorded import SEPARATE
from clusterrun.why.causes.table_launch import ONE_LAUNCHER
from clusterrun.why.ended.logs import LogsAndNotes, read_folder, read_logs
from clusterrun.why.ended.records import load_end_facts
from clusterrun.why.ended.resubmit import load_spec, with_command, with_longer_limit

__all__ = ["Diagnosis", "explain", "explain_logs", "in_one_line"]

_JOB = re.compile(r"\bJOB\b")  # stands for the job's id in the texts of the tables
_LONGEST = 400  # characters of a line of evidence: some errors fill a page
_SLURM = r"(?:sacct|scontrol|sinfo|squeue)\b"
_ASIDE = re.compile(rf" \({_SLURM}[^)]*\)")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first cause of a job's end; ``notes`` name what was not available. Log text in it is not sanitized."""

    cause: Cause
    notes: tuple[str, ...] = ()
    status: int | None = None  # the exit status of the rank that failed first; srun's is the highest of all ranks'

    def headline(self) -> str:
        """Return the cause, its rank and place on one line."""
        where = ", ".join(filter(None, (self._who(), self._place())))
        return f"{self.cause.sentence}{clause(where, ' ({})')}"

    def short(self) -> str:
        """Return the cause on one line that begins with the rank, as the last line of ``logs -f``."""
        return f"{clause(self._who(), '{} failed first: ')}{self.cause.sentence}{clause(self._place(), ' ({})')}"

    def facts(self) -> list[tuple[str, Sequence[str]]]:
        """Return the parts that ``why`` shows: name and lines of each."""
        seen = [f"{one.place}: {one.text[:_LONGEST]}" for one in self.cause.evidence]
        do = list(filter(None, (self.cause.advice, self.cause.command)))
        return [("cause", [self.headline()]), ("seen", seen), ("do", do), ("note", self.notes)]

    def json(self) -> dict[str, Any]:
        """Return the values for ``--json``."""
        cause = self.cause
        return {
            "kind": cause.kind,
            "exit_status": self.status,
            "cause": cause.sentence,
            "rank": cause.rank,
            "node": cause.node or None,
            "place": cause.place or None,
            "evidence": [{"file": one.file, "line": one.number, "text": one.text} for one in cause.evidence],
            "advice": cause.advice or None,
            "command": cause.command or None,
            "source": cause.source or None,
            "notes": list(self.notes),
        }

    def _place(self) -> str:
        return "" if self.cause.place in self.cause.sentence else self.cause.place

    def _who(self) -> str:
        rank, sentence = self.cause.rank, self.cause.sentence
        if rank is None or f"rank {rank} " in sentence or f"task {rank} " in sentence:
            return ""
        return f"rank {rank}{clause(self.cause.node, ' on {}')}"


class Cluster(Protocol):
    """The part of clusterrun.cluster.Cluster that is needed here."""

    def scheduler(self, name: str) -> Scheduler: ...


def explain(cluster: Cluster, state: RunState) -> Diagnosis:
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
            shown, silence = _show_job(slurm, state)
        if facts.exit_status is None and shown.get("JobState") == facts.state:
            facts = replace(facts, exit_status=exit_status(shown.get("ExitCode", "")))
        facts = _with_slurm_facts(slurm, state, facts)
    run = state.record
    read = _read_foreign_logs(shown, silence) if run is None else _read_job_logs(state.status, run)
    # without an answer Slurm is not queried again
    return _diagnose(state, facts, read, shown, None if silence or state.note else slurm)


def in_one_line(state: RunState) -> str:
    """Return the first cause of an ended run on one line, from its own files only; empty if there is none."""
    if state.record is None or state.status.outcome in (Outcome.DONE, Outcome.RUNNING):
        return ""
    answer = _diagnose(state, load_end_facts(state), _read_job_logs(state.status, state.record, search=False), {})
    return "" if answer.cause.kind in ("none", "unknown") else answer.short()


def local_cause(cause: Cause, job: JobStatus) -> Cause:
    """Return the cause of a local job: without Slurm's commands, and with the local scheduler's reason."""
    if cause.kind == "node-failure" and job.state == "NODE_FAIL":
        return replace(cause, sentence=job.reason, advice="", command="clusterrun submit …")
    command = "" if re.match(_SLURM, cause.command) else cause.command
    return replace(cause, advice=_ASIDE.sub("", cause.advice), command=command)


def explain_logs(folder: Path) -> Diagnosis:
    """Return the first cause in a folder of logs of an unknown job.

    Raises RequestError if it is not a folder or has no log.
    """
    logs, notes = read_folder(folder)
    cause = first_cause(logs, EndFacts())
    if cause.command.startswith("clusterrun logs"):  # the job is unknown, but the file is not
        cause = replace(cause, command=_less_command(cause))
    elif _JOB.search(cause.command):
        cause = replace(cause, command="")
    cause = with_command(replace(cause, advice=_JOB.sub("JOBID", cause.advice)), None)
    return Diagnosis(cause, tuple(notes))


def _less_command(cause: Cause) -> str:
    """Return the command that opens the log at the evidence; empty if there is none."""
    for line in cause.evidence:
        if line.file:
            return f"less {clause(line.number, '+{} ')}{shlex.quote(line.file)}"
    return ""


def _diagnose(
    state: RunState, facts: EndFacts, read: LogsAndNotes, shown: dict[str, str], slurm: SlurmCommands | None = None
) -> Diagnosis:
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
    cause = replace(cause, command=_JOB.sub(job, cause.command), advice=_JOB.sub(job, cause.advice))
    cause = _for_this_user(_with_module(cause, state), state.record, shown)
    failure = facts.failure if facts.state == "FAILED" else None
    return Diagnosis(cause=cause, notes=notes, status=failure.status if failure is not None else None)


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
    return list(filter(None, (reason, clause(state.note, "some information is not available: {}"))))


def _fact_notes(facts: EndFacts, cause: Cause) -> list[str]:
    """Return facts of the end that may have nothing to do with its cause."""
    notes = []
    if facts.lost_nodes and cause.kind != "node-failure":  # the node may have failed later
        notes.append(f"nodes of the job that are now down or not responding: {', '.join(facts.lost_nodes)}")
    if facts.own_worlds and cause.kind != SEPARATE.kind:
        notes.append(f"{facts.own_worlds}; {ONE_LAUNCHER}")
    return notes


def _find_slurm(cluster: Cluster, state: RunState) -> SlurmCommands | None:
    if state.status.id.is_local:
        return None
    try:
        scheduler = cluster.scheduler(state.scheduler)
    except SchedulerError:
        return None
    return scheduler.slurm


def _show_job(slurm: SlurmCommands, state: RunState) -> tuple[dict[str, str], str]:
    """Return the fields of ``scontrol show job``, and the error if Slurm did not respond."""
    reply = slurm.answer(show_argv("job", [str(state.status.id)]))
    blocks = parse_jobs(reply.text)
    if blocks:
        return blocks[-1], ""
    return {}, "" if "Invalid job id" in reply.note + reply.stderr else reply.note


def _with_slurm_facts(slurm: SlurmCommands, state: RunState, facts: EndFacts) -> EndFacts:
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
    return facts.state == "FAILED" and 0 < len(facts.ends) < (facts.world_size or 0)


def _read_job_logs(status: JobStatus, run: RunRecord, search: bool = True) -> LogsAndNotes:
    job, source = status.id, launches.log_source(run, status.id)
    out, err = log_paths(run.logs, job)
    paths, metrics = [err, out], run.run_dir / "metrics.jsonl"
    if metrics.exists():  # those of a task show a loss that became NaN
        paths.append(metrics)
    started_again = status.restarts or len(run_record.attempts(run, job.task)) > 1
    return read_logs(
        paths, world_size=run.world_size, run_id=run.run_id if started_again else "",
        search=search, begin=source.begin[::-1], owners=source.owners,
    )  # fmt: skip


def _read_foreign_logs(shown: dict[str, str], silence: str) -> LogsAndNotes:
    """Return the lines of the logs of another tool's job, whose paths Slurm knows."""
    paths = [shown[key] for key in ("StdErr", "StdOut") if shown.get(key, "").startswith("/")]
    if paths:
        return read_logs(list(map(Path, dict.fromkeys(paths))))
    why = f"Slurm did not respond ({silence})" if silence else "Slurm no longer has a record of the job"
    unknown = f"the location of the job's logs is unknown: {why}"
    return [], [f"{unknown}; if you know the folder, run `clusterrun why --logs DIR`"]
