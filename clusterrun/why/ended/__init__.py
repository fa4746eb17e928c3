"""Why a job ended, from its records, its logs and the scheduler.

records.py      the run's records -> facts
logs.py         the logs -> lines, up to a size
resubmit.py     the command that submits the job again with changes
time_limit.py   a longer time limit that a partition allows
answer.py       Diagnosis: the text and JSON of ``why``
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import Outcome, log_paths
from clusterrun.records import launches, run_record
from clusterrun.records.code_store import project_path
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.files import read_json
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
from clusterrun.why.ended.answer import Diagnosis, local_cause
from clusterrun.why.ended.logs import LogLines, read_folder, read_logs
from clusterrun.why.ended.records import load_end_facts
from clusterrun.why.ended.resubmit import with_command
from clusterrun.why.ended.time_limit import with_longer_limit

__all__ = ["Diagnosis", "explain", "explain_logs", "in_one_line"]

_JOB = re.compile(r"\bJOB\b")  # stands for the job's id in the texts of the tables


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
    if slurm is not None and (state.record is None or (facts.state == "FAILED" and facts.exit_status is None)):
        shown, silence = _show_job(slurm, state)
        if facts.exit_status is None and shown.get("JobState", "") == facts.state:
            facts = replace(facts, exit_status=exit_status(shown.get("ExitCode", "")))
    if slurm is not None:
        facts = _with_slurm_facts(slurm, state, facts)
    read = _read_job_logs(state, shown, silence=silence)
    # without an answer Slurm is not queried again
    return _diagnose(state, facts, read, shown, None if silence or state.note else slurm)


def in_one_line(state: RunState) -> str:
    """Return the first cause of an ended run on one line, from its own files only; empty if there is none."""
    if state.record is None or state.status.outcome in (Outcome.DONE, Outcome.RUNNING):
        return ""
    answer = _diagnose(state, load_end_facts(state), _read_job_logs(state, {}, search=False), {})
    return "" if answer.cause.kind in ("none", "unknown") else answer.short()


def explain_logs(folder: Path) -> Diagnosis:
    """Return the first cause in a folder of logs of an unknown job.

    Raises RequestError if it is not a folder or has no log.
    """
    read = read_folder(folder)
    cause = first_cause(read.logs, EndFacts())
    if _JOB.search(cause.command):  # the job is unknown, but the file is not
        cause = replace(cause, command=_less_command(cause) if cause.command.startswith("clusterrun logs") else "")
    return Diagnosis(cause=with_command(replace(cause, advice=_JOB.sub("JOBID", cause.advice)), None), notes=read.notes)


def _less_command(cause: Cause) -> str:
    """Return the command that opens the log at the evidence; empty if there is none."""
    shown = next((one for one in cause.evidence if one.file), None)
    if shown is None:
        return ""
    return f"less {f'+{shown.number} ' if shown.number else ''}{shlex.quote(shown.file)}"


def _diagnose(
    state: RunState, facts: EndFacts, read: LogLines, shown: dict[str, str], slurm: SlurmCommands | None = None
) -> Diagnosis:
    cause = with_limit(first_cause(read.logs, facts), facts.limits, by_slurm=not state.status.id.is_local)
    if state.status.id.is_local:
        cause = local_cause(cause, state.status)
    if slurm is not None and cause.kind == "time-limit" and "--time LONGER" in cause.command:
        partitions = parse_partitions(slurm.answer(show_argv("partition")).text)
        cause = with_longer_limit(cause, state.status, partitions, state.record)
    if cause.kind == "log-unopened":
        cause = replace(cause, command=_folder_command(state, shown))
    notes = (*_state_notes(state), *_fact_notes(facts, cause), *read.notes)
    job = str(state.status.id)
    cause = replace(cause, command=_JOB.sub(job, cause.command), advice=_JOB.sub(job, cause.advice))
    cause = _for_this_user(_with_module(cause, state), state.record, shown)
    status = facts.failure.status if facts.failure is not None and facts.state == "FAILED" else None
    return Diagnosis(cause=cause, notes=notes, status=status)


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
    work = (read_json(state.record.run_dir / "spec.json") or {}).get("work")
    if not isinstance(work, dict) or work.get("kind") != "module":
        return cause
    return replace(cause, sentence=f"{cause.sentence}, in module {work.get('name')} (-m)")


def _folder_command(state: RunState, shown: dict[str, str]) -> str:
    """Return the command that checks the log folder."""
    run = state.record
    if run is None and not shown.get("StdOut"):
        return "quota -s"
    folder = shlex.quote(str(run.logs if run is not None else Path(shown["StdOut"]).parent))
    return f"ls -ld {folder}; df -h {folder}; quota -s"


def _state_notes(state: RunState) -> list[str]:
    status = state.status
    known = status.reason if status.outcome in (Outcome.UNKNOWN, Outcome.LOST) else ""
    return [*([known] if known else []), *([f"some information is not available: {state.note}"] if state.note else [])]


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
        scheduler = cluster.scheduler(state.record.scheduler if state.record else "slurm")
    except SchedulerError:
        return None
    return scheduler.slurm


def _show_job(slurm: SlurmCommands, state: RunState) -> tuple[dict[str, str], str]:
    """Return the fields of ``scontrol show job``, and the error if Slurm did not respond."""
    reply = slurm.answer(show_argv("job", [str(state.status.id)]))
    blocks = parse_jobs(reply.text)
    silent = reply.note if not blocks and "Invalid job id" not in reply.note + reply.stderr else ""
    return (blocks[-1] if blocks else {}), silent


def _with_slurm_facts(slurm: SlurmCommands, state: RunState, facts: EndFacts) -> EndFacts:
    """Return the facts with what only Slurm knows: the user who cancelled the job, the lost nodes."""
    if facts.state == "CANCELLED" and not facts.cancelled_by and slurm.facts.accounting:
        user = parse_canceller(slurm.answer(ended_argv(state.status.id)).text)
        if user is not None:
            return replace(facts, cancelled_by=format_user(user))
    nodes = sorted(set(facts.nodes.values())) or list(filter(None, [state.status.nodes]))
    if not nodes or not _may_have_lost_node(facts):
        return facts
    return replace(facts, lost_nodes=tuple(lost_nodes(parse_show(slurm.answer(show_argv("node", nodes)).text))))


def _may_have_lost_node(facts: EndFacts) -> bool:
    """Return whether a node failed, by Slurm or because some ranks left no end record."""
    ranks_missing = 0 < len(facts.ends) < (facts.world_size or 0)
    by_slurm = facts.state == "NODE_FAIL" or facts.due == "NODE FAILURE"
    return by_slurm or (facts.state == "FAILED" and ranks_missing)


def _read_job_logs(state: RunState, shown: dict[str, str], search: bool = True, silence: str = "") -> LogLines:
    job, run = state.status.id, state.record
    if run is not None:
        source = launches.log_source(run, job)
        out, err = log_paths(run.logs, job)
        # the metrics of a task show a loss that became NaN
        metrics = [path] if (path := run.run_dir / "metrics.jsonl").exists() else []
        started_again = state.status.restarts or len(run_record.attempts(run, job.task)) > 1
        return read_logs(
            [err, out, *metrics], world_size=run.world_size, run_id=run.run_id if started_again else "",
            search=search, begin=source.begin[::-1], owners=source.owners,
        )  # fmt: skip
    paths = list(dict.fromkeys(Path(shown[key]) for key in ("StdErr", "StdOut") if shown.get(key, "").startswith("/")))
    if not paths:
        why = f"Slurm did not respond ({silence})" if silence else "Slurm no longer has a record of the job"
        note = (
            f"the location of the job's logs is unknown: {why}; if you know the folder, run `clusterrun why --logs DIR`"
        )
        return LogLines((), (note,))
    return read_logs(paths)
