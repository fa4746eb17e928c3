"""What ``scontrol show`` tells of a job, a partition, a node, as pairs of pure functions: argv out, text in.

The answer is blocks of ``Key=Value`` words, a block a thing, an empty line between two. It is the same from 22.05 to
26.05 but for keys that come and go, so a reader asks for the keys it knows and does without those that are missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What people or sites wrote, which may hold blanks and "=": the rest of its line, whatever stands there.
_FREE = ("JobName", "Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut",
         "OS", "Extra", "SubmitLine", "MailUser")  # fmt: skip
_KEY = re.compile(r"(?:^|(?<= ))([A-Z][A-Za-z0-9_/:]*)=")
_FREE_AT = re.compile(rf"(?:^|(?<= ))({'|'.join(_FREE)})=")


def show_argv(kind: str, names: Sequence[str] = (), cluster: str = "") -> list[str]:
    """``scontrol show KIND [NAMES]``; without names, all of them."""
    where = [f"--clusters={cluster}"] if cluster else []
    return ["scontrol", *where, "show", kind, *([",".join(names)] if names else [])]


def parse_show(text: str) -> list[dict[str, str]]:
    """The blocks of an answer, each its keys and values; ``(null)`` and ``N/A`` become an empty text.

    Of a key that comes twice the last counts: a job's name comes first, and may hold anything.
    """
    blocks: list[dict[str, str]] = []
    # 24.11 puts an empty line before a node's reason: a block begins where the line after one is not indented
    for block in re.split(r"\n[ \t]*\n(?=\S)", text):
        found: dict[str, str] = {}
        for line in block.splitlines():
            found.update(_words(line.strip()))
        if found:
            blocks.append(found)
    return blocks


def _words(line: str) -> dict[str, str]:
    free = _FREE_AT.search(line)
    # a node's reason is free too, but a job's stands among its states
    if free is None and line.startswith("Reason="):
        return {"Reason": _value(line[len("Reason=") :])}
    head = line if free is None else line[: free.start()]
    keys = list(_KEY.finditer(head))
    ends = [*(key.start() for key in keys[1:]), len(head)]
    found = {key[1]: _value(head[key.end() : end].strip()) for key, end in zip(keys, ends, strict=False)}
    if free is not None:
        found[free[1]] = _value(line[free.end() :])
    return found


def _value(text: str) -> str:
    return "" if text in ("(null)", "N/A", "(none)") else text
