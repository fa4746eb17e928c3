"""Which profile and job files are looked at, and whether they are trusted: they hold shell that the job runs."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from clusterrun.errors import ConfigError, RequestError
from clusterrun.system.plain_files import read_plain

PROJECT_FILE = "clusterrun.toml"
USER_FILE = "clusterrun/config.toml"


def find_root(cwd: Path | None = None) -> Path:
    """The project's root: the nearest folder upward with a ``clusterrun.toml`` that we trust, else ``cwd`` itself.

    Without ``cwd`` it is the current folder; raises RequestError where that was deleted.
    """
    return search(cwd)[0]


def search(cwd: Path | None = None) -> tuple[Path, list[str]]:
    """The project's root, and a notice for each ``clusterrun.toml`` below it that was passed over."""
    here = folder(cwd)
    notices: list[str] = []
    for place in (here, *here.parents):
        if is_file(place / PROJECT_FILE):
            why = distrust(place / PROJECT_FILE)
            if not why:
                return place, notices
            notices.append(f"{place / PROJECT_FILE} is not used: {why}")
    return here, notices


def folder(cwd: Path | None) -> Path:
    """The folder we work in, absolute; raises RequestError where it is gone."""
    try:
        here = Path.cwd() if cwd is None else cwd.absolute()
        gone = not here.is_dir()
    except OSError:
        gone = True
    if gone:
        raise RequestError("the current folder does not exist any more", hint="cd to a folder that does")
    return here


def is_file(path: Path) -> bool:
    """Whether a regular file stands there, as far as we can see."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a folder we may not search; a NUL or an endless name in what was typed
        return False


def distrust(path: Path) -> str:
    """Why a file must not be used unless it is named, or an empty text."""
    try:
        read_plain(path)
    except OSError as error:
        return str(error.strerror) if error.errno != errno.EFBIG else ""  # reading says so, with a hint
    return ""


def read(path: Path, source: str, *, trusted: bool = True) -> bytes:
    """A file's bytes, judged once it is open; raises ConfigError where it is refused or cannot be read."""
    try:
        return read_plain(path, trusted=trusted)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(f"{source}: {error.strerror}", hint="is it the right file?") from None
        raise ConfigError(f"{source} is not used: {error.strerror}") from None


def home_of(environ: Mapping[str, str]) -> Path | None:
    """The home folder, None where there is none."""
    if environ.get("HOME", "").startswith("/"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def user_file(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """Where the user's profile would stand (the XDG rule: a relative ``XDG_CONFIG_HOME`` does not count)."""
    config = environ.get("XDG_CONFIG_HOME", "")
    if config.startswith("/"):
        return Path(config) / USER_FILE
    return home / ".config" / USER_FILE if home else None


def short(path: Path, home: Path | None) -> str:
    """A path as people write it: ``~/…`` below the home folder."""
    if home and path.is_relative_to(home):
        return f"~/{path.relative_to(home)}"
    return str(path)
