"""A watch kept in a thread: a scheduler that takes its time must not hold back the lines of a log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from clusterrun.states import RunState
from clusterrun.watch import Watching

PAUSE = 0.25
"""Seconds between looks at the run's own files; the watch knows when the scheduler is worth asking."""


class Watcher:
    """The newest states of a watch; ``settled`` once all of them are ends.

    ``grew`` is told that there are new lines.
    """

    def __init__(self, watch: Watching, *, grew: Callable[[], None] = lambda: None) -> None:
        self._watch, self.grew = watch, grew
        self.states: list[RunState] = []
        self.settled = False
        self._error: BaseException | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def look(self) -> Sequence[RunState]:
        """The newest states, none before the first answer; raises what the watch raised."""
        if self._error is not None:
            raise self._error
        return self.states

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                states = list(self._watch.look())
                settled = bool(states) and all(self._watch.settled(state) for state in states)
                self.states, self.settled = states, settled
                if settled:
                    return
                self._closed.wait(PAUSE)
        except BaseException as error:
            self._error = error
