"""A script that is edited while its job is pending: the job runs what was submitted, and `diff` shows the edit."""

from __future__ import annotations

from tests.git_projects import edit_while_pending
from tests.installed_command import Site


def test_a_job_runs_the_code_that_was_submitted(site: Site) -> None:
    job, later = edit_while_pending(site)
    lines = job.out.read_text().splitlines()
    for line in ("0: settings one", "0: script one", f"0: {site.project}"):
        assert line in lines, lines
    said = site.cli("diff", job.id, later.id).stdout
    assert "\n-settings one\n+settings two\n" in said and "script two" in said, said
