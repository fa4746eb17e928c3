"""The watchdog ends a launch that hangs, after it has collected the evidence; real processes, records written here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun.run_folder import ends
from clusterrun.worker.job import hung_step, nccl_answer, watchdog
from clusterrun.worker.job.notify import Notifier
from clusterrun.worker.job.stall import RankMark, Suspicion
from clusterrun.worker.job.watchdog import HUNG, Watchdog, describe, progress_interval
from clusterrun.worker.node import probe
from clusterrun.worker.rank.stacks import REQUEST, StackWriter, common_place
from tests.support.hangs import be_patient
from tests.support.installed_command import until
from tests.support.nccl_stand_in import KINDS, Communicator, Peer, serving
from tests.support.patience import HUNG as LONG
from tests.support.rank_files import put_bytes, put_end, put_progress

TOKEN = "abcdefghijklmnop"
LIMIT = 2.0


def started(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env={**os.environ, "CLUSTERRUN_TOKEN": TOKEN})


class Launch:
    """A step (`sleep`), a rank 1 (`sleep`), and the records of both ranks, which this process writes."""

    def __init__(
        self,
        folder: Path,
        hang_timeout: float = LIMIT,
        ends_it: bool = True,
        silent: Collection[int] = (),
        nodes: int = 1,
    ) -> None:
        self.folder = folder
        self.step, self.rank = started("sleep", "600"), started("sleep", "600")
        self.lines: list[str] = []
        self.is_ending = False
        self.silent = {*silent}
        self.closed = threading.Event()
        options = types.SimpleNamespace(
            local=True, hang_timeout=hang_timeout, progress_interval=None, spare_nodes=0, max_restarts=1
        )
        job: Any = types.SimpleNamespace(
            attempt_dir=folder,
            options=options,
            token=TOKEN,
            nodes=["n1"] * nodes,
            earlier_starts=0,
            notifier=Notifier(),
        )
        self.watchdog = Watchdog(
            job, self.step, 2 if nodes == 1 else 4, self.lines.append, lambda: self.is_ending, ends_it
        )
        self.began = time.time()
        self.watchdog.start()
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        writer = StackWriter(self.folder, 0)
        while not self.closed.wait(0.1):
            for rank in {0, 1} - self.silent:
                record = {
                    "time": time.time(), "advanced": self.began, "interval": 0.4, "phase": "script", "node": "n1",
                    "pid": os.getpid() if rank == 0 else self.rank.pid, "collectives": {"0": 7 - rank},
                }  # fmt: skip
                put_progress(self.folder, rank, record)
            if 0 not in self.silent:
                writer.write_if_requested()

    def close(self) -> None:
        self.closed.set()
        for process in (self.step, self.rank):
            process.kill()
            process.wait()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launch]]:
    monkeypatch.setattr(watchdog, "EVIDENCE_S", 0.5)
    made: list[Launch] = []
    yield made
    for launch in made:
        launch.close()


def test_a_stopped_rank_is_named_and_the_step_is_killed(tmp_path: Path, launches: list[Launch]) -> None:
    launches.append(launch := Launch(tmp_path))
    until((tmp_path / "node-1.ranks").exists, 10)
    launch.rank.send_signal(signal.SIGSTOP)
    launch.silent = {1}
    assert launch.step.wait(LONG) == -signal.SIGKILL
    launch.rank.kill()
    assert launch.watchdog.close(137) == HUNG
    hang = json.loads((tmp_path / "hang.json").read_text())
    assert (hang["rank"], hang["node"], hang["pid"], hang["state"]) == (1, "n1", launch.rank.pid, probe.STOPPED)
    assert hang["stacks"] == ["stacks-rank-0.txt"]
    assert "_write_stacks" in (tmp_path / "stacks-rank-0.txt").read_text()
    (line,) = launch.lines
    assert f"rank 1 on n1 (pid {launch.rank.pid}) is stopped (SIGSTOP); stacks: " in line


def test_a_stopped_rank_of_ten_thousand_nodes_is_named_without_waiting_for_its_heartbeats(
    tmp_path: Path, launches: list[Launch]
) -> None:
    launches.append(launch := Launch(tmp_path, silent=(0, 1), nodes=10_000))
    launch.rank.send_signal(signal.SIGSTOP)
    began = time.time()
    for rank in range(4):
        still = {"still": True, "pid": os.getpid()} if rank != 1 else {"pid": launch.rank.pid}
        record = {"time": began, "advanced": began - 1.3, "interval": 107.0, "phase": "script", "node": f"n{rank}"}
        put_progress(tmp_path, rank, record | {"collectives": {"0": 7}} | still)
    assert launch.watchdog._pace > 100 and launch.step.wait(LONG) == -signal.SIGKILL
    assert json.loads((tmp_path / "hang.json").read_text())["rank"] == 1


def test_a_rank_behind_the_others_is_named_with_what_it_waits_for(tmp_path: Path, launches: list[Launch]) -> None:
    launches.append(launch := Launch(tmp_path))
    assert launch.step.wait(LONG) == -signal.SIGKILL
    (line,) = launch.lines
    assert f"rank 1 on n1 (pid {launch.rank.pid}) is at collective 6, behind the others, and waiting" in line
    names = sorted(path.name for path in tmp_path.glob("stacks-*"))
    assert names == ["stacks-rank-0.txt"], "rank 1 has no thread that writes"


def uses_nccl(folder: Path) -> None:
    """Make the launch one whose ranks have NCCL's RAS service."""
    start = {"version": 1, "backend": "nccl", "ranks": [{"rank": 0, "task": 0, "node": "n1", "nccl": "2.28.9"}]}
    (folder / "start.json").write_text(json.dumps(start))


