"""A project folder with profiles and job files beside a user's own, and what is read from them."""

from __future__ import annotations

from pathlib import Path

from clusterrun.config import profiles
from clusterrun.config.profiles import load_job, load_profiles, merge
from clusterrun.jobspec.fields import Value


def make_root(folder: Path) -> Path:
    """An empty project folder; the user's home stands beside it."""
    (folder / "project" / "jobs").mkdir(parents=True)
    (folder / "home" / ".config" / "clusterrun").mkdir(parents=True)
    return folder / "project"


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def project(root: Path, text: str, mode: int = 0o644) -> Path:
    return write(root / "clusterrun.toml", text, mode)


def user(root: Path, text: str) -> Path:
    return write(root.parent / "home" / ".config" / "clusterrun" / "config.toml", text)


def load(root: Path, profile: str | None = None, **environ: str) -> profiles.Profiles:
    return load_profiles(root, {"HOME": str(root.parent / "home"), **environ}, profile)


def load_on(root: Path, cluster: str | None, profile: str | None = None) -> profiles.Profiles:
    """The profiles where the shell is configured for a cluster; None for no cluster."""
    return load_profiles(root, {"HOME": str(root.parent / "home")}, profile, lambda: cluster)


def merged(root: Path, profile: str | None = None, **environ: str) -> dict[str, Value]:
    return merge(load(root, profile, **environ).levels)


def job(root: Path, text: str, name: str = "x") -> profiles.JobFile:
    write(root / "jobs" / f"{name}.toml", text)
    return load_job(name, root, environ={"HOME": str(root.parent / "home")})
