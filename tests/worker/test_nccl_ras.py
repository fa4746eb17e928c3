"""NCCL is asked when a launch hangs: the client against a stand-in with every fault, and the nodes of a job at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.nccl_ras import parse
from clusterrun.run_folder import ends
from clusterrun.worker.job import hung_step, nccl_answer
from clusterrun.worker.job.stall import RankMark
from clusterrun.worker.node import nccl_ras
from clusterrun.worker.node.nccl_ras import ask
from tests.support.hangs import be_patient
from tests.support.nccl_stand_in import Communicator, StandIn, as_json, as_text, ranks, serving
from tests.support.patience import HUNG

BEHIND = [Communicator(0xAE94423CFBB2EF4A, ranks(4, behind=[3]))]
SHORT = 1.0


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    found = StandIn({})
    found.close()
    return found.address


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as a busy machine needs."""
    be_patient(tmp_path, monkeypatch)


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("json_too", "version"), [(True, "2.28.9"), (False, "2.27.5")])
def test_the_answer_is_json_where_nccl_has_it(json_too: bool, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_S", HUNG)
    with serving(BEHIND, json_too=json_too) as server:
        assert parse(ask(server.address, HUNG)[0]).version == version
    assert server.commands == ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]


def test_a_server_of_another_protocol_is_asked_all_the_same() -> None:
    with serving(BEHIND, protocol=3) as server:
        assert ask(server.address, HUNG) == (as_json(BEHIND), "")


