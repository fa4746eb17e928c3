"""A ladder on this machine: every rung runs after the one before, and a failed rung stops it."""

from __future__ import annotations

from tests.support.installed_command import Site
from tests.support.lm_runs import STAND_IN

SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "1")
#: A training that ends in seconds.
SMALL = ("--set", "steps=3", "--set", "eval_samples=8", "--set", "seq_len=32", "--set", "vocab=300")


def test_the_rungs_have_the_same_loss(site: Site) -> None:
    done = site.cli("submit", *site.scheduler, "lm", *SHAPE, *SMALL, *STAND_IN, "--ladder", "--wait", timeout=240)
    assert "same loss at step 3, within 2%" in done.stdout and "speed-up with" in done.stdout
    _, *rows = [line.split() for line in done.stdout.splitlines() if "COMPLETED" in line or line.startswith("RUNG")]
    assert [row[2] for row in rows] == ["1", "2"] and [row[-1] for row in rows] == ["COMPLETED"] * 2
    later = site.cli("status", rows[-1][1]).stdout
    assert later.splitlines()[-4:] == done.stdout.splitlines()[-4:], "status of the last rung prints the same report"


def test_a_failed_rung_stops_the_ladder(site: Site) -> None:
    (site.project / "two.py").write_text(
        "import os\nif os.environ['WORLD_SIZE'] == '2':\n    raise ValueError('two ranks are too many')\n"
    )
    words = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2", "--independent", "--ladder", "--json")
    rungs = site.json("submit", *site.scheduler, *words, "--", "two.py")
    jobs = [rung["job_id"] for rung in rungs]
    assert [rung["ranks"] for rung in rungs] == [1, 2, 4]
    assert site.wait_state(jobs[2], "CANCELLED", timeout=120)["reason"] == "DependencyNeverSatisfied"
    (last,) = site.json("status", jobs[2])
    assert [rung["state"] for rung in last["ladder"]["rungs"]] == ["COMPLETED", "FAILED", "CANCELLED"]
    assert last["ladder"]["stopped_at"] == jobs[1] and "two ranks are too many" in last["ladder"]["cause"]
    why = site.cli("why", jobs[2], status=None).stdout
    assert f"the job was cancelled by --kill-on-invalid-dep: afterok:{jobs[1]} was never satisfied" in why
