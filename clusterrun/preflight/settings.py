"""Check a built-in task's settings by running ``worker/check_settings.py`` with the job's Python, without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from clusterrun.errors import CommandError
from clusterrun.jobspec.render import work_argv
from clusterrun.jobspec.spec import JobSpec
from clusterrun.preflight.findings import CannotCheck, Finding
from clusterrun.submit.plan import WORKER
from clusterrun.system import shell


def check_settings(spec: JobSpec, environ: Mapping[str, str], workdir: Path, timeout: float) -> list[Finding]:
    """Return what is wrong with the task's settings, and which files, packages or tokens are missing.

    With ``--setup`` what is missing is only doubtful: its lines may provide it. ``timeout`` is in seconds. Raises
    CannotCheck if the job's Python cannot run the check.
    """
    _, name, *settings = work_argv(spec)
    clean, _ = shell.scrub(environ)
    clean |= dict(spec.env) | {"PYTHONIOENCODING": "utf-8"}
    argv = [spec.python, str(WORKER), "check-settings", str(spec.world_size), name, *settings]
    try:
        found = json.loads(shell.check_output(argv, env=clean, cwd=workdir, timeout=timeout))
        wrong, missing = str(found["wrong"]), [str(one) for one in found["missing"]]
    except CommandError as error:
        last = (error.detail.splitlines() or [""])[-1].strip()
        raise CannotCheck(last or error.message) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CannotCheck(f"{spec.python} printed no result") from error
    if wrong:
        return [Finding(f"{name}: {wrong}", "see docs/settings.md", never=True)]
    if spec.setup:
        return [Finding(f"{name}: {one} (unless --setup provides it)") for one in missing]
    needs_token = bool(missing) and "HF_TOKEN" in missing[0]
    hint = "export HF_TOKEN=…" if needs_token else "use --no-check if only the compute nodes have it"
    return [Finding(f"{name}: {one}", hint, never=True) for one in missing]
