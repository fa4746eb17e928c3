"""The table that `make faults` prints at its end: what each fault was, and what was measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

FAULTS = {
    1: "kill -9 of a rank",
    2: "SIGSTOP of a rank",
    3: "a node lost, with a spare one",
    4: "a node lost, without a spare one",
    5: "preemption",
    6: "the time limit",
    7: "the same exception of a script",
    8: "a kill or a full disk during a checkpoint",
    9: "a rank that never arrives, a wrong MASTER_ADDR",
    10: "the supervisor killed, slurmctld away",
}
FIGURES = pytest.StashKey[list[tuple[int, str]]]()
Figure = Callable[[int, str], None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Add a figure to the table: `figure(2, "10 of 10 named")`; the number is a key of FAULTS."""
    figures = request.config.stash.setdefault(FIGURES, [])
    return lambda fault, text: figures.append((fault, text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = terminalreporter.config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("faults")
    for fault, text in sorted(figures, key=lambda one: one[0]):
        terminalreporter.write_line(f"{fault:>2}  {FAULTS[fault]:<46}  {text}")
