"""`plan --measure` with real ranks on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable

from lab.cluster import Lab
from tests.support.installed_command import Site

RANKS = ("--scheduler", "local", "--gpus-per-node", "0", "--tasks-per-node", "2")
SMALL = ("--micro-batch", "2", "--seq-len", "16", "--set", "vocab=300", "--measure-steps", "8")


def test_a_job_is_measured_on_one_rank_and_two(new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(None)
    data = site.json("plan", "lm", "--measure", "--gpus", "1,2", *RANKS, *SMALL, timeout=280)
    one, two = data["measured"]
    assert (one["gpus"], one["speedup"], one["communication"]) == (1, 1.0, 0.0)
    assert two["gpus"] == 2 and two["tokens_per_second"] > 0 and 0 <= two["communication"] < 1
    assert two["predicted_tokens_per_second"] > 0 and two["limit"]
    assert [plan["global_batch"] for plan in data["plans"]] == [2, 4], "each rank does the same work"
    runs = site.listed("--all")
    assert len(runs) == 2 and {run["outcome"] for run in runs} == {"done"}
    for folder in (site.project / ".clusterrun" / "runs").iterdir():
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["step"] == 16
        assert not (folder / "model").exists() and not list(folder.glob("checkpoints/step-*")), "nothing is saved"


def test_a_real_job_is_counted(new_site: Callable[[Lab | None], Site]) -> None:
    """The shipped job with torch: the numbers are those that its run prints."""
    site = new_site(None)
    data = site.json("plan", "lm", "--gpus", "1,2")
    assert data["parameters"] == 524_928
    assert [row["global_batch"] for row in data["plans"]] == [16, 16]
    assert list(site.project.iterdir()) == [], "the data is counted without a trace"
