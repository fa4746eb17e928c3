"""Slurm of another version than this machine's: the programs of another Debian release, which run beside it.

`python -m lab.install --slurm 24.11` fills a folder with that release. Its Slurm programs load the libraries of that
folder, so they need no chroot: they run as any user, and jobs see this machine's own files and Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab.errors import LabError

CACHE = Path("/var/cache/clusterrun-lab")
#: Slurm version -> the Debian release that ships it. Versions move in sid: the installation prints the exact one.
RELEASES = {"24.11": "trixie", "26.05": "sid"}
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The variable that names the version of every lab that is not given one.
VARIABLE = "CLUSTERRUN_LAB_SLURM"


def default() -> str:
    """Return the version that the environment names; an empty text is this machine's own."""
    return checked(os.environ.get(VARIABLE, ""))


def checked(slurm: str) -> str:
    """Return the version; it is empty for the machine's own Slurm. Raise LabError if no release ships it."""
    if slurm in ("", *RELEASES):
        return slurm
    own = found("")
    if own and f"{own}.".startswith(f"{slurm}."):
        return ""
    known = ", ".join(([f"{own} (this machine's)"] if own else []) + list(RELEASES))
    raise LabError(f"there is no Slurm {slurm} for a lab; there are {known}")


def root(slurm: str) -> Path:
    """Return the folder of the release that ships this version; it is there once it is whole."""
    return CACHE / f"slurm-{slurm}"


def programs(slurm: str) -> Path:
    """Return the folder with this version's programs, to be first on PATH."""
    return root(slurm) / "lab" / "bin"


def search_path(slurm: str, rest: str = SEARCH_PATH) -> str:
    """Return a PATH on which this version's programs come first."""
    return f"{programs(slurm)}:{rest}" if slurm else rest


def plugins(slurm: str) -> Path:
    """Return the folder with this version's plugins."""
    found = next(root(slurm).glob("usr/lib/*/slurm-wlm"), None)
    if found is None:
        raise LabError(f"Slurm {slurm} is not installed: python -m lab.install --slurm {slurm}")
    return found


def found(slurm: str) -> str:
    """Return the full version of this version's slurmctld, such as 24.11.5; empty where it does not run."""
    slurmctld = shutil.which("slurmctld", path=str(programs(slurm)) if slurm else SEARCH_PATH)
    if slurmctld is None:
        return ""
    words = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, check=False).stdout.split()
    return words[-1] if words else ""
