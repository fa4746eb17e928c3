"""Send a project's files to a host with rsync: those that git tracks or would add, and nothing large."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from clusterrun.base.errors import CommandError, RequestError, SchedulerError
from clusterrun.base.units import plural
from clusterrun.remote.ssh import LOST, Host, Target, Unreachable, make_folder
from clusterrun.run_folder import safe_files
from clusterrun.system import shell
from clusterrun.system.work_tree import is_inside, run_git

LIMIT = 500_000_000
"""The most bytes that are sent; more is data, which belongs on the cluster's own file system."""
MOST = 50_000
"""The most files that are sent."""
#: Folders at any depth that are not sent, unless git tracks files in them.
SKIPPED = frozenset({".git", ".clusterrun", "logs", "checkpoints", ".venv", "venv", "__pycache__", "node_modules"})
_TIMEOUT = 3600.0
_VANISHED = 24  # of rsync: files were removed meanwhile
_LOST = (LOST, 10, 12, 30, 35)  # of rsync: errors of the connection


def send(target: Target, host: Host, state: Path) -> None:
    """Make the files there like those here. Raises RequestError if they are too large, SchedulerError.

    Nothing is deleted there but files that an earlier call sent and that are gone here. rsync does that itself
    (``--delete-missing-args``): they are in the list, and missing.
    """
    names = list_files(target.root)
    check_size(target.root, names)
    sent = state / "remote" / hashlib.sha256(os.fsencode(f"{host.name}:{target.folder}:{target.root}")).hexdigest()[:16]
    try:
        before = sent.read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        before = []
    gone = {name for name in before if name and not os.path.lexists(target.root / name)} - set(names)
    sent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    safe_files.write(sent, _join([*names, *gone]))  # before: what an interrupted call has sent is known too
    _rsync(target, host, [*names, *gone])
    safe_files.write(sent, _join(names))


def list_files(root: Path) -> list[str]:
    """Return the paths of a project's files from its root: by git, outside a work tree all but those in ``SKIPPED``.

    Raises RequestError if git fails in a work tree: it alone knows which files are ignored.
    """
    try:
        tracked, others = _git(root, "--cached", "--recurse-submodules"), _git(root, "--others", "--exclude-standard")
        names = [*tracked, *(name for name in others if not SKIPPED.intersection(name.split("/")))]
    except CommandError as error:
        if is_inside(root):
            raise RequestError(
                f"git could not list the project's files in {root} ({error.message}); nothing was sent",
                detail=error.detail, hint=f"try: {shlex.join(['git', '-C', str(root), 'status'])}",
            ) from error  # fmt: skip
        names = list(_walk(root))
    return sorted({name for name in names if os.path.lexists(root / name)})


def check_size(root: Path, names: list[str]) -> None:
    """Raise RequestError if the files are too many or too large."""
    sizes = {name: (root / name).lstat().st_size for name in names}
    total = sum(sizes.values())
    if len(names) > MOST or total > LIMIT:
        largest = max(sizes, key=lambda name: sizes[name])
        raise RequestError(
            f"{root} has {plural(len(names), 'file')}, {total / 1e6:,.0f} MB in total; --remote sends at most"
            f" {MOST:,} files and {LIMIT / 1e6:,.0f} MB;"
            f" the largest file is {largest} ({sizes[largest] / 1e6:,.0f} MB)",
            hint="add data and outputs to .gitignore (outside a git repository, run `git init` first), and copy the"
            " data to the cluster yourself",
        )


def _git(root: Path, *which: str) -> list[str]:
    return [name for name in run_git(root, os.environ, "ls-files", "-z", *which).split("\0") if name]


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]
        yield from (str(Path(folder, name).relative_to(root)) for name in files)


def _rsync(target: Target, host: Host, names: list[str]) -> None:
    argv = [
        "rsync", "--archive", "--from0", "--files-from=-", "--delete-missing-args", "--chmod=go-w",
        f"--rsh={host.rsh}", f"--rsync-path=cd && {make_folder(target.folder)} && rsync",
        f"{target.root}/", f"{host.name}:{target.folder}/",
    ]  # fmt: skip
    try:
        done = shell.run(argv, env=os.environ, timeout=_TIMEOUT, stdin="\0".join(names))
    except CommandError as error:
        raise SchedulerError(
            "cannot send the project's files: " + ("rsync timed out" if error.timed_out else "cannot run rsync"),
            detail=error.detail, hint="run the command again" if error.timed_out else "install rsync on this machine",
        ) from error  # fmt: skip
    if done.status in _LOST and not host.is_connected():
        raise Unreachable(f"lost the connection to {host.name}; the command was not run", detail=done.stderr.strip())
    if done.status not in (0, _VANISHED):
        hint = f"install rsync on {host.name}" if "not found" in done.stderr else "see the output of rsync"
        raise SchedulerError(f"cannot send the project's files to {host.name}", detail=done.stderr.strip(), hint=hint)


def _join(names: list[str]) -> bytes:
    return "\0".join(names).encode("utf-8", "surrogateescape")
