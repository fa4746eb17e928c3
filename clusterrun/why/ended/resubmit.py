"""Build the command that resumes a run, or that submits it again with changed options or a longer time limit."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.decode import as_text, as_texts
from clusterrun.base.errors import RequestError
from clusterrun.base.fields import CHANGEABLE
from clusterrun.base.job import LOCAL, JobStatus
from clusterrun.base.units import clause, format_time_limit, parse_time_limit
from clusterrun.config.files import PROJECT_FILE, USER_FILE
from clusterrun.jobspec.fields import typed_option
from clusterrun.records.code_store import load_snapshot
from clusterrun.records.progress import last_metrics
from clusterrun.records.run_record import RunRecord, list_names
from clusterrun.run_folder import files
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler.slurm.nodes import Partition, UserContext, closed
from clusterrun.state.time_left import seconds_in_all
from clusterrun.why.causes import Cause

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)
_WITHOUT = re.compile(r"\(without --([\w-]+)\)")
_SBATCH = ("--mem", "--time", "--exclude", "--requeue", "--gpus-per-node")
_PLACEHOLDER = re.compile(
    r"(?<![\w$./-])(?:SIZE|LONGER|LOWER|NODE|NAME|PATH|SCRIPT|FOLDER|N)(?![\w./])|(?<!\S)\?(?!\S)"
)
"""A placeholder for a value, or a question mark for an unknown value."""
_RESUMED = ("stopped", "cancelled", "time-limit", "preemption")
"""Causes after which the same options are right."""
_OF_CODE = ("exception", "import-error")
"""Causes after which the code that was saved is to be changed."""
_OF_ARGUMENTS = "usage"
"""The cause after which the arguments are to be changed, which a resumed run keeps."""
_NOT_RESUMED = ("none", "duplicate", "no-process-group", _OF_ARGUMENTS)
_SAVE = (
    "save a checkpoint before the limit and resume from it later, as clusterrun's built-in tasks do with --total-time"
)
_MARGIN = 1.2  # of a time limit over the time that the steps take
_STEP = re.compile(r"step-(\d{1,12})")
_PROFILE = re.compile(r"\[profile\.([^]]+)\]")


def with_command(cause: Cause, run: RunRecord | None, script: str = "") -> Cause:
    """Return the cause with a command that works when pasted, or without one.

    A command with a value to fill in becomes part of the advice. A run that can continue where it ended gets
    ``clusterrun resume``: as the command if that can change what must change, else in the advice. A submit command
    resumes from the run's checkpoint, and the advice names it.
    """
    cause = _with_resume(cause, run)
    if cause.command.startswith("clusterrun submit"):
        return _with_submit(cause, run, script)
    cause = _in_advice(cause, cause.command) if _PLACEHOLDER.search(cause.command) else cause
    return _with_other_arguments(cause, run) if cause.kind == _OF_ARGUMENTS and run is not None else cause


def _with_other_arguments(cause: Cause, run: RunRecord) -> Cause:
    """Return the cause with how a script runs again with other arguments; a task has none."""
    if run.job_id is None or load_spec(run)["work"].get("kind") == "task":
        return cause
    again = f"then run it with others: `clusterrun resubmit {run.job_id} -- ARGUMENTS`"
    return replace(cause, advice=_joined(cause.advice, again))


def _in_advice(cause: Cause, command: str) -> Cause:
    """Return the cause with a command that has a value to fill in as part of its advice."""
    return replace(cause, command="", advice=f"{clause(cause.advice, '{}: ')}`{command}`")


def _with_submit(cause: Cause, run: RunRecord | None, script: str) -> Cause:
    """Return the cause with the command that submits the job again, and what that resumes from."""
    options = _options(cause.command, run)
    command = resubmit_command(cause.command, run, script)
    if run is None:
        is_to_fill_in = _PLACEHOLDER.search(options) is not None
        shown = command or f"clusterrun submit … {options}"
        return _in_advice(cause, shown) if is_to_fill_in else replace(cause, command=command)
    if _PLACEHOLDER.search(options):
        cause = _in_advice(cause, f"clusterrun submit … {options}")
        return _with_resume(cause, run) if "SIZE" in options else cause  # another learning rate is needed first
    cause = replace(cause, command=command)
    saved = _newest_checkpoint(run)
    if saved is None or not command:
        return cause
    step, _ = saved
    resumes = f"this command resumes from the checkpoint of step {step}"
    return replace(cause, advice=_joined(_lasting_advice(cause), resumes))


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _lasting_advice(cause: Cause) -> str:
    """Return the advice of a cause; that of a run that stopped to be resumed says what a command for it does."""
    return "" if cause.kind == "stopped" else cause.advice


def _with_resume(cause: Cause, run: RunRecord | None) -> Cause:
    if run is None or cause.kind in _NOT_RESUMED:
        return cause
    is_to_be_fixed = cause.kind in _OF_CODE and bool(cause.place) and load_snapshot(run) is not None
    how = _how_it_resumes(run, with_saved_code=not is_to_be_fixed)
    if not how:
        return cause
    command, changes = f"clusterrun resume {run.job_id}" + " --current-code" * is_to_be_fixed, _changes(cause, run)
    if changes is not None:
        advice = _joined(_lasting_advice(cause), f"this command {how}")
        return replace(cause, command=f"{command} {changes}".rstrip(), advice=advice)
    if cause.command.startswith("clusterrun submit"):  # with other options: another run
        return cause
    return replace(cause, advice=_joined(_lasting_advice(cause), f"then `{command}` {how}"))


def _changes(cause: Cause, run: RunRecord) -> str | None:
    """Return the options that ``clusterrun resume`` is to change; None if it cannot change what must change."""
    otherwise = "" if cause.kind in _RESUMED else None
    if not cause.command:
        return ""
    if not cause.command.startswith("clusterrun submit"):
        return otherwise
    options = _options(cause.command, run).replace(" --requeue", "")
    is_a_part = cause.kind == "time-limit" and bool(run.option("total-time"))  # whose next part is as long
    if is_a_part or run.continued_at is not None or not _are_changeable(cause.command, options, run):
        return otherwise
    return options


def _are_changeable(command: str, options: str, run: RunRecord) -> bool:
    """Return whether ``clusterrun resume`` can do what a row's command does, whose options these are."""
    names = set(re.findall(r"--([\w-]+)", options))
    if "exclude" in names and (run.option("nodelist") or run.scheduler == LOCAL):
        return False
    return names.issubset(CHANGEABLE) and not _WITHOUT.search(command) and not _PLACEHOLDER.search(options)


