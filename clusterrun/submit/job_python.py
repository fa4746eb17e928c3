"""The job's own Python on this machine: it knows the packages that the job has. The only place that starts it.

Who named it decides whether a command may start it (ADR 31). A submission runs it anyway. A command that only reads
starts no program that a file of the project chose, unless the user has submitted a job with it; a plan for an agent
starts none at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import CommandError, RequestError
from clusterrun.config import profiles
from clusterrun.jobspec.fields import Value
from clusterrun.records.agreed import has_agreed
from clusterrun.run_folder.files import state_folder
from clusterrun.submit.environments import find_python
from clusterrun.system import shell
from clusterrun.system.shell import Completed

WORKER = Path(__file__).parents[1] / "worker" / "__main__.py"
#: Variables of a project's files that a check gets although it only reads: where data is, and that no network is used.
_PASSED = frozenset(
    {"HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"}
)
_FOR_AGENT = "a plan for an agent starts no program"


class Starts(Enum):
    """Which Python a command may start on this machine."""

    ANY = "any"
    """It submits the job, whose ranks run that Python."""
    OWN = "own"
    """It only reads: the active environment's, clusterrun's own, or one that the user named or submitted a job with."""
    NONE = "none"
    """It plans for an agent."""


class NotStarted(RequestError):
    """The command must not start the job's Python; the message says why."""


class JobPython(NamedTuple):
    """The job's Python; ``why_not`` says why this command must not start it, empty if it may.

    ``withheld`` are names of variables that it does not get here: files of the project set them. ``agreements`` are
    what the user agrees to by submitting the job, for later commands.
    """

    path: str
    why_not: str = ""
    withheld: frozenset[str] = frozenset()
    agreements: tuple[tuple[str, ...], ...] = ()

    def run(
        self, words: Sequence[str], *, environ: Mapping[str, str], env: Mapping[str, str] | None = None,
        cwd: Path = Path("/"), timeout: float = shell.SLURM_TIMEOUT, stdin: str | None = None,
    ) -> Completed:  # fmt: skip
        """Run it with these words, the user's ``environ`` and the job's variables ``env``, and return its result.

        Not in the current folder, which may contain a torch.py. Raises NotStarted, or CommandError if it cannot be
        started, or after ``timeout`` seconds.
        """
        if self.why_not:
            hint = "activate that environment, or choose it with --venv, --conda or --python"
            raise NotStarted(f"{self.path} is not started: {self.why_not}", hint="" if self.is_for_agent else hint)
        clean, _ = shell.scrub(environ)
        clean |= {name: value for name, value in (env or {}).items() if name not in self.withheld}
        return shell.run([self.path, *words], env=clean, cwd=cwd, timeout=timeout, stdin=stdin)

    def read(self, words: Sequence[str], *, environ: Mapping[str, str], stdin: str | None = None) -> str:
        """Run it and return its output; raises as :meth:`run`, CommandError also for another exit status than 0."""
        done = self.run(words, environ=environ, stdin=stdin)
        if done.status != 0:
            raise CommandError([self.path, *words], status=done.status, stdout=done.stdout, stderr=done.stderr)
        return done.stdout

    @property
    def is_for_submission(self) -> bool:
        """Whether the command submits the job, so that it may connect to what the job names."""
        return bool(self.agreements)

    @property
    def is_for_agent(self) -> bool:
        return self.why_not == _FOR_AGENT


def choose_python(
    typed: Sequence[Mapping[str, Value]], files: Sequence[Mapping[str, Value]], value: Value | None, root: Path,
    environ: Mapping[str, str], starts: Starts,
) -> JobPython:  # fmt: skip
    """Return the job's Python, ``value`` of the merged levels, as this command may start it.

    ``typed`` are levels that the user typed, ``files`` those that files of the project ``root`` set. Raises
    RequestError.
    """
    path = str(find_python(value, environ).value)
    if starts is Starts.NONE:
        return JobPython(path, _FOR_AGENT)
    source = _source_in(files, value)
    foreign = _foreign_variables(typed, files)
    of_python, of_variables = ("python", str(root), path), ("env", str(root), json.dumps(foreign, sort_keys=True))
    if starts is Starts.ANY:
        # whoever chose the Python: a resubmit takes it from a record, which may have come with the project
        return JobPython(path, agreements=(of_python, *([of_variables] if foreign else [])))
    state = state_folder(environ)
    withheld = frozenset[str]() if has_agreed(state, *of_variables) else frozenset(foreign)
    if not source or path == find_python(None, environ).value or has_agreed(state, *of_python):
        return JobPython(path, withheld=withheld)
    return JobPython(path, f"{source} chose it, and you have not submitted a job with it", withheld)


def _source_in(levels: Sequence[Mapping[str, Value]], value: Value | None) -> str:
    """Return the source of a Python that one of the levels set, empty for another's."""
    if value is not None and any(level.get("python") is value for level in levels):
        return value.source
    return ""


def _foreign_variables(
    typed: Sequence[Mapping[str, Value]], files: Sequence[Mapping[str, Value]]
) -> dict[str, Any]:  # fmt: skip
    """Return the variables that files set and that might run code in a Python."""
    own = _variables(typed).keys() | _PASSED
    return {name: text for name, text in _variables(files).items() if name not in own}


def _variables(levels: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    """Return the variables of levels, each from the highest that sets it."""
    merged = profiles.merge([{"env": level["env"]} for level in levels if "env" in level])
    return dict(merged.get("env", Value({}, "")).value)


def ask_worker(
    python: JobPython, words: Sequence[str], *, env: Mapping[str, str], environ: Mapping[str, str], cwd: Path,
    timeout: float, stdin: str | None = None,
) -> Completed:  # fmt: skip
    """Run ``worker/__main__.py`` with these words, and ``env`` over the user's ``environ``; return its result.

    Raises what :meth:`JobPython.run` raises.
    """
    env = {**env, "PYTHONIOENCODING": "utf-8"}
    return python.run([str(WORKER), *words], environ=environ, env=env, cwd=cwd, timeout=timeout, stdin=stdin)
