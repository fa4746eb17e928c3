"""The command that submits a run again: what was asked then, with what is to be different now."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping

from clusterrun import records
from clusterrun.records import RunRecord

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)
_WITHOUT = re.compile(r"\(without --([\w-]+)\)")
_SBATCH = ("--mem", "--time", "--exclude", "--requeue", "--gpus-per-node")


def again(command: str, run: RunRecord | None, script: str = "") -> str:
    """A row's command with ``clusterrun submit …`` written out for this run.

    ``SIZE``, ``LONGER`` and the like become twice what was asked for, where that is known. For a job of another tool
    it is sbatch with the same option, as far as sbatch has it, else nothing. ``(without --NAME)`` takes an option away.
    """
    if not command.startswith("clusterrun submit"):
        return command
    options = _WITHOUT.sub("", command.removeprefix("clusterrun submit").replace("…", "")).strip()
    if run is None:
        first = options.split(" ", 1)[0]
        if not script or (first and first not in _SBATCH):
            return ""
        return f"sbatch {options} {shlex.quote(script)}".replace("  ", " ")
    options = _doubled(options, run)
    excluded = re.search(r"--exclude (\S+)", options)
    if excluded is not None:
        options = options.replace(excluded[0], f"--exclude {_and(run, 'exclude', excluded[1])}")
        command += "(without --nodelist)"
    named = set(re.findall(r"--([\w-]+)", options)) - {"set", "env", "setup"} | set(_WITHOUT.findall(command))
    return " ".join(word for word in ("clusterrun submit", *_asked(run, named), options, _work(run)) if word)


def _asked(run: RunRecord, without: Collection[str]) -> list[str]:
    """The options that were typed then; what a file or a profile said will be said again by itself."""
    words: list[str] = []
    for name, (value, source) in run.sources.items():
        if not str(source).startswith("--") or name in without:
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            words += [f"--{name} {shlex.quote(f'{key}={one}')}" for key, one in value.items()]
        else:
            words += [f"--{name} {shlex.quote(str(one))}" for one in (value if isinstance(value, list) else [value])]
    return words


def _and(run: RunRecord, name: str, more: str) -> str:
    """What was asked for then, and more of it."""
    before = run.sources.get(name, ("", ""))[0]
    return ",".join(dict.fromkeys([*filter(None, str(before or "").split(",")), more]))


def _doubled(options: str, run: RunRecord) -> str:
    def asked(name: str) -> str:
        return str(run.sources.get(name, ("", ""))[0])

    options = options.replace("--mem SIZE", f"--mem {_twice(asked('mem'))}")
    return options.replace("--time LONGER", f"--time {_longer(asked('time'))}")


def _twice(size: str) -> str:
    match = _SIZE.fullmatch(size)
    return f"{float(match[1]) * 2:g}{match[2].upper()}" if match else "SIZE"


def _longer(limit: str) -> str:
    """Twice a time limit, as sbatch takes it (90, 2:00:00, 1-12)."""
    days, dash, rest = limit.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or not limit or (dash and not days.isdigit()):
        return "LONGER"
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers[0], numbers[1], numbers[2]
    else:
        hours, minutes, seconds = 0, numbers[0], numbers[1] if len(numbers) > 1 else 0
    total = 2 * (((int(days) if dash else 0) * 24 + hours) * 3600 + minutes * 60 + seconds)
    return f"{total // 3600}:{total % 3600 // 60:02}:{total % 60:02}"


def _work(run: RunRecord) -> str:
    """What is to be run, as it was typed."""
    spec = records.read_json(run.run_dir / "spec.json") or {}
    work = spec.get("work")
    task = isinstance(work, dict) and work.get("kind") == "task"
    return run.what if task or not run.what else f"-- {run.what}"
