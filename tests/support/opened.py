"""The files and folders that a piece of code opens in this process: a cost that no fast machine hides."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

_EVENTS = frozenset({"open", "os.listdir", "os.scandir"})


class Opened:
    """Collects what is opened or listed while a ``with`` block runs, but not by threads that ran before.

    A folder that is opened relative to another one is known by its name alone.
    """

    _active: ClassVar[list[Opened]] = []
    _installed = False

    def __init__(self) -> None:
        self.names: list[str] = []
        self._others: set[int | None] = set()

    def __enter__(self) -> Self:
        self._others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        if not Opened._installed:
            Opened._installed = True
            sys.addaudithook(_note)  # it cannot be removed
        Opened._active.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        Opened._active.remove(self)

    def __contains__(self, folder: Path) -> bool:
        """Whether a folder, or something by a path through it, was opened."""
        return any(folder.name in name.split("/") for name in self.names)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if Opened._active and event in _EVENTS:
        what = arguments[0]
        name = os.fsdecode(what) if isinstance(what, str | bytes | os.PathLike) else str(what)
        for one in Opened._active:
            if threading.get_ident() not in one._others:  # threads of an earlier test may still run
                one.names.append(name)
