"""The progress of a script that knows nothing of clusterrun, under each scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.installed_command import ROOT, Site
from tests.support.patience import until

BAR = ROOT / "tests" / "data" / "scripts" / "prints_a_bar.py"


def test_a_bar_that_ranks_draw_on_unfinished_lines_shows_how_far_the_training_is(site: Site, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job = site.submit("--nodes", "1", "--gpus-per-node", "0", "--tasks-per-node", "2", "--env", f"GO={go}", "--",
                      str(BAR))  # fmt: skip

    def figures() -> dict[str, Any] | None:
        state = site.state(job)
        return state["metrics"] if state["seconds_left"] else None

    shown = until(figures, 60, lambda: str(site.state(job)))
    go.touch()
    assert shown["steps"] == 10_000 and 1 < shown["step"] < 10_000 and shown["loss"] == 0.25
    site.wait_state(job, "COMPLETED")
    assert site.state(job)["metrics"]["step"] >= shown["step"], "it stays after the end"
