"""The findings of a check, which a job writes into ``check.json`` and commands print."""

from __future__ import annotations

from typing import NamedTuple

OK, BROKEN, DIFFERS, UNKNOWN = "ok", "broken", "differs", "unknown"


class Finding(NamedTuple):
    """The result of one check: ``status`` is ok, broken, differs or unknown, ``action`` what to do, ``where`` nodes."""

    status: str
    check: str
    text: str
    action: str = ""
    where: tuple[str, ...] = ()
