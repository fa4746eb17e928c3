"""What an error shows of a program's output."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import Ambiguous, ClusterrunError, CommandError, Refused

TRACEBACK = 'note\nTraceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\nValueError: no\n\n'


@pytest.mark.parametrize("kind", [ClusterrunError, Refused, Ambiguous])
def test_of_a_flood_of_words_the_end_is_shown(kind: type[ClusterrunError]) -> None:
    detail = kind("no", detail="x" * 100_000 + "\nsbatch: error: why").detail
    assert len(detail) < 5_000 and detail.endswith("x\nsbatch: error: why")
    assert kind("no", detail="banner\nwhy").detail == "banner\nwhy"


def test_of_a_traceback_the_last_line_is_shown() -> None:
    assert CommandError(["python"], status=1, stderr=TRACEBACK).detail == "ValueError: no"
    assert ClusterrunError("no", detail=TRACEBACK).detail == "ValueError: no"
