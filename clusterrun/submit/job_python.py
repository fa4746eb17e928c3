"""Ask the job's own Python on this machine, by a program of the worker: it knows the packages that the job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterrun.system import shell
from clusterrun.system.shell import Completed

WORKER = Path(__file__).parents[1] / "worker" / "__main__.py"


def ask_worker(
    python: str, words: Sequence[str], *, env: Mapping[str, str], environ: Mapping[str, str], cwd: Path, timeout: float,
    stdin: str | None = None,
) -> Completed:  # fmt: skip
    """Run ``worker/__main__.py`` with these words, and ``env`` over the user's ``environ``; return its result.

    Raises CommandError if it cannot be started, or after ``timeout`` seconds.
    """
    clean, _ = shell.scrub(environ)
    clean |= {**env, "PYTHONIOENCODING": "utf-8"}
    return shell.run([python, str(WORKER), *words], env=clean, cwd=cwd, timeout=timeout, stdin=stdin)