@pytest.mark.parametrize("ends_it", [True, False])
def test_nccl_is_asked_and_what_it_says_follows_the_cause(
    tmp_path: Path, launches: list[Launch], monkeypatch: pytest.MonkeyPatch, ends_it: bool
) -> None:
    uses_nccl(tmp_path)
    launches.append(launch := Launch(tmp_path, ends_it=ends_it))
    counts = dict.fromkeys(KINDS, 0)
    peers = [Peer(0, "10.0.0.1", os.getpid(), counts | {"AllReduce": 7}), Peer(1, "10.0.0.1", launch.rank.pid, counts)]
    with serving([Communicator(0xAE94423CFBB2EF4A, peers)]) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        be_patient(tmp_path, monkeypatch)
        until(lambda: len(launch.lines) == 3, 60, lambda: str(launch.lines))
    assert launch.lines[1] == (
        "NCCL 2.28.9: rank 1 on n1 is behind (AllReduce 0 of 7) in communicator ae94423cfbb2ef4a of 2 ranks"
    )
    assert launch.lines[2] == "the ranks' own records agree: rank 1"
    assert (tmp_path / ends.NCCL).exists()
    if ends_it:
        assert launch.step.wait(LONG) == -signal.SIGKILL
        found = ends.find_hang(tmp_path)
        assert found is not None and found.nccl == tuple(launch.lines[1:])


