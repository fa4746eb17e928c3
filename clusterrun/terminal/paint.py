"""Colours for a terminal: states by what they mean, and commands to paste in bold. Pure; the text is safe already."""

from __future__ import annotations

import re
from collections.abc import Mapping

BOLD, GREEN, YELLOW, RED, CYAN, GREY = 1, 32, 33, 31, 36, 90
_STATES = {
    **dict.fromkeys(("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT"), CYAN),
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "PREEMPTED", "STOPPED"), YELLOW),
    "COMPLETED": GREEN,
    **dict.fromkeys(("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"), RED),
    **dict.fromkeys(("CANCELLED", "UNKNOWN", "REVOKED"), GREY),
}
_STATE = re.compile(rf"(?:(?<=  )|^)(?:{'|'.join(_STATES)})(?![\w.-])")
_COMMAND = re.compile(r"(?:(?<=  )|(?<=hint: ))clusterrun .+$")


def has_colours(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return whether output is coloured: on a terminal that can, unless NO_COLOR is set to anything."""
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def paint(line: str) -> str:
    """Return a line with its first state and a command at its end in colour."""
    line = _STATE.sub(lambda match: _in(_STATES[match[0]], match[0]), line, count=1)
    return _COMMAND.sub(lambda match: _in(BOLD, match[0]), line)


def _in(code: int, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"
