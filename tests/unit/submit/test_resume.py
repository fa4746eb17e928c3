"""A run that is sent again goes out as it was planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterrun.records.store import Store
from clusterrun.submit.resume import rebuild_submission
from tests.support.run_records import make_run


def test_a_submission_that_is_finished_has_the_limit_that_resume_gave_it(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / "state")
    run = make_run(store.base)
    changed = replace(run.submission, changed=(("time", "2:00:00"), ("of-a-newer-version", "x")))
    run = replace(run, submissions=(changed,))
    store.stage(run, {"version": 1, "tasks_per_node": 4, "time_limit": 3600}, "#!/bin/bash\n")
    assert rebuild_submission(run, {}).time_limit == 7200


def test_a_run_whose_program_starts_its_ranks_asks_again_for_all_its_tasks(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / "state")
    run = make_run(store.base, workers_per_node=1)  # one worker on a node, which is the program that starts the ranks
    store.stage(run, {"version": 1, "launcher": "none", "tasks_per_node": 8, "gpus_per_node": 8}, "#!/bin/bash\n")
    again = rebuild_submission(run, {})
    assert (again.tasks_per_node, again.gpus_per_node) == (8, 8)