def test_nccl_that_cannot_be_asked_keeps_no_launch_alive(
    tmp_path: Path, launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(nccl_answer, "collect", fail)
    launches.append(launch := Launch(tmp_path))
    assert launch.step.wait(LONG) == -signal.SIGKILL
    found = ends.find_hang(tmp_path)
    assert found is not None and (found.nccl, found.nccl_problem) == ((), "ValueError: a bug")
    assert len(launch.lines) == 1


def test_nccl_that_does_not_answer_keeps_no_launch_alive(
    tmp_path: Path, launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    uses_nccl(tmp_path)
    with serving([], fault="silent") as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", server.address)
        monkeypatch.setattr(hung_step, "NCCL_S", 1.0)
        launches.append(launch := Launch(tmp_path))
        assert launch.step.wait(LONG) == -signal.SIGKILL
    found = ends.find_hang(tmp_path)
    assert found is not None and found.nccl_problem == "no node responded in time"


def test_without_the_right_to_end_it_there_is_one_warning(tmp_path: Path, launches: list[Launch]) -> None:
    launches.append(launch := Launch(tmp_path, ends_it=False))
    until(lambda: launch.lines, 30)
    looks = launch.watchdog._pace * 4
    assert not launch.watchdog._ended.wait(looks) and launch.step.poll() is None
    assert len(launch.lines) == 1 and launch.lines[0].startswith("warning: no progress for ")
    assert launch.watchdog.close(0) == 0


def test_a_job_that_is_being_ended_is_left_alone(tmp_path: Path, launches: list[Launch]) -> None:
    launches.append(launch := Launch(tmp_path))
    launch.is_ending = True
    until((tmp_path / "node-1.ranks").exists, 10)
    assert not launch.watchdog._ended.wait(2 * LIMIT)
    assert launch.step.poll() is None and launch.lines == []


def test_silence_of_all_ranks_is_reported_once_and_ends_nothing(tmp_path: Path, launches: list[Launch]) -> None:
    launches.append(launch := Launch(tmp_path))
    until((tmp_path / "node-1.ranks").exists, 10)
    launch.silent = {0, 1}
    until(lambda: launch.lines, 30)
    assert not launch.watchdog._ended.wait(2 * LIMIT)
    assert launch.step.poll() is None and len(launch.lines) == 1 and "file system" in launch.lines[0]


def test_a_watchdog_that_never_sees_a_record_says_so(
    tmp_path: Path, launches: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "UNSEEN_S", 1.0)
    launches.append(launch := Launch(tmp_path, silent={0, 1}))
    until(lambda: launch.lines, 30)
    assert not launch.watchdog._ended.wait(2 * LIMIT)
    assert launch.step.poll() is None and len(launch.lines) == 1 and "no rank is writing" in launch.lines[0]


@pytest.mark.parametrize("statuses", [(0, 0), (0, 3)])
def test_a_step_whose_ranks_have_all_ended_is_killed_and_has_their_status(
    tmp_path: Path, launches: list[Launch], monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, int]
) -> None:
    monkeypatch.setattr(watchdog, "EXIT_S", 1.0)
    launches.append(launch := Launch(tmp_path, ends_it=False))
    put_end(tmp_path, 0, {"status": statuses[0]})
    assert not launch.watchdog._ended.wait(3.0) and launch.step.poll() is None, "rank 1 may be working"
    put_end(tmp_path, 1, {"status": statuses[1]})
    assert launch.step.wait(LONG) == -signal.SIGKILL
    launch.rank.kill()
    assert launch.watchdog.close(137) == max(statuses)
    assert "all ranks ended" in launch.lines[-1] and not (tmp_path / "hang.json").exists()


def test_damaged_records_are_no_reason_to_stop_watching(tmp_path: Path, launches: list[Launch]) -> None:
    put_bytes(tmp_path, 0, b"{\xff")
    put_bytes(tmp_path, 1, b'["no object"]')
    launches.append(launch := Launch(tmp_path))
    assert launch.step.wait(LONG) == -signal.SIGKILL
    launch.rank.kill()
    assert launch.watchdog.close(137) == HUNG


# -- evidence ----------------------------------------------------------------------------------------------------------


def test_stacks_are_written_once_for_each_request(tmp_path: Path) -> None:
    writer, path = StackWriter(tmp_path, 3), tmp_path / "stacks-rank-3.txt"
    (tmp_path / REQUEST).write_text('{"request": 0}')
    writer.write_if_requested()
    assert not path.exists()
    (tmp_path / REQUEST).write_text('{"request": 1}')
    writer.write_if_requested()
    assert "test_stacks_are_written_once_for_each_request" in path.read_text() and path.stat().st_mode & 0o077 == 0
    path.unlink()
    writer.write_if_requested()
    assert not path.exists()


MAIN_THREAD = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait
  File "/home/a/prefetch.py", line 7 in load

Current thread 0x00007f02 (most recent call first):
  File "/home/a/clusterrun/worker/rank/stacks.py", line 50 in _write_stacks

Thread 0x00007f03 (most recent call first):
  File "/env/lib/python3.12/site-packages/torch/cuda/__init__.py", line 1040 in synchronize
  File "/home/a/my code.py", line {line} in train_epoch
  File "/home/a/my code.py", line 90 in <module>
"""


def test_the_users_line_that_most_ranks_are_at_is_found(tmp_path: Path) -> None:
    names = [f"stacks-rank-{rank}.txt" for rank in range(3)]
    for name, line in zip(names, (41, 41, 7), strict=True):
        (tmp_path / name).write_text(MAIN_THREAD.format(line=line))
    place = "/home/a/my code.py:41 in train_epoch"
    assert common_place(tmp_path, names, 3) == f"2 of 3 ranks are at {place}"
    assert common_place(tmp_path, [*names, "stacks-rank-3.txt"], 4) == f"2 of 4 ranks are at {place}"
    assert common_place(tmp_path, names[:1], 2) == f"1 of 2 ranks is at {place}"
    assert common_place(tmp_path, names[:1], 1) == f"the rank is at {place}"
    (tmp_path / names[0]).write_text("no thread")
    assert common_place(tmp_path, names[:1], 1) == common_place(tmp_path, [], 4) == ""


def test_the_state_of_a_process_is_seen_from_outside() -> None:
    process = started("sleep", "600")
    try:
        until(lambda: "waiting in the kernel" in probe.state(process.pid, TOKEN), 10)
        assert probe.state(process.pid, "another job's") == probe.DEAD
        process.send_signal(signal.SIGSTOP)
        until(lambda: probe.state(process.pid, TOKEN) == probe.STOPPED, 10)
    finally:
        process.kill()
    until(lambda: probe.state(process.pid, TOKEN) == probe.DEAD, 10)
    process.wait()
    assert probe.state(process.pid, TOKEN) == probe.DEAD


def test_the_probe_runs_by_path_and_prints_json() -> None:
    script = Path(probe.__file__)
    environ = {**os.environ, "CLUSTERRUN_TOKEN": TOKEN}
    done = subprocess.run([sys.executable, script, "999999999"], env=environ, capture_output=True, check=True)
    assert json.loads(done.stdout) == {"999999999": probe.DEAD}


def test_a_node_that_does_not_answer_is_waited_for_only_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = 'case "$*" in *nodelist=lost*) exec sleep 600;; *nodelist=refused*) exit 1;; esac\nshift 7; exec "$@"\n'
    (tmp_path / "srun").write_text("#!/bin/sh\n" + answers)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(hung_step, "PROBE_S", 8.0)
    job: Any = types.SimpleNamespace(options=types.SimpleNamespace(local=False), token=TOKEN)
    nodes = {1: "lost", 999999998: "n2", 3: "refused"}
    found = hung_step.probe(job, [RankMark(rank, 0.0, node, rank) for rank, node in nodes.items()])
    assert found == {1: hung_step.NO_ANSWER, 999999998: probe.DEAD}


def of_no_step(folder: Path, lines: list[str]) -> Watchdog:
    """A watchdog of 40 ranks whose looks the test makes."""
    options = types.SimpleNamespace(local=False, hang_timeout=10, progress_interval=None, spare_nodes=3, max_restarts=1)
    record = types.SimpleNamespace(log_start=[3, 5])
    job: Any = types.SimpleNamespace(attempt_dir=folder, options=options, nodes=["n0"], earlier_starts=1, record=record)
    step: Any = types.SimpleNamespace(kill=lambda: None)
    return Watchdog(job, step, 40, lines.append, lambda: False, ends_it=True)


@pytest.mark.parametrize(("process_group", "warnings"), [("expected", 1), ("independent", 0)])
def test_worlds_that_ranks_start_each_are_warned_of_once(
    tmp_path: Path, launches: list[Launch], process_group: str, warnings: int
) -> None:
    launches.append(launch := Launch(tmp_path))
    launch.watchdog.close(0)
    launch.closed.set()
    launch.watchdog._job.options.process_group = process_group
    for rank in (0, 1):
        put_progress(tmp_path, rank, {"time": time.time(), "own_world": "a world of its own, of 2 ranks"})
    for _ in range(2):
        launch.watchdog._look()
        launch.watchdog._look_at_worlds()
    found = [line for line in launch.lines if line.startswith("warning: the ranks do not train together: 2 of 2")]
    assert len(found) == warnings


def test_all_lost_nodes_are_named_not_only_those_of_the_first_silent_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {number: rank(number, f"n{number // 4}") for number in range(4, 40)}  # n1 to n9
    lost = {"n1", "n5", "n9"}
    watching = of_no_step(tmp_path, [])
    watching._marks = marks
    monkeypatch.setattr(watching._stall, "look", lambda *_: Suspicion(tuple(marks.values()), True, 60.0, 10.0))
    monkeypatch.setattr(
        hung_step, "probe", lambda job, some: {mark.pid: hung_step.NO_ANSWER for mark in some if mark.node in lost}
    )
    monkeypatch.setattr(hung_step, "silent_nodes", lambda job, nodes, is_ending: lost.intersection(nodes))
    watching._look()
    assert json.loads((tmp_path / "hang.json").read_text())["lost_nodes"] == sorted(lost)


# -- words -------------------------------------------------------------------------------------------------------------


def rank(number: int, node: str = "n2") -> RankMark:
    return RankMark(number, 0.0, node, 100 + number, "training", 7, collectives={"0": 30})


@pytest.mark.parametrize(
    ("ranks", "is_silent", "states", "line"),
    [
        ([rank(3)], True, {103: probe.STOPPED}, "rank 3 on n2 (pid 103) is stopped (SIGSTOP)"),
        ([rank(3)], True, {103: "running"}, "rank 3 on n2 (pid 103) has no heartbeat and is running"),
        ([rank(3)], True, {}, "rank 3 on n2 (pid 103) has no heartbeat"),
        ([rank(2), rank(3)], True, dict.fromkeys((102, 103), hung_step.NO_ANSWER),
         "node n2 is not responding (ranks 2, 3)"),
        ([rank(3)], False, {103: "running"}, "rank 3 on n2 (pid 103) is at step 7, behind the others, and running"),
        ([], False, {}, "no rank is behind the others"),
    ],
)  # fmt: skip
def test_the_line_names_the_ranks_and_what_their_processes_do(
    ranks: list[RankMark], is_silent: bool, states: dict[int, str], line: str
) -> None:
    assert describe(Suspicion(tuple(ranks), is_silent, 61.4, 60.0), states) == f"no progress for 61 s: {line}"
    busy = Suspicion(tuple(ranks), is_silent, 61.4, 60.0, gpus_busy=True)
    assert describe(busy, states) == f"no progress for 61 s with the GPUs 100% busy: {line}"


def test_the_line_of_a_rank_that_is_behind_is_that_of_its_own_stacks(tmp_path: Path) -> None:
    for number, line in ((0, 41), (1, 41), (3, 7)):
        (tmp_path / f"stacks-rank-{number}.txt").write_text(MAIN_THREAD.format(line=line))
    watching = of_no_step(tmp_path, [])
    watching._marks = {number: rank(number) for number in (0, 1, 3)}
    watching._collect_stacks = lambda silent: sorted(path.name for path in tmp_path.glob("stacks-*"))  # type: ignore[method-assign]
    watching._conclude(Suspicion((rank(3),), False, 61.4, 60.0), {103: "running"})
    found = ends.find_hang(tmp_path)
    assert found is not None and (found.rank, found.place, found.silent) == (3, "/home/a/my code.py:7", False)
    own, others = "/home/a/my code.py:7 in train_epoch", "2 of 3 ranks are at /home/a/my code.py:41 in train_epoch"
    assert found.cause.endswith(f"is at step 7, behind the others, and running, at {own}; {others}")
    watching._conclude(Suspicion((rank(3),), False, 61.4, 60.0), {103: probe.STOPPED})
    found = ends.find_hang(tmp_path)
    assert found is not None and found.silent, "it is behind the others because it was stopped"
    watching._conclude(Suspicion((), False, 61.4, 60.0), {})
    found = ends.find_hang(tmp_path)
    assert found is not None and (found.rank, found.place) == (None, "/home/a/my code.py:41")


def test_heartbeats_come_more_often_for_a_short_limit() -> None:
    assert [progress_interval(None, limit) for limit in (None, 0, 10, 600)] == [10, 10, 2, 10]
    assert progress_interval(3, 600) == 3
