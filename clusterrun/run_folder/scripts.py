"""The paths of the scripts that sbatch gets, by which a job that Slurm shows leads to its run. No I/O."""

from __future__ import annotations

import re
from pathlib import Path

from .safe_files import RECORDS

_SCRIPT = re.compile(r"script(-[a-z2-7]{8})?\.sh", re.ASCII)
_ARRAY_SCRIPT = re.compile(r"([0-9]{8}-[0-9]{6}-[a-z2-7]{6})-[a-z2-7]{8}\.sh", re.ASCII)


def is_script(name: str) -> bool:
    """Return whether a file name is that of a run's script."""
    return _SCRIPT.fullmatch(name) is not None


def name_of_next(token: str) -> str:
    """Return the name of the script of a submission that is not a run's first."""
    return f"script-{token[:8]}.sh"


def array_script(root: Path, sweep: str, token: str) -> Path:
    """Return the path of an array's script; the names of its sweep and its submission are in it."""
    return root / RECORDS / "sweeps" / f"{sweep}-{token[:8]}.sh"


def sweep_of_script(script: str) -> str | None:
    """Return the sweep's id in the path of an array's script, None for any other script."""
    path = Path(script)
    ours = script.startswith("/") and path.parts[-3:-1] == (RECORDS, "sweeps") and _ARRAY_SCRIPT.fullmatch(path.name)
    return ours[1] if ours else None


def folder_of_script(script: str) -> Path | None:
    """Return the folder that a job's script lies in if the script has the name of a run's, else None."""
    path = Path(script)
    return path.parent if script.startswith("/") and is_script(path.name) else None
