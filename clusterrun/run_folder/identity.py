"""What a run is known by: its id, the token of its first submission, and the scripts that sbatch gets."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from .safe_files import RECORDS

SUBMISSION = "CLUSTERRUN_SUBMISSION"
"""The identity that ``--remote`` chose for a submission, so that it can find the run after a lost connection."""
_SCRIPT = re.compile(r"script(-[a-z2-7]{8})?\.sh", re.ASCII)
_ARRAY_SCRIPT = re.compile(r"([0-9]{8}-[0-9]{6}-[a-z2-7]{6})-[a-z2-7]{8}\.sh", re.ASCII)


class Identity(NamedTuple):
    """A time in whole seconds since 1970, and 80 random bits as 16 letters and digits."""

    at: int
    token: str

    @property
    def run_id(self) -> str:
        """The run id, as ``20261121-034501-k3v7qa``."""
        return f"{datetime.fromtimestamp(self.at, UTC):%Y%m%d-%H%M%S}-{self.token[:6]}"

    def __str__(self) -> str:
        return f"{self.at}-{self.token}"


def new_identity() -> Identity:
    """Return the identity of a run that begins now."""
    return Identity(int(time.time()), new_token())


def find_identity(environ: Mapping[str, str]) -> Identity | None:
    """Return the identity in the environment, None if there is none."""
    match = re.fullmatch(r"([0-9]{1,11})-([a-z2-7]{16})", environ.get(SUBMISSION, ""), re.ASCII)
    return Identity(int(match[1]), match[2]) if match else None


def new_token() -> str:
    """Return a token for a submission: 80 random bits."""
    from base64 import b32encode  # only a submission makes one

    return b32encode(os.urandom(10)).decode().lower()


# -- the scripts that sbatch gets, by which a job that Slurm shows leads to its run ----------------------------------


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
