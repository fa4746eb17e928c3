"""`why --stacks` asks NCCL on the nodes of a running job: the first answer that can be used, else why there is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.job import JobId
from clusterrun.records.progress import RankProgress
from clusterrun.why import nccl
from tests.support.nccl_stand_in import Communicator, as_json, ranks

#: Rank 3 is at an earlier step, and NCCL says so too.
RANKS = [RankProgress(rank, f"n{1 + rank // 2}", 0.0, pid=1000 + rank, step=7 - rank // 3) for rank in range(4)]
START = {"backend": "nccl", "ranks": [{"nccl": "2.28.9"}]}
ANSWER = as_json([Communicator(0xAE94423CFBB2EF4A, ranks(4, behind=[3]))])


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str]) -> None:
    """An srun that prints what is given for its node, and fails on the others; it writes what it was called with."""
    for node, output in outputs.items():
        (folder / node).write_text(output)
    (folder / "srun").write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$*" >>{folder}/calls\n'
        "for word; do case $word in --nodelist=*) node=${word#*=};; esac; done\n"
        f'cat {folder}/$node 2>/dev/null && exit\necho "srun: error: $node is down" >&2; exit 1\n'
    )
    (folder / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def ask(start: dict[str, Any] | None = START) -> dict[str, Any] | None:
    return nccl.ask(JobId.parse("5"), RANKS, start, "/env/python", os.environ)


def printed(answer: str = ANSWER, problem: str = "") -> str:
    return json.dumps({"answer": answer, "problem": problem})


def test_the_first_node_that_answers_is_believed_and_compared_with_the_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, {"n2": printed()})
    found = ask()
    assert found is not None and (found["ranks"], found["agrees"]) == ([3], True)
    assert nccl.describe(found) == [[
        "NCCL 2.28.9: rank 3 on n2 is behind (AllReduce 41 of 42) in communicator ae94423cfbb2ef4a of 4 ranks",
        "the ranks' own records agree: rank 3",
    ]]  # fmt: skip
    calls = (tmp_path / "calls").read_text()
    assert "--nodelist=n1 " in calls and "/env/python -c" in calls and "ADDRESS = " in calls, "the client's text"


@pytest.mark.parametrize("outputs", [
    {"n1": printed("", "nobody listens on localhost:28028"), "n2": printed(ANSWER[:900], "did not end in time")},
    {"n1": "Traceback", "n2": printed("HTTP/1.1 400\n")},
    {},
])  # fmt: skip
def test_without_an_answer_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str]
) -> None:
    programs(tmp_path, monkeypatch, outputs)
    found = ask()
    assert found is not None and [*found] == ["problem"] and found["problem"].count("; ") == 1
    ((line,),) = nccl.describe(found)
    assert line == f"NCCL did not say which ranks are behind: {found['problem']}"


@pytest.mark.parametrize("start", [None, {"backend": "gloo"}])
def test_a_job_without_nccl_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: dict[str, Any] | None
) -> None:
    programs(tmp_path, monkeypatch, {})
    assert ask(start) is None and nccl.describe(None) == [] and not (tmp_path / "calls").exists()


def test_a_job_without_process_ids_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, {})
    found = nccl.ask(JobId.parse("5"), [RankProgress(0, "n1", 0.0)], START, "/env/python", os.environ)
    assert found == {"problem": "no node responded in time"}
