"""Install what the lab needs, or say what is missing: `python -m lab.install [--slurm VERSION]`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from lab import releases
from lab.errors import LabError
from lab.releases import SEARCH_PATH

# Program -> the Debian package that brings it.
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "hostname": "hostname",
    "python3": "python3",  # for the users of tests: the one in use may lie where only root can go
}
# What tests of remote use need beside a lab.
REMOTE = {"sshd": "openssh-server", "ssh": "openssh-client", "rsync": "rsync", "git": "git"}
# A browser for the pages of `report`; Ubuntu has no such package, and the test of pages is skipped without one.
BROWSER = "chromium-headless-shell"
# What makes a Slurm of another version (lab/release_root.py).
MAKERS = {"debootstrap": "debootstrap", "patchelf": "patchelf"}


def missing_packages(makers: bool = False, remote: bool = False) -> list[str]:
    """Debian packages whose programs are not on this machine, in a stable order."""
    wanted = {**PROGRAMS, **(MAKERS if makers else {}), **(REMOTE if remote else {})}
    return list(dict.fromkeys(pkg for prog, pkg in wanted.items() if not shutil.which(prog, path=SEARCH_PATH)))


def available(slurm: str = "") -> str | None:
    """Why a lab of this Slurm version cannot run here, in one line, or None when it can."""
    if sys.platform != "linux":
        return "the lab needs Linux"
    if os.geteuid() != 0:
        return "the lab needs root (it makes network namespaces and starts slurmd)"
    if missing := missing_packages():
        return f"the lab needs these packages: {' '.join(missing)} (python -m lab.install)"
    # Many containers run as root without the right to make a network namespace: find out, do not guess.
    probe = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"the lab needs the right to make namespaces: {probe.stderr.strip()}"
    if slurm and not releases.root(slurm).exists():
        return f"Slurm {slurm} is not installed: python -m lab.install --slurm {slurm}"
    return None


def install(makers: bool = False) -> int:
    """Install the missing packages with apt and return an exit code; never starts the packages' own services."""
    missing = missing_packages(makers, remote=True)
    can_install = os.geteuid() == 0 and shutil.which("apt-get") is not None
    if missing and not can_install:
        print(f"lab: missing packages; as root on Debian: apt-get install {' '.join(missing)}", file=sys.stderr)
        return 1
    with _no_services() if can_install else nullcontext():
        code = (_apt("update", "-q") or _apt("install", *missing)) if missing else 0
        if code == 0 and can_install and not shutil.which(BROWSER, path=SEARCH_PATH) and _apt("install", BROWSER) != 0:
            print("lab: the test of pages in a browser will be skipped", file=sys.stderr)
    if code == 0 and (still := missing_packages(makers, remote=True)):
        print(f"lab: still missing after the installation: {' '.join(still)}", file=sys.stderr)
        return 1
    if not missing:
        print("lab: all packages are there")
    return code


@contextmanager
def _no_services() -> Iterator[None]:
    """Start no daemon of a package: they would conflict, as the lab starts its own, with its own files.

    policy-rc.d is Debian's switch for that; a machine that has one already keeps its own.
    """
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            policy.unlink()


def _apt(verb: str, *words: str) -> int:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    options = ["-qy", "--no-install-recommends"] if verb == "install" else []
    code = subprocess.run(["apt-get", verb, *options, *words], env=env, check=False).returncode
    if code != 0:
        print(f"lab: apt-get {verb} failed with exit code {code}", file=sys.stderr)
    return code


def main(argv: list[str] | None = None) -> int:
    """Install the packages, then each requested version of Slurm, and return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.install", description="Install what the lab needs.")
    parser.add_argument(
        "--slurm", action="append", default=[], choices=releases.RELEASES,
        help="also this version of Slurm, from the Debian release that ships it; repeatable",
    )  # fmt: skip
    versions = parser.parse_args(argv).slurm
    code = install(bool(versions))
    if code == 0 and versions:
        from lab import release_root  # late: it needs the locks, which need this module

        try:
            for slurm in versions:
                release_root.install(slurm)
        except (LabError, OSError, subprocess.CalledProcessError) as error:
            print(f"lab: {error}", file=sys.stderr)
            return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
