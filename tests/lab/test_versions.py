"""The table of `make versions`, from reports of pytest."""

from __future__ import annotations

from tests.versions import BEHAVIOURS, FILES, ROOT, Count, Outcome, table, tally

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="tests.slurm.test_ends" name="test_requeued_job_runs_again" time="20.0" />
<testcase classname="tests.slurm.test_ends" name="test_time_limit[lab]" time="61.5"><failure>x</failure></testcase>
<testcase classname="tests.slurm.test_ends" name="test_one" time="1.0"/>
<testcase classname="tests.slurm.test_ends" name="test_one" time="0.5"><error>x</error></testcase>
<testcase classname="tests.slurm.test_free" name="test_seen" time="2"><skipped message="why"/></testcase>
<testcase classname="tests.elsewhere" name="test_it" time="1"/>
</testsuite></testsuites>"""


def test_tests_are_counted_by_the_behaviour_that_they_show() -> None:
    outcome = tally(REPORT)
    assert outcome.counts["requeue"] == Count(passed=1, seconds=20.0)
    assert outcome.counts["ends"] == Count(failed=2, seconds=63.0)
    assert outcome.counts["free"] == Count(skipped=1, seconds=2.0)
    assert outcome.counts["others"] == Count(passed=1, seconds=1.0)
    assert outcome.failures == ["tests.slurm.test_ends::test_time_limit[lab]", "tests.slurm.test_ends::test_one"]


def test_what_ran_side_by_side_and_what_ran_alone_are_counted_together() -> None:
    outcome = tally(REPORT, REPORT.replace("test_seen", "test_seen_alone"))
    assert outcome.counts["free"] == Count(skipped=2, seconds=4.0)


def test_the_table_has_a_column_for_each_version_and_names_what_failed() -> None:
    good = Outcome({"free": Count(passed=3, seconds=4.4)}, seconds=9)
    shown = table({"22.05.8": good, "26.05.5": tally(REPORT), "24.11.5": Outcome(status=2)}).splitlines()
    assert shown[0].split("  ")[-1].strip() == "Slurm 24.11.5"
    free = next(line for line in shown if line.startswith("free"))
    assert [cell.strip() for cell in free.split("   ") if cell.strip()] == [
        "free",
        "3 passed  4 s",
        "1 skipped  2 s",
        "-",
    ]
    assert "did not run (pytest exited with 2)" in "\n".join(shown)
    assert shown[-1] == "failed on 26.05.5: tests.slurm.test_ends::test_one"


def test_every_file_that_is_compared_is_there_and_has_a_behaviour() -> None:
    assert [name for name in FILES if not (ROOT / name).exists()] == []
    assert {"arrays", "requeue", "conformance", "ends", "free"} <= BEHAVIOURS.keys()
