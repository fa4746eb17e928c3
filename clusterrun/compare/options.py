"""Compare the options of two runs, with their sources, and what they run."""

from __future__ import annotations

import shlex
from typing import Any

from clusterrun.compare import Change, find_changes
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files

_ABSENT = (None, "")
_SETTING = "set."


def compare_options(first: RunRecord, second: RunRecord) -> list[Change]:
    """Return what differs: the work, its arguments, the folder, then each option; tables are compared by key."""
    changes = list(find_changes(_load_work(first), _load_work(second)))
    options, other_options = load_options(first), load_options(second)
    for name in sorted({*options, *other_options}):
        value, source = options.get(name, _ABSENT)
        other_value, other_source = other_options.get(name, _ABSENT)
        if value != other_value:
            changes.append(Change(name, value, other_value, (source, other_source)))
    return changes


def _load_work(run: RunRecord) -> dict[str, Any]:
    spec = files.read_json(run.run_dir / "spec.json") or {}
    work = spec.get("work")
    if not isinstance(work, dict):
        return {}
    words = work.get("args")
    arguments = shlex.join(map(str, words)) if isinstance(words, list) else ""
    return {
        "runs": work.get("path") or work.get("name"),
        "arguments": " ".join(filter(None, (arguments, _resume_args(run)))) or None,
        "folder": spec.get("workdir"),
    }


def _resume_args(run: RunRecord) -> str:
    """Return what a job appended to the run's arguments, as jobs of it had started before; else an empty text."""
    continues = len(run_record.all_attempts(run)) > len(run_record.attempts(run))
    return run.submission.resume_args if continues else ""


def command_line(run: RunRecord) -> str:
    """Return what a run runs with its arguments, of a task with its settings; empty if its record does not say."""
    work = _load_work(run)
    if not work.get("runs"):
        return ""
    settings = {name: value for name, (value, _) in load_options(run).items() if name.startswith(_SETTING)}
    words = [shlex.quote(f"{name.removeprefix(_SETTING)}={value}") for name, value in settings.items()]
    return " ".join([str(work["runs"]), *filter(None, [work["arguments"]]), *words])


def load_options(run: RunRecord) -> dict[str, tuple[Any, str]]:
    """Return the values of a run with their sources; ``set.lr`` is the key lr of the table set."""
    values: dict[str, tuple[Any, str]] = {"scheduler": (run.scheduler, "")}  # chosen for a run that names none
    for name, (value, source) in run.options.items():
        if not isinstance(value, dict):
            values[name] = (value, source)
            continue
        for key, item in value.items():
            values[f"{name}.{key}"] = (item, source)
    return values
