"""Where another tool's job writes, by what Slurm tells: texts of scontrol 22.05 and sbatch lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.job import JobId
from clusterrun.logs.locations import expand, find_location, parse_locations, parse_submit_line
from clusterrun.scheduler.slurm.sacct import NEW, OLD, SEP, files_argv, parse_files
from clusterrun.scheduler.slurm.scontrol import parse_jobs

ARRAY = """JobId=1 ArrayJobId=1 ArrayTaskId=2-5%2 ArrayTaskThrottle=2 JobName=a.sh
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)
   StdErr=/home/ann/x-1_4294967294-a.sh.log
   StdIn=/dev/null
   StdOut=/home/ann/x-1_4294967294-a.sh.log

JobId=5 ArrayJobId=1 ArrayTaskId=1 ArrayTaskThrottle=2 JobName=a.sh
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   BatchHost=node1
   StdErr=/home/ann/x-1_1-a.sh.log
   StdIn=/dev/null
   StdOut=/home/ann/x-1_1-a.sh.log
"""
ONE = """JobId=3 JobName=a b=c
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList=gpu[04-05]
   BatchHost=gpu04
   StdErr=/home/ann/my logs/3-%N.err
   StdIn=/dev/null
   StdOut=/home/ann/my logs/z-3-%N-%n-%t-%s.out
"""


#: scontrol of 26.05 with `--output=%x-%j-%n.out --error=e-%N.log`
PENDING = """JobId=1 JobName=t
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   JobState=PENDING Reason=JobHeldUser Dependency=(null)
   StdErr=/home/ann/e-(null).log
   StdIn=/dev/null
   StdOut=/home/ann/t-1-0.out
"""


def of(text: str) -> list:
    return parse_locations(parse_jobs(text))


def test_what_scontrol_leaves_is_filled_in_as_slurm_does_it() -> None:
    (place,) = of(ONE)
    assert place.out == Path("/home/ann/my logs/z-3-gpu04-0-0-batch.out")
    assert (place.err, place.user) == (Path("/home/ann/my logs/3-gpu04.err"), "ann")


def test_the_node_name_of_a_pending_job_is_unknown_on_26_05() -> None:
    (pending,) = of(PENDING)
    assert not pending.is_whole and pending.err == Path("/home/ann/e-%N.log")
    started = PENDING.replace("e-(null)", "e-node1").replace("   StdErr", "   BatchHost=node1\n   StdErr")
    (running,) = of(started)
    assert running.is_whole and running.err == Path("/home/ann/e-node1.log")


def test_a_running_task_has_its_file_and_one_file_is_read_once() -> None:
    task, waiting = of(ARRAY)
    assert (task.job, task.out, task.err) == (JobId("1", 1), Path("/home/ann/x-1_1-a.sh.log"), None)
    assert waiting.is_pattern


def test_a_task_that_waits_will_write_where_its_arrays_pattern_says() -> None:
    place = find_location(JobId("1", 4), of(ARRAY))
    assert place is not None and place.out == Path("/home/ann/x-1_4-a.sh.log") and not place.is_pattern


def test_a_job_that_is_not_in_the_answer_has_no_place() -> None:
    assert find_location(JobId("9", 4), of(ARRAY)) is None
    assert find_location(JobId("3", 4), of(ONE)) is None


def test_a_job_without_a_batch_script_has_no_place() -> None:
    assert of("JobId=8 JobName=bash\n   JobState=RUNNING Reason=None\n") == []


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("%j.out", "12.out"), ("%4j", "0012"), ("%A_%a", "10_2"), ("%%j", "%j"), ("%x-%u", "job-ann"), ("%q%", "%q%")],
)
def test_patterns_are_those_of_sbatch(pattern: str, path: str) -> None:
    assert expand(pattern, {"j": "12", "A": "10", "a": "2", "x": "job", "u": "ann"}) == path


def test_a_field_that_nobody_knows_stays() -> None:
    assert expand("%N.out", {"N": ""}) == "%N.out"


@given(st.text(max_size=60))
def test_any_pattern_is_expanded_without_a_fall(pattern: str) -> None:
    assert isinstance(expand(pattern, {"j": "1"}), str)


@pytest.mark.parametrize(
    ("line", "out", "err"),
    [
        ("sbatch -o x-%A_%a.log --array=0-5%2 run.sh -o other", "/w/x-1_2.log", None),
        ("sbatch --requeue -o a.out -e a.err run.sh", "/w/a.out", "/w/a.err"),
        ("/usr/bin/sbatch --output=/tmp/o --wrap 'echo -o x'", "/tmp/o", None),
        ("sbatch -oa.log run.sh", "/w/a.log", None),
    ],
)
def test_sbatchs_own_line_names_the_files(line: str, out: str, err: str | None) -> None:
    place = parse_submit_line(JobId("1", 2), line, "/w", "ann", "job", "7", "node1")
    assert place is not None
    assert (str(place.out), str(place.err) if place.err else None) == (out, err)


@pytest.mark.parametrize(
    "line",
    ["sbatch run.sh", "sbatch run.sh -o script.out", "sbatch --requeue run.sh -o x", "srun -o x y", "", "sbatch '"],
)
def test_a_line_that_does_not_name_them_is_no_answer(line: str) -> None:
    assert parse_submit_line(JobId("1"), line, "/w", "ann", "job", "1", "node1") is None


def test_sacct_is_asked_for_one_job_and_answers_by_column() -> None:
    argv = files_argv(JobId("7", 2), 0, OLD)
    assert argv[0] == "sacct" and "--jobs=7_2" in argv
    text = SEP.join(["7_2", "9", "ann", "node1", "name", "/w", f"sbatch{SEP}x"]) + "\nnonsense\n"
    (row,) = parse_files(text, OLD)
    assert (row["JobIDRaw"], row["SubmitLine"]) == ("9", f"sbatch{SEP}x")
    assert parse_files(text, NEW) != [] and parse_files("", NEW) == []
