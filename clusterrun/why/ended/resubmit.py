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

from clusterrun.base.errors import RequestError
from clusterrun.base.units import format_time_limit, parse_time_limit
from clusterrun.config.files import PROJECT_FILE, USER_FILE
from clusterrun.records.run_record import RunRecord
from clusterrun.records.snapshots import load_snapshot
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
_NOT_RESUMED = ("none", "duplicate", "by-hand", "no-process-group")
_STEP = re.compile(r"step-(\d{1,12})")
_PROFILE = re.compile(r"\[profile\.([^]]+)\]")


def with_command(cause: Cause, run: RunRecord | None, script: str = "") -> Cause:
    """Return the cause with a command that works when pasted, or without one.

    A command with a value to fill in becomes part of the advice. A run that can continue where it ended gets
    ``clusterrun resume``: as the command if none of its options must change, else in the advice. A submit command
    resumes from the run's checkpoint, and the advice names it.
    """
    cause = _with_resume(cause, run)
    command, advice = cause.command, cause.advice
    if command.startswith("clusterrun submit"):
        options = _options(command, run)
        command = resubmit_command(command, run, script)
        if _PLACEHOLDER.search(options):
            filled_in = command if run is None and command else f"clusterrun submit … {options}"
            cause = replace(cause, command="", advice=f"{advice}: `{filled_in}`" if advice else f"`{filled_in}`")
            return _with_resume(cause, run) if "SIZE" in options else cause  # another learning rate is needed first
        saved = _newest_checkpoint(run) if run is not None and command else None
        if saved is not None:
            first = f"{advice}; " if advice and cause.kind != "stopped" else ""
            advice = f"{first}this command resumes from the checkpoint of step {saved[0]}"
    elif _PLACEHOLDER.search(command):
        advice, command = f"{advice}: `{command}`" if advice else f"`{command}`", ""
    return replace(cause, command=command, advice=advice)


def _with_resume(cause: Cause, run: RunRecord | None) -> Cause:
    if run is None or run.job_id is None or cause.kind in _NOT_RESUMED:
        return cause
    spec = files.read_json(run.run_dir / "spec.json") or {}
    saved, command = _newest_checkpoint(run, spec), f"clusterrun resume {run.job_id}"
    if saved is not None:
        how = f"resumes from the checkpoint of step {saved[0]}"
    elif spec.get("resume_args") or (spec.get("requeue") and _work_arguments(run, spec).startswith("-- ")):
        how = f"starts the run again{' with ' * bool(spec.get('resume_args'))}{spec.get('resume_args') or ''}"
    else:
        return cause
    how += ", using the code saved when the job was submitted" * (load_snapshot(run) is not None)
    advice = "" if cause.kind == "stopped" else cause.advice
    if not cause.command or cause.command == "clusterrun submit …" or cause.kind in _RESUMED:
        return replace(
            cause, command=command, advice="; ".join(part for part in (advice, f"this command {how}") if part)
        )
    if cause.command.startswith("clusterrun submit"):  # with other options: another run
        return cause
    return replace(cause, advice="; ".join(part for part in (advice, f"then `{command}` {how}") if part))


def resubmit_command(command: str, run: RunRecord | None, script: str = "") -> str:
    """Return a row's command with ``clusterrun submit …`` completed for this run.

    ``SIZE`` and ``LONGER`` become twice the submitted value if that is known. ``(without --NAME)`` removes an option.
    For a job of another tool the command is sbatch with the option, "" if sbatch has no such option.
    """
    if not command.startswith("clusterrun submit"):
        return command
    options = _options(command, run)
    if run is None:
        first = options.split(" ", 1)[0]
        if not script or (first and first not in _SBATCH):
            return ""
        return " ".join(word for word in ("sbatch", options, shlex.quote(script)) if word)
    spec = files.read_json(run.run_dir / "spec.json") or {}
    work = _work_arguments(run, spec)
    if not work:
        return ""
    named = set(re.findall(r"--([\w-]+)", options)) - {"set", "env", "setup"} | set(_WITHOUT.findall(command))
    if "--exclude " in options:
        named.add("nodelist")
    saved = _newest_checkpoint(run, spec)
    resume = f"--set {shlex.quote(f'resume={saved[1]}')}" if saved is not None and saved[1] else ""
    profile = next((m[1] for _, source in run.sources.values() if (m := _PROFILE.search(str(source)))), "")
    words = (
        f"--profile {shlex.quote(profile)}" if profile else "",
        *_typed_options(run, named, without_key="resume" if resume else ""),
    )
    line = " ".join(word for word in ("clusterrun submit", *words, options, resume, work) if word)
    workdir = spec.get("workdir")
    here = not isinstance(workdir, str) or not workdir.startswith("/") or workdir == _current_folder()
    return line if here else f"cd {shlex.quote(str(workdir))} && {line}"


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
        if not str(source).startswith("--") or name in without:
            continue
        if isinstance(value, bool):
            options.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            pairs = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in value.items()]
            options += [f"--{name} {shlex.quote(f'{k}={v}')}" for k, v in pairs if (name, k) != ("set", without_key)]
        else:
            options += [f"--{name} {shlex.quote(str(one))}" for one in (value if isinstance(value, list) else [value])]
    return options


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
    kind, args = work.get("kind"), work.get("args")
    words = [str(one) for one in args] if isinstance(args, list) else []
    job = _job_file(run)
    if kind == "function":
        return ""
    if job or kind == "task":
        return shlex.quote(job or str(work.get("name") or run.what))
    if kind == "module" and work.get("name"):
        return f"-- {shlex.join(['-m', str(work['name']), *words])}"
    if kind in ("script", "command") and work.get("path"):
        return f"-- {shlex.join([str(work['path']), *words])}"
    return f"-- {run.what}" if run.what else ""


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
    settings = work.get("settings")
    pairs = settings if isinstance(settings, list) else []
    own = next((pair[1] for pair in pairs if isinstance(pair, list) and pair[:1] == ["checkpoint_dir"]), "")
    folder = run.run_dir / "checkpoints"
    if isinstance(own, str) and own:
        # os.path: it leaves ~nosuchuser as it is
        folder = Path(str(spec.get("workdir") or run.root)) / os.path.expanduser(own)  # noqa: PTH111
    try:
        steps = [int(m[1]) for one in folder.iterdir() if (m := _STEP.fullmatch(one.name))]
    except (OSError, ValueError):
        return None
    return (max(steps), "" if own else str(folder)) if steps else None


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""
