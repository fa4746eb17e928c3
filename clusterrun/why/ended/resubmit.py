"""Build the command that resumes a run, or that submits it again with changed options."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.decode import as_text
from clusterrun.base.errors import RequestError
from clusterrun.base.units import format_time_limit, parse_time_limit
from clusterrun.config.files import PROJECT_FILE, USER_FILE
from clusterrun.records.code_store import load_snapshot
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
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
_NOT_RESUMED = ("none", "duplicate", "no-process-group")
_STEP = re.compile(r"step-(\d{1,12})")
_PROFILE = re.compile(r"\[profile\.([^]]+)\]")


def with_command(cause: Cause, run: RunRecord | None, script: str = "") -> Cause:
    """Return the cause with a command that works when pasted, or without one.

    A command with a value to fill in becomes part of the advice. A run that can continue where it ended gets
    ``clusterrun resume``: as the command if none of its options must change, else in the advice. A submit command
    resumes from the run's checkpoint, and the advice names it.
    """
    cause = _with_resume(cause, run)
    if cause.command.startswith("clusterrun submit"):
        return _with_submit(cause, run, script)
    return _in_advice(cause, cause.command) if _PLACEHOLDER.search(cause.command) else cause


def _in_advice(cause: Cause, command: str) -> Cause:
    """Return the cause with a command that has a value to fill in as part of its advice."""
    advice = f"{cause.advice}: `{command}`" if cause.advice else f"`{command}`"
    return replace(cause, command="", advice=advice)


def _with_submit(cause: Cause, run: RunRecord | None, script: str) -> Cause:
    """Return the cause with the command that submits the job again, and what that resumes from."""
    options = _options(cause.command, run)
    command = resubmit_command(cause.command, run, script)
    if _PLACEHOLDER.search(options):
        cause = _in_advice(cause, command if run is None and command else f"clusterrun submit … {options}")
        return _with_resume(cause, run) if "SIZE" in options else cause  # another learning rate is needed first
    saved = _newest_checkpoint(run) if run is not None and command else None
    if saved is None:
        return replace(cause, command=command)
    resumes = f"this command resumes from the checkpoint of step {saved[0]}"
    return replace(cause, command=command, advice=_joined(_lasting_advice(cause), resumes))


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _lasting_advice(cause: Cause) -> str:
    """Return the advice of a cause; that of a run that stopped to be resumed says what a command for it does."""
    return "" if cause.kind == "stopped" else cause.advice


def _with_resume(cause: Cause, run: RunRecord | None) -> Cause:
    if run is None or cause.kind in _NOT_RESUMED:
        return cause
    is_as_before = cause.command in ("", "clusterrun submit …") or cause.kind in _RESUMED
    if cause.command.startswith("clusterrun submit") and not is_as_before:  # with other options: another run
        return cause
    how = _how_it_resumes(run)
    if not how:
        return cause
    command = f"clusterrun resume {run.job_id}"
    if is_as_before:
        return replace(cause, command=command, advice=_joined(_lasting_advice(cause), f"this command {how}"))
    return replace(cause, advice=_joined(_lasting_advice(cause), f"then `{command}` {how}"))


def _how_it_resumes(run: RunRecord) -> str:
    """Return what ``clusterrun resume`` does with a run, in words; empty if it cannot continue it."""
    if run.job_id is None:
        return ""
    spec = files.read_json(run.run_dir / "spec.json") or {}
    arguments = spec.get("resume_args")
    saved = _newest_checkpoint(run, spec)
    if saved is not None:
        how = f"resumes from the checkpoint of step {saved[0]}"
    elif arguments:
        how = f"starts the run again with {arguments}"
    elif spec.get("requeue") and _work_arguments(run, spec).startswith("-- "):
        how = "starts the run again"
    else:
        return ""
    return f"{how}, using the code saved when the job was submitted" if load_snapshot(run) is not None else how


def resubmit_command(command: str, run: RunRecord | None, script: str = "") -> str:
    """Return a row's command with ``clusterrun submit …`` completed for this run.

    ``SIZE`` and ``LONGER`` become twice the submitted value if that is known. ``(without --NAME)`` removes an option.
    For a job of another tool the command is sbatch with the option, "" if sbatch has no such option.
    """
    if not command.startswith("clusterrun submit"):
        return command
    options = _options(command, run)
    if run is None:
        return _sbatch_command(options, script)
    spec = files.read_json(run.run_dir / "spec.json") or {}
    work = _work_arguments(run, spec)
    if not work:
        return ""
    saved = _newest_checkpoint(run, spec)
    resume = f"--set {shlex.quote(f'resume={saved[1]}')}" if saved is not None and saved[1] else ""
    typed = _typed_options(run, _named_options(command, options), without_key="resume" if resume else "")
    words = ("clusterrun submit", _profile_option(run), *typed, options, resume, work)
    return _in_its_folder(" ".join(filter(None, words)), spec)


def _sbatch_command(options: str, script: str) -> str:
    """Return the command for a job of another tool; empty if its script is not known, or sbatch has no such option."""
    first = options.split(" ", 1)[0]
    if not script or (first and first not in _SBATCH):
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
    workdir = spec.get("workdir")
    is_here = not isinstance(workdir, str) or not workdir.startswith("/") or workdir == _current_folder()
    return line if is_here else f"cd {shlex.quote(str(workdir))} && {line}"


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
    options = options.replace("--time LONGER", f"--time {_double_time_limit(submitted_option(run, 'time'))}")
    excluded = re.search(r"--exclude (\S+)", options)
    if excluded is not None:
        before = [name for name in submitted_option(run, "exclude").split(",") if name]
        nodes = ",".join(dict.fromkeys([*before, *shlex.split(excluded[1])]))
        options = options.replace(excluded[0], f"--exclude {shlex.quote(nodes)}")
    return options


def _typed_options(run: RunRecord, without: Collection[str], without_key: str = "") -> list[str]:
    """Return the options that were typed at submit; those of a file or profile apply again by themselves."""
    options: list[str] = []
    for name, (value, source) in run.sources.items():
        if str(source).startswith("--") and name not in without:
            options += _typed_option(name, value, without_key)
    return options


def _typed_option(name: str, value: object, without_key: str) -> list[str]:
    """Return an option as it is typed, once for each of its values; ``without_key`` is a key of --set to leave out."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, Mapping):
        kept = [key for key in value if (name, key) != ("set", without_key)]
        return [f"--{name} {shlex.quote(f'{key}={_text(value[key])}')}" for key in kept]
    return [f"--{name} {shlex.quote(str(one))}" for one in (value if isinstance(value, list) else [value])]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def submitted_option(run: RunRecord | None, name: str) -> str:
    """Return the value of a submit option as text, or ""."""
    return str(run.sources.get(name, ("", ""))[0] or "") if run is not None else ""