def _how_it_resumes(run: RunRecord, *, with_saved_code: bool) -> str:
    """Return what ``clusterrun resume`` does with a run, in words; empty if it cannot continue it."""
    if run.job_id is None:
        return ""
    spec, saved = load_spec(run), _newest_checkpoint(run)
    if saved is not None:
        step, _ = saved
        how = f"resumes from the checkpoint of step {step}"
    elif spec.get("resume_args"):
        how = f"starts the run again with {spec['resume_args']}"
    elif _has_own_checkpoints(run, spec):
        how = "starts the run again; a script that does not find its checkpoint by itself needs --resume-args"
    elif spec.get("requeue") and _work_arguments(run, spec).startswith("-- "):
        how = "starts the run again"
    else:
        return ""
    if not with_saved_code:
        return f"{how}, using your current code"
    if load_snapshot(run) is not None:
        how += ", using the code saved when the job was submitted"
    return how


def _has_own_checkpoints(run: RunRecord, spec: Mapping[str, Any]) -> bool:
    """Return whether the user's code has saved something in CLUSTERRUN_CHECKPOINT_DIR."""
    return spec["work"].get("kind") != "task" and bool(list_names(run.run_dir / "checkpoints"))


def resubmit_command(command: str, run: RunRecord | None, script: str = "") -> str:
    """Return a row's command with ``clusterrun submit …`` completed for this run.

    ``SIZE`` becomes twice the submitted value if that is known, ``LONGER`` twice or what the training takes.
    ``(without --NAME)`` removes an option.
    For a job of another tool the command is sbatch with the option, "" if sbatch has no such option.
    """
    if not command.startswith("clusterrun submit"):
        return command
    options = _options(command, run)
    if run is None:
        return _sbatch_command(options, script)
    spec = load_spec(run)
    work = _work_arguments(run, spec)
    if not work:
        return ""
    if _is_more_than_its_file(run, spec):
        return "" if _WITHOUT.search(command) else f"clusterrun resubmit {run.job_id} {options}".rstrip()
    _, folder = _newest_checkpoint(run) or (0, "")
    resume = clause(folder and shlex.quote(f"resume={folder}"), "--set {}")
    typed = _typed_options(run, _named_options(command, options), "resume" if resume else "")
    words = ("clusterrun submit", _profile_option(run), *typed, options, resume, work)
    return _in_its_folder(" ".join(filter(None, words)), spec)


def _is_more_than_its_file(run: RunRecord, spec: Mapping[str, Any]) -> bool:
    """Return whether only the record has all of what ran: a sweep's values, or arguments typed after a job file's."""
    has_arguments = bool(_job_file(run)) and spec["work"].get("kind") != "task"
    return run.job_id is not None and (bool(run.sweep) or has_arguments)


