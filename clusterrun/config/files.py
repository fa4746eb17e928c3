"""Find profile and job files and check that they are trusted: they contain shell lines that the job runs."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from clusterrun.base.errors import ConfigError, RequestError
from clusterrun.run_folder.safe_files import read_plain

PROJECT_FILE = "clusterrun.toml"
USER_FILE = "clusterrun/config.toml"


def find_root(cwd: Path | None = None) -> Path:
    """Return the project's root: the nearest folder upward with a trusted ``clusterrun.toml``, else ``cwd``."""
    return find_root_and_notices(cwd)[0]


def find_root_and_notices(cwd: Path | None = None) -> tuple[Path, list[str]]:
    """Return the project's root, and a notice for each untrusted ``clusterrun.toml`` below it."""
    here = current_folder(cwd)
    notices: list[str] = []
    for place in (here, *here.parents):
        if is_file(place / PROJECT_FILE):
            why = why_unused(place / PROJECT_FILE)
            if not why:
                return place, notices
            notices.append(f"{place / PROJECT_FILE} is not used: {why}")
    return here, notices


def current_folder(cwd: Path | None) -> Path:
    """Return the absolute path of the working folder. Raises RequestError if it was deleted."""
    with suppress(OSError):
        here = (cwd or Path()).absolute()
        if os.path.isdir(here):
            return here
    raise RequestError("the current folder no longer exists", hint="cd to another folder")


def is_file(path: Path) -> bool:
    """Return whether the path is a regular file; False if it is not accessible."""
    return os.path.isfile(path)  # unlike Path.is_file, also False without permission, or for a too long name


def why_unused(path: Path) -> str:
    """Return why a file must not be used implicitly, or an empty text."""
    try:
        read_plain(path)
    except OSError as error:
        return str(error.strerror) if error.errno != errno.EFBIG else ""  # read_config reports that, with a hint
    return ""


def read_config(path: Path, source: str, *, trusted: bool = True) -> bytes:
    """Return a file's bytes, checked after opening. Raises ConfigError if it is not trusted or cannot be read."""
    try:
        return read_plain(path, trusted=trusted)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ConfigError(f"{source}: {error.strerror}", hint="check that this is the right file") from None
        raise ConfigError(f"{source} is not used: {error.strerror}") from None


def home_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the home folder, or None."""
    if environ.get("HOME", "").startswith("/"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def user_profile_path(environ: Mapping[str, str], home: Path | None) -> Path | None:
    """Return the path of the user's profile (as XDG says, a relative ``XDG_CONFIG_HOME`` is ignored)."""
    config = environ.get("XDG_CONFIG_HOME", "")
    if config.startswith("/"):
        return Path(config) / USER_FILE
    return home / ".config" / USER_FILE if home else None


def display_path(path: Path, home: Path | None) -> str:
    """Return a path for messages: ``~/…`` below the home folder."""
    return f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)