def _double_size(size: str) -> str:
    match = _SIZE.fullmatch(size)
    return f"{float(match[1]) * 2:g}{match[2].upper()}" if match else "SIZE"


def _double_time_limit(limit: str) -> str:
    """Return twice a time limit in one of sbatch's formats (90, 2:00:00, 1-12)."""
    try:
        seconds = parse_time_limit(limit)
    except RequestError:
        return "LONGER"
    return format_time_limit(2 * seconds) if seconds else "LONGER"


def _work_arguments(run: RunRecord, spec: Mapping[str, Any]) -> str:
    """Return what to run as command-line words; empty for a Python callable."""
    work = spec.get("work")
    work = work if isinstance(work, dict) else {}
    kind, job = work.get("kind"), _job_file(run)
    if kind == "function":
        return ""
    if job or kind == "task":
        return shlex.quote(job or str(work.get("name") or run.what))
    started = _started_words(work)
    if started:
        return f"-- {shlex.join(started)}"
    return f"-- {run.what}" if run.what else ""


def _started_words(work: Mapping[str, Any]) -> list[str]:
    """Return the module, script or command that was started, with its arguments; none if they are not known."""
    kind, arguments = work.get("kind"), work.get("args")
    words = [str(one) for one in arguments] if isinstance(arguments, list) else []
    if kind == "module" and work.get("name"):
        return ["-m", str(work["name"]), *words]
    return [str(work["path"]), *words] if kind in ("script", "command") and work.get("path") else []


def _job_file(run: RunRecord) -> str:
    """Return the job file that was submitted, found by the sources of the values."""
    for _, sources in run.sources.values():
        for source in str(sources).split(", "):
            if source.endswith(" (shipped)"):
                return source.removesuffix(" (shipped)")
            if source.endswith(".toml") and source != PROJECT_FILE and not source.endswith(USER_FILE):
                return source
    return ""


def _newest_checkpoint(run: RunRecord, spec: Mapping[str, Any] | None = None) -> tuple[int, str] | None:
    """Return the newest saved step and the folder for ``resume``, empty if the task finds it itself.

    None where nothing is saved, or what runs is not one of clusterrun's own tasks.
    """
    spec = spec if spec is not None else files.read_json(run.run_dir / "spec.json") or {}
    work = spec.get("work")
    if not isinstance(work, dict) or work.get("kind") != "task":
        return None
    folder, own = run.run_dir / "checkpoints", _own_checkpoint_dir(work)
    if own:
        # os.path: it leaves ~nosuchuser as it is
        folder = Path(str(spec.get("workdir") or run.root)) / os.path.expanduser(own)  # noqa: PTH111
    steps = _saved_steps(folder)
    return (max(steps), "" if own else str(folder)) if steps else None


def _own_checkpoint_dir(work: Mapping[str, Any]) -> str:
    """Return the folder that a task's settings name for its checkpoints; empty if they name none."""
    settings = work.get("settings")
    for pair in settings if isinstance(settings, list) else []:
        if isinstance(pair, list) and pair[:1] == ["checkpoint_dir"]:
            return as_text(pair[1])
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
