"""Make the folder of a Debian release with its Slurm, once for all labs of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lab.claims import lock
from lab.errors import LabError
from lab.releases import RELEASES, found, programs, root

PACKAGES = ("slurmctld", "slurmd", "slurmdbd", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin")
PROGRAMS = (
    "slurmctld", "slurmd", "slurmstepd", "slurmdbd", "sacct", "sacctmgr", "salloc", "sbatch", "sbcast", "scancel",
    "scontrol", "sdiag", "sinfo", "sprio", "squeue", "srun", "sshare", "sstat",
)  # fmt: skip


def make(slurm: str) -> str:
    """Make the folder if it is missing, and return its slurmctld's version; takes about a minute."""
    with lock(f"slurm-{slurm}", timeout=1800):
        if not root(slurm).exists():
            cache = root(slurm).parent
            cache.mkdir(mode=0o755, parents=True, exist_ok=True)
            # Renamed when it is whole, so what an interrupted run left is never taken for a release.
            for left in cache.glob(f"slurm-{slurm}.new-*"):
                shutil.rmtree(left)
            fresh = Path(tempfile.mkdtemp(prefix=f"slurm-{slurm}.new-", dir=cache))
            fresh.chmod(0o755)  # other users run these programs too
            _fill(fresh, RELEASES[slurm])
            for name in PROGRAMS:
                _take(fresh, root(slurm), name)
            fresh.rename(root(slurm))
    version = found(slurm)
    if not version:
        raise LabError(f"{programs(slurm)}/slurmctld does not run; remove {root(slurm)} and try again")
    return version


def mirror(targets: Iterable[str]) -> str:
    """Return the address of Debian's archive among lines `ORIGIN CODENAME ADDRESS` of apt's sources."""
    for line in targets:
        origin, _, rest = line.partition(" ")
        codename, _, address = rest.partition(" ")
        if origin == "Debian" and "-" not in codename and address:
            return address
    raise LabError("this machine's apt sources name no mirror of Debian, from which another Slurm could be taken")


def _fill(folder: Path, release: str) -> None:
    """Put the release with its Slurm into an empty folder."""
    argv = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    address = mirror(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines())
    # In mounts and processes of its own: what debootstrap mounts and starts in the folder ends with us, however we end.
    apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
    argv = [*apart, "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(folder)]
    done = subprocess.run([*argv, address], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        log = folder / "debootstrap" / "debootstrap.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        raise LabError(f"debootstrap of {release} failed:\n{(done.stdout + done.stderr + text)[-2000:]}")


def _take(folder: Path, final: Path, name: str) -> None:
    """Copy a program of the folder so that it loads the libraries that will be in `final`."""
    # Debian keeps some daemons under another name, behind a link that leads out of the folder.
    sources = [folder / place / file for place in ("usr/bin", "usr/sbin") for file in (f"{name}-wlm", name)]
    source = next((path for path in sources if path.is_file() and not path.is_symlink()), None)
    libraries = next(folder.glob("usr/lib/*/slurm-wlm"), None)
    if source is None or libraries is None:
        raise LabError(f"Debian's packages of Slurm hold no {name}")
    target = folder / "lab" / "bin" / name
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    shutil.copy(source, target)
    loader = subprocess.run(["patchelf", "--print-interpreter", target], capture_output=True, text=True, check=True)
    ours = final / libraries.parent.relative_to(folder)
    # An RPATH and no RUNPATH: it holds for the plugins too, which are loaded later. slurmctld and slurmd start
    # themselves again from /proc/self/exe, so a call of the loader with the program as its argument would not do.
    where = f"{ours}:{ours / libraries.name}"
    argv = ["--set-interpreter", f"{ours}/{Path(loader.stdout.strip()).name}", "--force-rpath", "--set-rpath", where]
    subprocess.run(["patchelf", *argv, target], check=True)


def install(slurm: str) -> None:
    """Make the folder and say in a line which version is there."""
    version = make(slurm)
    other = "" if f"{version}.".startswith(f"{slurm}.") else f", not {slurm}: the version has moved there"
    print(f"lab: Slurm {version} of Debian {RELEASES[slurm]}{other}", file=sys.stderr if other else sys.stdout)