def load_spec(run: RunRecord) -> dict[str, Any]:
    """Return what the run's job was submitted with; ``work`` is always an object."""
    spec = files.read_json(run.run_dir / "spec.json") or {}
    return spec if isinstance(spec.get("work"), dict) else {**spec, "work": {}}


def _sbatch_command(options: str, script: str) -> str:
    """Return the command for a job of another tool; empty if its script is not known, or sbatch has no such option."""
    if not script or options.partition(" ")[0] not in ("", *_SBATCH):
        return ""
    return " ".join(filter(None, ("sbatch", options, shlex.quote(script))))


def _named_options(command: str, options: str) -> set[str]:
    """Return the options that a row's command sets or removes, so that those of the submit must not be repeated."""
    named = set(re.findall(r"--([\w-]+)", options)) - {"set", "env", "setup"} | set(_WITHOUT.findall(command))
    return named | {"nodelist"} if "--exclude " in options else named


def _profile_option(run: RunRecord) -> str:
    for _, source in run.sources.values():
        match = _PROFILE.search(str(source))
        if match is not None:
            return f"--profile {shlex.quote(match[1])}"
    return ""


def _in_its_folder(line: str, spec: Mapping[str, Any]) -> str:
    """Return a command that runs in the folder of the submit."""
    workdir = as_text(spec.get("workdir"))
    if not workdir.startswith("/") or workdir == _current_folder():
        return line
    return f"cd {shlex.quote(workdir)} && {line}"


def _options(command: str, run: RunRecord | None) -> str:
    """Return the options of a row's command, quoted for the shell since they may contain text of a log."""
    options = _WITHOUT.sub("", command.removeprefix("clusterrun submit").replace("…", "")).strip()
    options = re.sub(r"--exclude(?= --|$)", "", options)  # the log names no node
    try:
        options = shlex.join(shlex.split(options))
    except ValueError:
        return ""
    if run is None:
        return options
    options = options.replace("--mem SIZE", f"--mem {_double_size(submitted_option(run, 'mem'))}")
    had = _parse_limit(submitted_option(run, "time"))
    if had:
        options = options.replace("--time LONGER", f"--time {format_time_limit(_longer_limit(had, run))}")
    excluded = re.search(r"--exclude (\S+)", options)
    if excluded is not None:
        before = filter(None, submitted_option(run, "exclude").split(","))
        nodes = ",".join(dict.fromkeys([*before, *shlex.split(excluded[1])]))
        options = options.replace(excluded[0], f"--exclude {shlex.quote(nodes)}")
    return options


def _typed_options(run: RunRecord, without: Collection[str], without_key: str) -> list[str]:
    """Return the options that were typed at submit; those of a file or profile apply again by themselves.

    ``without_key`` is a key of ``--set`` to leave out.
    """
    options: list[str] = []
    for name, (value, source) in run.options.items():
        if not str(source).startswith("--") or name in without:
            continue
        if name == "set" and isinstance(value, Mapping):
            value = {key: _as_setting(value[key]) for key in value if key != without_key}  # noqa: PLW2901
        options += typed_option(name, value)
    return options


