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
_ENDS = {"done": GREEN, "failed": RED, "stopped": YELLOW, "cancelled": GREY, "lost": GREY}  # begin a line of `status`
_NODES = {"idle": GREEN, "draining": YELLOW, **dict.fromkeys(("down", "drained", "failing", "not responding"), RED)}
#: Patterns are compiled when first used: a pipe does without.
_STATE = rf"(?:(?<=  )|(?<=: )|(?<=\t)|^)(?:{'|'.join(_STATES)})(?![\w.-])"
_END = rf"^(?:{'|'.join(_ENDS)})(?= after |: |$)"
_NODE = rf"(?:(?<=\d )|(?<=  ))(?:{'|'.join(_NODES)})(?=  |[,;]|$)"
#: Programs that begin a command to paste.
PROGRAMS = ("clusterrun", "scontrol", "sacct", "sacctmgr", "ls", "less", "python")
_COMMAND = rf"(?:(?<=  )|(?<=hint: ))(?:{'|'.join(PROGRAMS)}) .+$"
CHOICES = ("always", "never", "auto")


class Colours:
    """When the output of this process has colours: one of CHOICES."""

    chosen = "auto"


def has_colours(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return whether output is coloured: as chosen, else on a terminal that can, unless NO_COLOR is set to anything."""
    if Colours.chosen != "auto":
        return Colours.chosen == "always"
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"


def paint(line: str) -> str:
    """Return a line with its first state, conditions of nodes and a command at its end in colour."""
    line = re.sub(_STATE, lambda match: _in(_STATES[match[0]], match[0]), line, count=1)
    line = re.sub(_END, lambda match: _in(_ENDS[match[0]], match[0]), line)
    line = re.sub(_NODE, lambda match: _in(_NODES[match[0]], match[0]), line)
    return re.sub(_COMMAND, lambda match: _in(BOLD, match[0]), line)


def _in(code: int, text: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"
