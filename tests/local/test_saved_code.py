"""A script that is edited while its job is pending: the job runs what was submitted, and `diff` shows the edit."""

from __future__ import annotations

from tests.support.git_projects import check_saved_code
from tests.support.installed_command import Site


def test_a_job_runs_the_code_that_was_submitted(site: Site) -> None:
    check_saved_code(site)
