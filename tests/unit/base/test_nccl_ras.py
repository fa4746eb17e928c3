"""What NCCL's RAS service says of the ranks: its JSON, its older text, whose answer it is, and our own records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.decode import Damaged
from clusterrun.base.nccl_ras import Process, has_service, parse, summarize
from tests.support.nccl_stand_in import KINDS, Communicator, Peer, as_json, as_text, ranks

BOTH = pytest.mark.parametrize("written", [as_json, as_text])
JOB = [Process(rank, f"n{1 + rank // 4}", 1000 + rank) for rank in range(8)]
DATA = Path(__file__).parents[2] / "data"
WORLD = 0xAE94423CFBB2EF4A
#: In the words of NCCL's user guide (troubleshooting/ras.rst).
GUIDE = """NCCL version 2.27.5 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE,MISMATCH

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 7 -- GPU 7 managed by process 483079 on node 172.16.64.210

"""


def said(text: str, own: Sequence[int] = (), job: Sequence[Process] = JOB) -> dict[str, Any]:
    return summarize(text, job, own)


@BOTH
def test_the_rank_that_is_behind_is_named_with_its_communicator(written: Any) -> None:
    found = said(written([Communicator(WORLD, ranks(8, behind=[5]))]), [5])
    line = "rank 5 on n2 is behind (AllReduce 41 of 42) in communicator ae94423cfbb2ef4a of 8 ranks"
    assert found["lines"] == [f"NCCL {found['version']}: {line}", "the ranks' own records agree: rank 5"]
    assert (found["ranks"], found["agrees"]) == ([5], True)


@BOTH
@pytest.mark.parametrize(("gone", "what"), [
    ("unresponsive", "not responding"), ("dead", "dead (not responding for a minute)"),
    ("left", "no longer a member"),
])  # fmt: skip
def test_a_rank_that_is_gone_is_named(written: Any, gone: str, what: str) -> None:
    found = said(written([Communicator(WORLD, ranks(8, gone={2: gone}))]), [3])
    what = "not responding" if (written, gone) == (as_text, "dead") else what
    assert f": rank 2 on n1 is {what} in communicator ae94423cfbb2ef4a of 8 ranks" in found["lines"][0]
    assert found["lines"][-1] == "the ranks' own records differ: they name rank 3" and not found["agrees"]


@BOTH
def test_ranks_that_all_wait_are_no_finding(written: Any) -> None:
    found = said(written([Communicator(WORLD, ranks(8)), Communicator(7, ranks(8)[:4])]))
    assert found["lines"][0].endswith(": no rank is behind or gone in any of 2 communicators")
    assert found["lines"][1] == "the ranks' own records name none either" and found["agrees"]


@BOTH
def test_more_than_half_of_the_ranks_are_not_behind(written: Any) -> None:
    assert said(written([Communicator(WORLD, ranks(8, behind=range(5)))]))["ranks"] == []


@BOTH
def test_a_rank_that_called_another_collective_is_named_by_the_one_that_it_did_not_call(written: Any) -> None:
    peers = ranks(4)
    peers[1] = Peer(1, "10.0.0.1", 1001, dict.fromkeys(KINDS, 0) | {"AllReduce": 41, "AllGather": 1})
    found = said(written([Communicator(WORLD, peers)]))
    assert found["ranks"] == [1] and "is behind (AllReduce 41 of 42)" in found["lines"][0]


@BOTH
def test_the_number_in_a_smaller_communicator_is_not_taken_for_the_rank(written: Any) -> None:
    counts = dict.fromkeys(KINDS, 3)
    peers = [Peer(number, "10.0.0.2", 1004 + number, counts | {"Reduce": 9 - number % 2}) for number in range(2)]
    assert said(written([Communicator(1, peers)]))["ranks"] == [5]


def test_where_all_nodes_have_the_same_process_ids_the_communicator_of_all_ranks_tells_them_apart() -> None:
    job = [Process(rank, f"n{1 + rank // 4}", 7 + rank % 4) for rank in range(8)]
    peers = [Peer(p.rank, f"10.0.0.{p.node[1]}", p.pid, {"AllReduce": 42 - (p.rank == 6)}) for p in job]
    assert said(as_json([Communicator(WORLD, peers)]), [6], job)["ranks"] == [6]
    some = said(as_json([Communicator(WORLD, [peers[2], peers[6]])]), [6], job)
    assert some["ranks"] == [] and "number 6 is behind" in some["lines"][0], "no communicator of all ranks"


@BOTH
def test_the_answer_of_another_job_on_the_node_is_refused(written: Any) -> None:
    with pytest.raises(Damaged, match="other processes"):
        said(written([Communicator(WORLD, ranks(8, behind=[5], first_pid=5000))]))
    with pytest.raises(Damaged, match="other processes"):
        said(written([Communicator(WORLD, ranks(4, first_pid=5000))]))
    with pytest.raises(Damaged, match="other processes"):
        said(written([]))


@BOTH
def test_half_of_an_answer_is_refused(written: Any) -> None:
    text = written([Communicator(WORLD, ranks(8, behind=[5]))])
    for size in range(0, len(text) - 300, 97):
        with pytest.raises(Damaged):
            parse(text[:size])


@pytest.mark.parametrize("text", ["", "OK\n", "HTTP/1.1 400 Bad Request", "{}", '{"communicators": 3}',
                                  '{"nccl_version": "\\u001b[2J", "communicators": []}'])  # fmt: skip
def test_what_nccl_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(Damaged):
        parse(text)


@pytest.mark.parametrize(("version", "written"), [("2.27.5", as_text), ("2.28.9", as_json)])
def test_what_nccls_own_code_prints_is_read_and_the_stand_in_prints_the_same(version: str, written: Any) -> None:
    """The files hold what client_support.cc of these versions sends: rank 3 is behind, 1 unresponsive, 4 dead.

    The JSON of 2.28.7 to 2.28.9 lacks a comma in each missing rank.
    """
    real = (DATA / "nccl_ras" / f"{version}.txt").read_text()
    stand_in = written([Communicator(WORLD, ranks(8, behind=[3], gone={1: "unresponsive", 4: "dead"}))], version)
    found = said(real, [1, 3, 4])
    assert found == said(stand_in, [1, 3, 4]) and (found["ranks"], found["agrees"]) == ([1, 3, 4], True)
    assert found["lines"][0] == (
        f"NCCL {version}: rank 3 on n1 is behind (AllReduce 41 of 42) in communicator ae94423cfbb2ef4a of 8 ranks"
    )


def test_the_words_of_nccls_user_guide_are_read() -> None:
    job = [Process(rank, "n", 483072 + rank) for rank in range(8)] + [Process(21, "n3", 3487984)]
    found = said(GUIDE, [21], job)
    assert found["lines"] == [
        "NCCL 2.27.5: rank 0 on n, rank 7 on n are behind (AllReduce 6649 of 6650) in communicator cf264af53edbe986"
        " of 32 ranks",
        "NCCL 2.27.5: rank 21 on n3 is not responding in communicator cf264af53edbe986 of 32 ranks",
        "the ranks' own records differ: they name rank 21",
    ]


def test_many_findings_are_cut() -> None:
    peers = [ranks(8, behind=[3], first_pid=1000) for _ in range(9)]
    lines = said(as_json([Communicator(number, one) for number, one in enumerate(peers)]))["lines"]
    assert len(lines) == 5 and lines[3].endswith("and 6 more findings")


@pytest.mark.parametrize(("start", "expected"), [
    (None, False), ({}, False), ({"backend": "gloo", "ranks": [{"nccl": "2.28.9"}]}, False),
    ({"backend": "nccl", "ranks": [{"nccl": "2.23.4"}]}, False),
    ({"backend": "nccl", "ranks": [{"nccl": "2.24"}]}, True),
    ({"backend": "nccl", "ranks": [{"nccl": ""}]}, True), ({"backend": "nccl", "ranks": [{}]}, True),
])  # fmt: skip
def test_only_ranks_with_a_new_enough_nccl_have_the_service(start: dict[str, Any] | None, expected: bool) -> None:
    assert has_service(start) is expected
