"""Check a built-in task's settings by running ``worker/check_settings.py`` with the job's Python, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterrun.base.errors import CommandError
from clusterrun.base.units import plural
from clusterrun.jobspec.render import work_argv
from clusterrun.jobspec.spec import JobSpec, Task
from clusterrun.preflight.findings import CannotCheck, Finding, refuse
from clusterrun.submit.job_python import ask_worker

_FIRST_S, _EACH_S = 2.0, 0.05
"""Seconds for the settings of a sweep: for the first task, and for each."""


def check_settings(spec: JobSpec, environ: Mapping[str, str], workdir: Path, timeout: float) -> list[Finding]:
    """Return what is wrong with the task's settings, and which files, packages or tokens are missing.

    With ``--setup`` or a container what is missing is only doubtful: they may provide it. ``timeout`` is in seconds.
    Raises CannotCheck if the job's Python cannot run the check.
    """
    return _judge(spec, *_run([spec], environ, workdir, timeout)[0])


def check_others(specs: Sequence[JobSpec], environ: Mapping[str, str], workdir: Path) -> list[str]:
    """Check the other tasks of a sweep, all in one process; return lines for the user. Raises RequestError.

    Each distinct set of settings is checked once.
    """
    distinct = list({tuple(work_argv(spec)): spec for spec in specs if isinstance(spec.work, Task)}.values())
    if not distinct:
        return []
    try:
        results = _run(distinct, environ, workdir, _FIRST_S + _EACH_S * len(distinct))
    except CannotCheck as error:
        return [f"not checked: the settings of {plural(len(distinct), 'task')} ({error})"]
    found = [one for spec, result in zip(distinct, results, strict=True) for one in _judge(spec, *result)]
    refuse(found)
    return [f"warning: {line}" for line in dict.fromkeys(one.line for one in found)]


def _run(
    specs: Sequence[JobSpec], environ: Mapping[str, str], workdir: Path, timeout: float
) -> list[tuple[str, list[str]]]:
    """Return for each task what is wrong and what is missing; all have the same Python, variables and ranks."""
    spec = specs[0]
    words = ["check-settings", str(spec.world_size)]
    sets = "\n".join(json.dumps(work_argv(one)[1:]) for one in specs)
    try:
        done = ask_worker(
            spec.python, words, env=dict(spec.env), environ=environ, cwd=workdir, timeout=timeout, stdin=sets
        )
        if done.status:
            raise CommandError([spec.python], status=done.status, stdout=done.stdout, stderr=done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        found = [(str(row["wrong"]), [str(one) for one in row["missing"]]) for row in rows]
    except CommandError as error:
        last = (error.detail.splitlines() or [""])[-1].strip()
        raise CannotCheck(last or error.message) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CannotCheck(f"{spec.python} printed no result") from error
    if len(found) != len(specs):
        raise CannotCheck(f"{spec.python} printed no result")
    return found


def _judge(spec: JobSpec, wrong: str, missing: Sequence[str]) -> list[Finding]:
    name = work_argv(spec)[1]
    if wrong:
        return [Finding(f"{name}: {wrong}", "see docs/settings.md", never=True)]
    if spec.setup or spec.container_image:
        provider = "the container" if spec.container_image else "--setup"
        return [Finding(f"{name}: {one} (unless {provider} provides it)") for one in missing]
    needs_token = bool(missing) and "HF_TOKEN" in missing[0]
    hint = "export HF_TOKEN=…" if needs_token else "use --no-check if nothing is missing on the compute nodes"
    return [Finding(f"{name}: {one}", hint, never=True) for one in missing]
