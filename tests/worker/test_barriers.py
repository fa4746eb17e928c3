"""The barriers on a store that answers anyone: what a stranger does there, and what is said of who is awaited."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank import barriers
from clusterrun.worker.rank.barriers import Seal
from clusterrun.worker.rank.distenv import DistEnv, RunEnv
from tests.support.installed_command import until
from tests.support.patience import HUNG

RUN = RunEnv(secret="token secret", join_timeout=int(HUNG))


@pytest.fixture
def run(tmp_path: Path) -> RunEnv:
    (tmp_path / "nodes").write_text("n0\nn1\nn2")
    return replace(RUN, attempt_dir=tmp_path)


@pytest.fixture
def server() -> Iterator[TCPStore]:
    yield TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))


def rank(number: int, server: TCPStore, world: int = 2) -> DistEnv:
    return DistEnv(number, 0, world, 1, number, f"n{number}", "h", number, "slurm", ("127.0.0.1", server.port))


def come(number: int, server: TCPStore, run: RunEnv = RUN) -> dict:
    dist = rank(number, server)
    facts = {"rank": number, "device": None, "visible": 0, "pid": number}
    return barriers.join(barriers.connect(dist, run, 10), dist, run, facts, lambda ranks: {"pids": len(ranks)})


def come_all(server: TCPStore) -> list[dict]:
    """Return the plans of ranks 0 and 1."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(partial(come, server=server), (0, 1)))


def test_the_keys_of_our_ranks_neither_hold_nor_show_the_token(server: TCPStore) -> None:
    come_all(server)
    keys = server.list_keys()
    assert keys and {key.partition("/")[0] for key in keys} == {Seal(RUN.secret).prefix}
    assert "token" not in "".join(keys) and "secret" not in "".join(keys)


def test_only_rank_0_gets_the_facts_of_all(server: TCPStore) -> None:
    first, second = come_all(server)
    assert [one["pid"] for one in first.pop("ranks")] == [0, 1]
    assert first == second == {"device_type": "cpu", "notice": "", "pids": 2}


def test_who_lacks_the_secret_does_not_join(server: TCPStore, run: RunEnv) -> None:
    dist = rank(1, server)
    barriers.connect(dist, RunEnv(secret="other"), 5).claim("join/1", "{}")
    with pytest.raises(WorkerError, match="1 of 2 ranks did not join within 2 s: rank 1 on n1"):
        come(0, server, replace(run, join_timeout=2))


def test_all_ranks_fail_with_the_absence_of_rank_0(server: TCPStore, run: RunEnv) -> None:
    run = replace(run, join_timeout=2)
    begun = time.monotonic()

    def fail(number: int) -> str:
        dist, facts = rank(number, server, world=3), {"rank": number, "device": None, "visible": 0}
        with pytest.raises(WorkerError) as failure:
            barriers.join(barriers.connect(dist, run, 5), dist, run, facts)
        return str(failure.value)

    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(fail, (1, 2)))
    assert set(texts) == {"join barrier: 1 of 3 ranks did not join within 2 s: rank 0 on n0"}
    assert time.monotonic() - begun < barriers.VERDICT_S


def test_a_planted_answer_is_replaced_by_the_ranks_own(server: TCPStore) -> None:
    prefix = Seal(RUN.secret).prefix
    for key in ("join/0", "join/1", "plan"):
        server.set(f"{prefix}/{key}", json.dumps({"device_type": "cpu", "notice": "planted", "ranks": []}))
    assert [plan["notice"] for plan in come_all(server)] == ["", ""]


def test_a_sealed_word_counts_under_its_own_key_only() -> None:
    seal = Seal("token secret")
    sealed = seal.close("done/0", "").encode()
    assert seal.open("done/0", sealed) == ""
    assert seal.open("done/1", sealed) is None
    assert seal.open("done/0", sealed + b"x") is None
    assert Seal("token other").open("done/0", sealed) is None
    assert seal.open("done/0", b"") is None and seal.open("done/0", b"\xff" * 100) is None


def test_one_rank_at_two_places_is_refused(server: TCPStore) -> None:
    dist = rank(0, server)
    board = barriers.connect(dist, RUN, 5)
    assert board.claim("join/0", '{"pid": 1}')
    assert not board.claim("join/0", '{"pid": 2}')


def test_a_rank_leaves_a_store_that_it_did_not_join_at(server: TCPStore) -> None:
    begun = time.monotonic()
    assert not barriers.leave(rank(0, server), RUN)
    assert time.monotonic() - begun < HUNG


def test_connections_to_the_store_are_kept_alive_beside_other_sockets(server: TCPStore) -> None:
    _pair = socket.socketpair()  # a job's standard input may be one: its peer has no port
    board = barriers.connect(rank(0, server), RUN, 5)
    alive = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family != socket.AF_UNIX and one.getpeername()[1] == server.port:
                alive.append(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    assert alive and set(alive) == {1}
    board.post("x", "still works")
    assert board.get("x") == "still works"


def test_a_rank_leaves_where_there_is_no_store(server: TCPStore) -> None:
    dist = DistEnv(0, 0, 2, 1, 0, "n0", "h", 0, "slurm", ("127.0.0.1", 1))
    assert not barriers.leave(dist, RUN, limit=1)


def test_rank_that_returned_first_reports_who_is_absent(
    server: TCPStore, run: RunEnv, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(barriers, "REPORT_EVERY_S", 0.5)
    come_all(server)
    waiting = [threading.Thread(target=barriers.leave, args=(rank(0, server), run))]
    began = time.monotonic()
    waiting[0].start()
    said: list[str] = []

    def has_said_it_again() -> bool:
        said.extend(capsys.readouterr().err.splitlines())
        return len(said) >= 3

    until(has_said_it_again, HUNG)
    barriers.leave(rank(1, server), run)
    waiting[0].join(HUNG)
    said += capsys.readouterr().err.splitlines()
    assert set(said) == {"clusterrun: rank 0: waiting for rank 1 on n1 to finish"}
    assert len(said) <= (time.monotonic() - began) / barriers.REPORT_EVERY_S
