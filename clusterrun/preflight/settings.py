"""Check a task's settings by running ``worker/tasks/check_settings.py`` with the job's Python, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, parse_object
from clusterrun.base.errors import CommandError, RequestError
from clusterrun.base.units import plural
from clusterrun.jobspec.render import work_argv
from clusterrun.jobspec.spec import JobSpec, Task
from clusterrun.preflight.findings import CannotCheck, Finding, refuse
from clusterrun.preflight.patience import Patience
from clusterrun.submit.job_python import JobPython, ask_worker

_EACH_S = 0.05
"""Seconds more for each further task of a sweep."""


def check_settings(
    spec: JobSpec, python: JobPython, environ: Mapping[str, str], workdir: Path, patience: Patience
) -> list[Finding]:  # fmt: skip
    """Return what is wrong with the task's settings, and which files, packages or tokens are missing.

    With ``--setup`` or a container what is missing is only doubtful: they may provide it. Raises CannotCheck if the
    job's Python cannot run the check.
    """
    results, why_not = _run([spec], python, environ, workdir, patience)
    if not results:
        raise CannotCheck(why_not)
    return _judge(spec, results[0])


def check_others(
    specs: Sequence[JobSpec], python: JobPython, environ: Mapping[str, str], workdir: Path, patience: Patience
) -> list[str]:  # fmt: skip
    """Check the other tasks of a sweep, all in one process; return lines for the user. Raises RequestError.

    Each distinct set of settings is checked once.
    """
    distinct = list({tuple(work_argv(spec)): spec for spec in specs if isinstance(spec.work, Task)}.values())
    if not distinct:
        return []
    results, why_not = _run(distinct, python, environ, workdir, patience)
    findings: list[Finding] = []
    for spec, result in zip(distinct, results, strict=False):
        findings += _judge(spec, result)
    refuse(findings)
    lines = []
    if len(results) < len(distinct):
        unchecked = plural(len(distinct) - len(results), "task")
        lines.append(f"not checked: the settings of {unchecked} ({why_not})")
    return lines + [f"warning: {line}" for line in dict.fromkeys(findings)]


Result = tuple[str, list[str], list[str]]
"""What is wrong with the settings of a task (or an empty text), what is missing, and what is doubtful."""


def _run(
    specs: Sequence[JobSpec], python: JobPython, environ: Mapping[str, str], workdir: Path, patience: Patience
) -> tuple[list[Result], str]:
    """Return the results of the first tasks, and why those of the others are unknown.

    All tasks have the same Python, variables and ranks. A result counts however the program ended after printing it.
    """
    spec = specs[0]
    words = ["check-settings", str(spec.world_size), *(["look"] if python.is_for_submission else [])]
    timeout = patience.seconds + _EACH_S * (len(specs) - 1)
    sets = "\n".join(json.dumps(work_argv(each)[1:]) for each in specs)
    try:
        done = ask_worker(python, words, env=dict(spec.env), environ=environ, cwd=workdir, timeout=timeout, stdin=sets)
    except CommandError as error:
        results = _results(error.stdout)[: len(specs)]
        if error.timed_out and not results:
            patience.gave_up()
        return results, _reason(error)
    patience.answered()
    results = _results(done.stdout)[: len(specs)]
    if not done.status:
        return results, f"{spec.python} printed no result"
    return results, _reason(CommandError([spec.python], status=done.status, stderr=done.stderr))


def _results(printed: str) -> list[Result]:
    """Return the results in the program's output, up to the first line that is none."""
    results: list[Result] = []
    for line in printed.splitlines():
        try:
            results.append(_result(parse_object(line)))
        except (Damaged, KeyError, TypeError):
            break
    return results


def _result(row: dict[str, Any]) -> Result:
    return str(row["wrong"]), list(map(str, row["missing"])), list(map(str, row["doubts"]))


def _reason(error: CommandError) -> str:
    """Return the last line that the program printed, or how it ended if that says nothing."""
    return error.detail.strip().rpartition("\n")[2].strip() or error.message


def _judge(spec: JobSpec, result: Result) -> list[Finding]:
    name, (wrong, missing, doubts) = work_argv(spec)[1], result
    if wrong:
        return [RequestError(f"{name}: {wrong}", hint="see docs/settings.md")]
    findings: list[Finding] = [f"{name}: {line}" for line in doubts]
    return findings + [_judge_missing(spec, f"{name}: {line}") for line in missing]


def _judge_missing(spec: JobSpec, line: str) -> Finding:
    """Judge a file, package or token that is missing here, where a container or ``--setup`` may still provide it."""
    if spec.container_image:
        return f"{line} (unless the container provides it)"
    if spec.setup:
        return f"{line} (unless --setup provides it)"
    if "HF_TOKEN" in line:
        return RequestError(line, hint="export HF_TOKEN=…")
    return RequestError(line, hint="use --no-check if nothing is missing on the compute nodes")