@pytest.mark.parametrize(("fault", "error", "problem"), [
    ("silent", TimeoutError, "no process greeted in time"),
    ("rubbish", ValueError, "another program listens there"),
    ("closed", (ValueError, ConnectionResetError), None),
    ("mute", TimeoutError, "no response in time"),
])  # fmt: skip
def test_a_server_that_is_none_is_left(
    fault: str, error: Any, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_S", SHORT if fault == "silent" else HUNG)
    with serving(BEHIND, fault=fault) as server, pytest.raises(error, match=problem):
        ask(server.address, SHORT)


@pytest.mark.parametrize(("fault", "greeting"), [("slow", HUNG), ("slow", SHORT / 2)])
def test_a_server_that_sends_a_byte_at_a_time_is_left_at_the_limit(
    fault: str, greeting: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_S", greeting)
    began = time.monotonic()
    with serving(BEHIND, fault=fault) as server, pytest.raises(TimeoutError):
        ask(server.address, SHORT)
    assert SHORT <= time.monotonic() - began < HUNG


def test_an_answer_without_an_end_is_given_up_at_eight_mebibytes() -> None:
    with serving(BEHIND, fault="huge") as server:
        assert ask(server.address, HUNG) == ("", "the answer has more than 8 MiB")


def test_half_an_answer_is_kept_as_far_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_S", HUNG)
    with serving(BEHIND, fault="half") as server:
        text, problem = ask(server.address, 5 * SHORT)
    assert problem == "the answer did not end in time"
    assert text and as_json(BEHIND).startswith(text) and text != as_json(BEHIND)


def test_a_stopped_process_that_shares_the_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_ras, "GREETING_S", 0.1)
    with serving(BEHIND, fault="silent") as stopped, serving(BEHIND, port=int(stopped.address.split(":")[1])) as server:
        assert [ask(server.address, HUNG)[0] for _ in range(5)] == [as_json(BEHIND)] * 5


def run_client(address: str, *arguments: str) -> dict[str, str]:
    environ = {**os.environ, "NCCL_RAS_ADDR": address}
    command = [sys.executable, nccl_ras.__file__, *arguments]
    found: dict[str, str] = json.loads(subprocess.run(command, env=environ, capture_output=True, check=True).stdout)
    return found


def test_the_client_runs_by_path_and_prints_the_answer_or_the_problem(nobody: str, patient: None) -> None:
    with serving(BEHIND) as server:
        assert run_client(server.address) == {"answer": as_json(BEHIND), "problem": ""}
        rank = subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"], "NCCL_RAS_ADDR": server.address})
        assert run_client(nobody, str(rank.pid))["answer"], "the rank's own address"
        rank.kill()
        rank.wait()
    assert run_client(nobody) == {"answer": "", "problem": f"nobody listens ({nobody})"}
    assert "no-port" in run_client("no-port")["problem"]


# -- the nodes of a job ------------------------------------------------------------------------------------------------

MARKS = [RankMark(rank, 0.0, f"n{1 + rank // 2}", 1000 + rank) for rank in range(4)]


def job(folder: Path, *, local: bool = True, backend: str = "nccl", nccl: str = "2.28.9") -> Any:
    (folder / "start.json").write_text(json.dumps({
        "version": 1, "backend": backend, "ranks": [{"rank": 0, "task": 0, "node": "n1", "nccl": nccl}]}))  # fmt: skip
    return types.SimpleNamespace(
        attempt_dir=folder, options=types.SimpleNamespace(local=local), nodes=["n1", "n2"], token="a" * 16
    )


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An srun that runs its command here; the node n1 is given an address by the file `n1`, and so on."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(
        "#!/bin/sh\nfor word; do case $word in --nodelist=*) node=${word#*=};; esac; done\nshift 7\n"
        f'[ -e {tmp_path}/$node ] || exec sleep 600\nNCCL_RAS_ADDR=$(cat {tmp_path}/$node) exec "$@"\n'
    )
    (tmp_path / "bin" / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path


@pytest.fixture
def launch(tmp_path: Path, patient: None) -> Path:
    (tmp_path / "attempt").mkdir()
    return tmp_path / "attempt"


def test_what_nccl_says_is_kept_and_compared_with_the_records(launch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(BEHIND) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        found = nccl_answer.collect(job(launch), MARKS, [3], [])
    assert found is not None and (found["ranks"], found["agrees"]) == ([3], True)
    assert (launch / ends.NCCL).read_text() == as_json(BEHIND)


@pytest.mark.parametrize("how", [{"backend": "gloo"}, {"nccl": "2.21.5"}])
def test_ranks_without_the_service_are_not_asked(launch: Path, how: dict[str, str]) -> None:
    with serving(BEHIND) as server:
        assert nccl_answer.collect(job(launch, **how), MARKS, [3], []) is None
    assert server.commands == []


def test_one_node_that_answers_is_enough(launch: Path, srun: Path) -> None:
    with serving(BEHIND) as server:
        (srun / "n2").write_text(server.address)
        found = nccl_answer.collect(job(launch, local=False), MARKS, [], [])
    assert found is not None and found["ranks"] == [3] and found["agrees"] is False


def test_an_answer_of_another_job_is_passed_over(launch: Path, srun: Path) -> None:
    with serving([Communicator(1, ranks(4, first_pid=7000))]) as other, serving(BEHIND, json_too=False) as server:
        (srun / "n1").write_text(other.address)
        (srun / "n2").write_text(server.address)
        found = nccl_answer.collect(job(launch, local=False), MARKS, [3], [])
    assert found is not None and found["version"] == "2.27.5"
    assert (launch / ends.NCCL).read_text() == as_text(BEHIND)


def test_nodes_without_an_answer_are_named_with_the_problem(launch: Path, srun: Path, nobody: str) -> None:
    with serving(BEHIND, fault="nonsense") as server:
        (srun / "n1").write_text(nobody)
        (srun / "n2").write_text(server.address)
        found = nccl_answer.collect(job(launch, local=False), MARKS, [3], [])
    assert found is not None and set(str(found["problem"]).split("; ")) == {
        f"nobody listens ({nobody}) on n1", "it is not an answer of NCCL on n2"
    }  # fmt: skip


@pytest.mark.parametrize("json_too", [True, False])
def test_an_answer_that_a_dying_process_cut_off_names_no_rank(
    launch: Path, monkeypatch: pytest.MonkeyPatch, json_too: bool
) -> None:
    with serving(BEHIND, json_too=json_too, fault="cut") as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        found = nccl_answer.collect(job(launch), MARKS, [3], [])
    assert found is not None and [*found] == ["problem"]
    assert (as_json if json_too else as_text)(BEHIND).startswith((launch / ends.NCCL).read_text()), "it is kept"


def test_nodes_that_do_not_respond_are_waited_for_no_longer_than_the_limit(
    launch: Path, srun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hung_step, "NCCL_S", SHORT)
    began = time.monotonic()
    assert nccl_answer.collect(job(launch, local=False), MARKS, [3], []) == {"problem": "no node responded in time"}
    assert time.monotonic() - began < HUNG, "their srun would run for 600 s"


def test_lost_nodes_are_not_asked(launch: Path, srun: Path, nobody: str) -> None:
    (srun / "n2").write_text(nobody)
    found = nccl_answer.collect(job(launch, local=False), MARKS, [3], ["n1"])
    assert found == {"problem": f"nobody listens ({nobody}) on n2"}


def test_a_folder_that_cannot_be_written_loses_only_the_copy(launch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (launch / ends.NCCL).mkdir()
    with serving(BEHIND) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        found = nccl_answer.collect(job(launch), MARKS, [3], [])
    assert found is not None and found["ranks"] == [3]
