"""Jobs named on the command line: no ids, unknown ones, those of others, and no Slurm to ask."""

from __future__ import annotations

import pytest

from tests.support.command_desk import Desk, refused

NO_IDS = """../../etc|12; rm||-1|１２|1;|1;a b|1_|_1|1+|1 2|1
|0x1|$(id)|--all|1;../../x""".split("|")
NO_IDS.append("9" * 400)
NO_NAMES = ["L", "l1", "a b", "a;rm -rf b", "a" * 100_000]


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_what_is_no_job_id_reaches_no_command(desk: Desk, verb: str) -> None:
    for text in NO_IDS:
        if (verb, text) == ("cancel", "--all"):
            continue
        line, _ = refused(desk, verb, text)
        assert "not a job id" in line or "no such option" in line or "say which" in line or "missing" in line, line
        assert len(line) < 200
    assert desk.slurm.calls == []


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_what_is_no_name_of_a_job_reaches_no_command(desk: Desk, verb: str) -> None:
    for text in NO_NAMES:
        line, _ = refused(desk, verb, text, status=4, calls=True)
        assert line.startswith("no job is named ") and len(line) < 200
    assert not [call for call in desk.slurm.calls if {*NO_NAMES} & {*call}]


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_a_job_that_nobody_knows(desk: Desk, verb: str) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    line, _ = refused(desk, verb, "99", status=4, calls=True)
    assert line == "no such job: 99"
    assert refused(desk, verb, "L99", status=4, calls=True)[0] == "no such job: L99"
    assert "no record of run" in refused(desk, verb, "20261121-034501-k3v7qa", status=4, calls=True)[0]
    assert refused(desk, verb, "1_2", status=4, calls=True)[0] == "no such job: 1_2"
    desk.slurm.forget()
    assert "cluster" in refused(desk, verb, "99;elsewhere", status=4)[0]
    assert refused(desk, verb, "99;desk", status=4, calls=True)[0].startswith("no such job: 99")


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_a_job_without_slurm(desk: Desk, verb: str) -> None:
    desk.without_slurm()
    assert refused(desk, verb, "99", status=4)[0] == "no such job: 99"


@pytest.mark.parametrize("verb", ["status", "cancel"])
def test_a_job_while_slurm_is_silent(desk: Desk, verb: str) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    said = desk.type(verb, "99")
    assert said.status == 3 and said.out == ""
    assert said.err.splitlines() == [
        "clusterrun: Slurm is not responding",
        "  | squeue: slurm_load_jobs error: Unable to contact slurm controller",
        "  hint: run `scontrol ping`, then try again",
    ]


def test_somebody_elses_job_is_not_cancelled(desk: Desk) -> None:
    from tests.unit.scheduler.test_slurm_text import row

    desk.slurm.answer("squeue", row(i="99", A="99", u="mallory", j="theirs"))
    line, _ = refused(desk, "cancel", "99", status=4, calls=True)
    assert line == "job 99 belongs to mallory, not to you" and desk.slurm.count("scancel") == 0


def test_slurm_asked_for_where_there_is_none(desk: Desk) -> None:
    desk.without_slurm()
    line, hint = refused(desk, "submit", "--scheduler", "slurm", status=3)
    assert line.startswith("Slurm is not available") and "--scheduler local" in hint
    assert desk.type("render", "--scheduler", "slurm").status == 0