def _as_setting(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def submitted_option(run: RunRecord | None, name: str) -> str:
    """Return the value of a submit option as text, or ""."""
    return str(run.option(name) or "") if run is not None else ""


def _double_size(size: str) -> str:
    match = _SIZE.fullmatch(size)
    return f"{float(match[1]) * 2:g}{match[2].upper()}" if match else "SIZE"


def _longer_limit(had: int, run: RunRecord | None) -> int:
    """Return twice a time limit; what the whole training takes at its speed, and a fifth, if that is more. Seconds."""
    figures = last_metrics(run) if run is not None else None
    in_all = seconds_in_all(figures) if figures is not None else None
    return max(2 * had, 60 * math.ceil(_MARGIN * (in_all or 0.0) / 60))


def _work_arguments(run: RunRecord, spec: Mapping[str, Any]) -> str:
    """Return what to run as command-line words; empty for a Python callable."""
    work, job = spec["work"], _job_file(run)
    kind = work.get("kind")
    if kind == "function":
        return ""
    if kind == "task" and not job:
        job = as_text(work.get("name")) or run.what
    if job:
        return shlex.quote(job)
    started = shlex.join(_started_words(work)) or run.what
    return f"-- {started}" if started else ""


def _started_words(work: Mapping[str, Any]) -> list[str]:
    """Return the module, script or command that was started, with its arguments; none if they are not known."""
    arguments, path = as_texts(work.get("args")), as_text(work.get("path"))
    if work.get("kind") == "module" and work.get("name"):
        return ["-m", str(work["name"]), *arguments]
    return [path, *arguments] if path else []


def _job_file(run: RunRecord) -> str:
    """Return the job file that was submitted, found by the sources of the values."""
    listed = ", ".join(str(sources) for _, sources in run.sources.values())
    for source in listed.split(", "):
        if source.endswith(" (shipped)"):
            return source.removesuffix(" (shipped)")
        is_configuration = source == PROJECT_FILE or source.endswith(USER_FILE)
        if source.endswith(".toml") and not is_configuration:
            return source
    return ""


def _newest_checkpoint(run: RunRecord) -> tuple[int, str] | None:
    """Return the newest saved step and the folder for ``resume``, empty if the task finds it itself.

    None where nothing is saved, or what runs is not one of clusterrun's own tasks.
    """
    spec = load_spec(run)
    if spec["work"].get("kind") != "task":
        return None
    folder, own = run.run_dir / "checkpoints", _own_checkpoint_dir(spec["work"])
    if own:
        # os.path: it leaves ~nosuchuser as it is
        folder = Path(as_text(spec.get("workdir")) or run.root) / os.path.expanduser(own)  # noqa: PTH111
    newest = max(_saved_steps(folder), default=None)
    if newest is None:
        return None
    return newest, "" if own else str(folder)


def _own_checkpoint_dir(work: Mapping[str, Any]) -> str:
    """Return the folder that a task's settings name for its checkpoints; empty if they name none."""
    try:
        return as_text(dict(work.get("settings") or ()).get("checkpoint_dir"))
    except (TypeError, ValueError):  # of a damaged record
        return ""


def _saved_steps(folder: Path) -> list[int]:
    try:
        matches = [_STEP.fullmatch(entry.name) for entry in folder.iterdir()]
    except (OSError, ValueError):
        return []
    return [int(match[1]) for match in matches if match is not None]


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def with_longer_limit(cause: Cause, job: JobStatus, partitions: Sequence[Partition], run: RunRecord | None) -> Cause:
    """Return the cause with a command for a longer time limit if a partition that the user may use allows that.

    Otherwise for the most that the job's partition allows; without a command if the job already had that.
    """
    own = _own_partition(job, partitions, run)
    if own is None:
        return cause
    most, had = own.time_limit, job.time_limit or _parse_limit(submitted_option(run, "time")) or own.given_time
    if not had:
        return cause
    wanted = _longer_limit(had, run)
    if most is None or wanted <= most:
        return replace(cause, command=_with_time(cause, wanted))
    bound = f"partition {own.name} allows at most {format_time_limit(most)}"
    other = _partition_that_allows(wanted, partitions)
    if other is not None:
        limit = other.time_limit
        allows = f"allows {format_time_limit(limit)}" if limit is not None else "has no time limit"
        advice = f"{bound}, but partition {other.name} {allows}: request more time in that partition, or {_SAVE}"
        return replace(cause, advice=advice, command=_with_time(cause, wanted, f" --partition {other.name}"))
    if most > had:
        return replace(cause, advice=f"{bound}; request that limit, or {_SAVE}", command=_with_time(cause, most))
    advice = f"{bound}, and no other partition that you may use allows {format_time_limit(wanted)}: {_SAVE}"
    return replace(cause, advice=advice, command="")


def _own_partition(job: JobStatus, partitions: Sequence[Partition], run: RunRecord | None) -> Partition | None:
    """Return the job's partition by its name, or the default partition if the job names none."""
    name = job.partition or submitted_option(run, "partition")
    for partition in partitions:
        if partition.name == name or (not name and partition.default):
            return partition
    return None


def _partition_that_allows(seconds: int, partitions: Sequence[Partition]) -> Partition | None:
    """Return a partition that the user may use and that allows so long a job; the default one if it does."""
    user, able = UserContext(user=user_name(os.getuid())), []
    for partition in partitions:
        is_too_short = partition.time_limit is not None and partition.time_limit < seconds
        if not (is_too_short or partition.needs_reservation or closed(partition, user)):
            able.append(partition)
    return max(able, key=lambda partition: partition.default, default=None)


def _with_time(cause: Cause, seconds: int, more: str = "") -> str:
    return cause.command.replace("--time LONGER", f"--time {format_time_limit(seconds)}{more}")


def _parse_limit(limit: str) -> int | None:
    try:
        return parse_time_limit(limit)
    except RequestError:
        return None
