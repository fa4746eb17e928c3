"""A script that is edited while its job is pending: the job runs what was submitted, and `diff` shows the edit."""

from __future__ import annotations

from pathlib import Path

from tests.support.git_projects import ONE_RANK, check_saved_code, make_repository, write_files
from tests.support.installed_command import Site


def test_a_job_runs_the_code_that_was_submitted(site: Site) -> None:
    check_saved_code(site)


TRAIN = """step=$(cat "$CLUSTERRUN_CHECKPOINT_DIR/step" 2>/dev/null || echo 0)
echo "begins at step $step: $*"
echo 7 >"$CLUSTERRUN_CHECKPOINT_DIR/step"
"""


def test_a_run_whose_bug_was_fixed_continues_at_its_step_with_the_current_code(site: Site) -> None:
    make_repository(site.project, {"train.sh": TRAIN + "echo a bug; exit 1\n"})
    run = site.submit(*ONE_RANK, "--resume-args=--resume", "--", "bash", "train.sh", "--lr", "1")
    site.wait_state(run, "FAILED")
    write_files(site.project, {"train.sh": TRAIN + "echo the bug is gone\n"})
    first = site.json("resume", run.id)
    site.wait_state(first["job_id"], "FAILED")
    second = site.json("resume", run.id, "--current-code")
    site.wait_state(second["job_id"], "COMPLETED")
    assert second["run_dir"] == first["run_dir"] == str(run.run_dir)
    assert [Path(one["logs"][0]).read_text().splitlines()[-2:] for one in (first, second)] == [
        ["0: begins at step 7: --lr 1 --resume", "0: a bug"],
        ["0: begins at step 7: --lr 1 --resume", "0: the bug is gone"],
    ]
