"""What /proc says of other programs: each may end between the moment it is listed and the moment it is read."""

from __future__ import annotations

from pathlib import Path


def state_of(process: int | Path) -> str:
    """The letter of a process's state, by its pid, or of a thread's, by its folder in /proc; "" once it is gone."""
    folder = process if isinstance(process, Path) else Path(f"/proc/{process}")
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def command_lines() -> bytes:
    """The command lines of all programs on this machine."""
    found = b""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found += (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
    return found
