"""What `why` says of a launch that the watchdog ended: where the ranks were, and only advice that can help."""

from __future__ import annotations

from clusterrun.run_folder.ends import Hang
from clusterrun.why.causes import EndFacts
from clusterrun.why.causes.hang import hang_cause
from clusterrun.why.ended import _fact_notes

STACKS = "/home/u/my runs/attempts/x.0.0/stacks-rank-*.txt"
BEHIND = Hang(
    "no progress for 61 s: rank 1 on n1 (pid 5) is at step 3, behind the others, at /home/u/train.py:33 in load",
    1, "n1", 5, "running", "/home/u/train.py:33", stacks=STACKS,
)  # fmt: skip


def test_a_rank_that_runs_but_is_behind_has_its_line_and_its_stacks_and_no_restart() -> None:
    cause = hang_cause(BEHIND)
    assert (cause.rank, cause.place) == (1, "/home/u/train.py:33") and "max-restarts" not in cause.command
    assert cause.command == "less '/home/u/my runs/attempts/x.0.0'/stacks-rank-1.txt"
    assert cause.headline().count("/home/u/train.py:33") == 1


def test_a_deadlock_of_all_ranks_has_all_stacks() -> None:
    cause = hang_cause(BEHIND._replace(rank=None, node="", cause="no progress for 61 s: no rank is behind the others"))
    assert cause.command.endswith("/stacks-rank-*.txt")
    assert "(/home/u/train.py:33)" in cause.headline()
    assert hang_cause(BEHIND._replace(stacks="")).command == "clusterrun logs JOB -n 50"


def test_a_process_that_stopped_can_be_started_again() -> None:
    cause = hang_cause(BEHIND._replace(silent=True, cause="rank 1 on n1 (pid 5) is stopped (SIGSTOP)"))
    assert cause.command == "clusterrun submit … --max-restarts 3"


def test_what_nccl_says_is_evidence() -> None:
    lines = ("NCCL 2.28.9: rank 1 on n1 is behind (AllReduce 41 of 42)", "the ranks' own records agree: rank 1")
    cause = hang_cause(BEHIND._replace(file="/r/attempts/x.0.0/hang.json", nccl=lines))
    assert [(line.file, line.text) for line in cause.evidence] == [
        ("/r/attempts/x.0.0/nccl-ras.txt", line) for line in lines
    ]
    assert hang_cause(BEHIND).evidence == ()


def test_why_nccl_did_not_answer_is_a_note() -> None:
    facts = EndFacts(hang=BEHIND._replace(nccl_problem="nobody listens (localhost:28028) on n1, n2"))
    assert _fact_notes(facts, hang_cause(BEHIND)) == [
        "NCCL did not say which ranks hang: nobody listens (localhost:28028) on n1, n2"
    ]
