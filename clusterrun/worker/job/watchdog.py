"""End a launch that hangs: read the ranks' progress records, collect evidence, name the cause, and kill the step.

It runs in a thread beside the supervisor's wait for the step, so a file system that hangs delays nothing else. stall.py
judges. Before anything is killed, the ranks that still run write their stacks (stacks.py), the processes of the
suspected ranks are looked at on their nodes (probe.py), and NCCL says what it knows (nccl_answer.py). The result is
`hang.json` in the attempt's folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ...base.decode import as_texts
from ...run_folder import ends, rank_records
from ...run_folder.files import write_json, write_record
from ..node import probe
from ..rank import worlds
from ..rank.distenv import DEFAULT_PROGRESS_INTERVAL
from ..rank.orphans import ALIVE
from ..rank.stacks import REQUEST, common_place, rank_place, stacks_name
from . import hung_step, nccl_answer
from .job import Job
from .stall import SHORTEST, SHORTEST_AT_LAST, RankMark, Stall, Suspicion, find_unannounced

HUNG = 124  # the exit status of a launch that hung, as that of timeout(1)
EVIDENCE_S = 5.0  # that the ranks have to write their stacks
LOST_S = 1800.0  # Slurm ends or requeues a job whose node it calls down, after 5 minutes by default: leave that to it
AGAIN_S = 5.0  # until ranks whose processes are running are looked at again
EXIT_S = 60.0  # from the end records of all ranks, written after the user's exit handlers, to the end of the step
UNSEEN_S = 300.0  # until the first progress record
NAMED = 4  # ranks in a line
SAMPLED = 2  # nodes whose records are read between two rounds
_DEAD = frozenset((*probe.NOT_RUNNING, hung_step.NO_ANSWER))


def progress_interval(requested: float | None, hang_timeout: float | None) -> float:
    """Return the seconds between two heartbeats, so that a hang is seen soon after `hang_timeout`."""
    if requested:
        return requested
    return min(DEFAULT_PROGRESS_INTERVAL, hang_timeout / 5) if hang_timeout else DEFAULT_PROGRESS_INTERVAL


def look_pace(interval: float, nodes: int) -> float:
    """Return the seconds between two looks at the ranks' records; a look opens a file of each node."""
    return max(0.5, interval / 5, nodes / rank_records.READS_PER_S)


class Watchdog:
    """Watches one launch. If `ends_it`, it kills the step of a launch that hangs; else it prints a warning."""

    def __init__(
        self,
        job: Job,
        process: subprocess.Popen[bytes],
        ranks: int,
        say: Callable[[str], None],
        is_ending: Callable[[], bool],
        ends_it: bool,
    ) -> None:
        self._job, self._process, self._ranks = job, process, ranks
        self._folder: Path = job.attempt_dir
        self._say, self._is_ending, self._ends_it = say, is_ending, ends_it
        interval = progress_interval(job.options.progress_interval, job.options.hang_timeout)
        self._pace = look_pace(interval, len(job.nodes))
        self._sample_pace = look_pace(interval, 1)
        # the ranks look for the request as often as their number allows
        self._evidence_s = max(EVIDENCE_S, ranks / rank_records.MOST_WRITES_PER_S / rank_records.POLLS + 2.0)
        self._still_since: float | None = None  # most ranks of the sample
        self._next_search = 0.0
        shortest = SHORTEST if job.options.max_restarts else SHORTEST_AT_LAST
        self._stall = Stall(job.options.hang_timeout, shortest, self._pace)
        self._ended = threading.Event()
        self._marks: dict[int, RankMark] = {}
        self._requests = 0
        self._next_look = 0.0
        self._next_round = 0.0  # when all records are read again
        self._sample = [0]  # the first ranks of some nodes
        self._warned: float | None = None  # the newest progress at the last warning
        self._is_blind = self._has_stepped = False
        self._began = time.monotonic()
        self._own_worlds: list[str] = []  # that ranks have started
        self._has_warned_of_worlds = False
        self._all_ended: float | None = None  # since when all ranks have end records
        self.cause: str | None = None  # set before the step is killed
        self._status = HUNG  # of the launch, if the step is killed

    def start(self) -> None:
        """Start watching in a daemon thread, if the user has not turned it off."""
        if self._job.options.hang_timeout == 0:
            return
        with suppress(OSError):
            write_json(self._folder / REQUEST, {"request": 0})
        threading.Thread(target=self._run, name="clusterrun-watchdog", daemon=True).start()

    def close(self, status: int) -> int:
        """Stop watching after the step has ended with `status`; return it, or after the step was killed the launch's.

        Then the ranks have ended, or some seconds have passed: they may be on a node that was lost.
        """
        self._ended.set()
        if self.cause is None:
            return status
        steps = {mark.srun_step for mark in self._marks.values()} - {""}
        hung_step.await_end(self._job, steps, [mark.pid for mark in self._marks.values()])
        return self._status

    def _run(self) -> None:
        # leave signals to the main thread, which forwards them to the step
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2))
        can_judge = True
        self._next_round = time.monotonic() + self._pace
        while not self._ended.wait(self._sample_pace):
            is_round = time.monotonic() >= self._next_round - self._sample_pace / 2
            if is_round:
                self._next_round = time.monotonic() + self._pace
            if is_round and self._job.options.spare_nodes:
                with suppress(OSError):
                    write_json(self._folder / ALIVE, {"time": time.time()})
            try:
                if can_judge and is_round:
                    self._look()
                    self._look_at_worlds()
                elif can_judge and self._may_search():
                    self._search()
            except Exception as error:  # a bug here must not end the run; the process group's timeout remains
                self._say(f"the watchdog stopped checking this launch: {type(error).__name__}: {error}")
                can_judge = False

    def _may_search(self) -> bool:
        """Return whether to look for stopped ranks between two rounds: most ranks of the first nodes stand still.

        In a large job: once all ranks should have announced it, and then ever more rarely.
        """
        now, found = time.monotonic(), list[bool]()
        for first_rank in self._sample:
            with suppress(OSError):
                records, ends = rank_records.read_node(self._folder, first_rank)
                found += [record.get("still") is True for rank, record in records.items() if rank not in ends]
        if 2 * sum(found) < max(1, len(found)):
            self._still_since = None
            return False
        if self._still_since is None:
            self._still_since = now
            self._next_search = now + rank_records.ANNOUNCE_S + 2 * self._sample_pace
        if now < self._next_search or self._is_ending():
            return False
        self._next_search = now + (now - self._still_since)
        return True

    def _note(self, records: rank_records.Records) -> list[RankMark]:
        """Keep the newest mark of each rank of this launch, and return those of these records."""
        marks = [RankMark.parse(rank, record) for rank, record in records.items() if rank < self._ranks]
        readable = [mark for mark in marks if mark is not None]
        self._marks |= {mark.rank: mark for mark in readable}
        return readable

    def _search(self) -> None:
        """End the launch if the process of a rank that did not announce its standstill does not run."""
        records, ends = rank_records.read(self._folder)
        suspicion = find_unannounced([mark for mark in self._note(records) if mark.rank not in ends])
        if suspicion is None or self._has_warned():
            return
        states = hung_step.probe(self._job, suspicion.ranks[:NAMED])
        stopped = tuple(mark for mark in suspicion.ranks if states.get(mark.pid) in probe.NOT_RUNNING)
        if stopped:
            self._conclude(replace(suspicion, ranks=stopped), states)

    def _has_warned(self) -> bool:
        return self._warned is not None and self._newest() < self._warned + 1.0

    def _look(self) -> None:
        records, ends = rank_records.read(self._folder)
        self._own_worlds = [str(record["own_world"]) for _, record in sorted(records.items()) if "own_world" in record]
        self._note(records)
        first_ranks = {self._marks[rank].node: rank for rank in sorted(self._marks, reverse=True)}
        self._sample = sorted(first_ranks.values())[:SAMPLED]
        self._tell_first_step()
        suspicion = self._stall.look(time.monotonic(), self._marks, ends.__contains__)
        self._tell_blindness()
        if ends.keys() >= {*range(self._ranks)}:
            self._end_exit([ends[rank].get("status") for rank in range(self._ranks)])
            return
        self._all_ended = None
        is_early = self._is_ending() or time.monotonic() < self._next_look
        if suspicion is not None and not is_early and not self._has_warned():
            self._judge(suspicion)

    def _tell_first_step(self) -> None:
        """Tell the user once that the ranks of a new run work together."""
        is_step = any(mark.step for mark in self._marks.values())
        if self._has_stepped or not (is_step or any(any(mark.collectives.values()) for mark in self._marks.values())):
            return
        self._has_stepped = True
        if not self._job.earlier_starts:
            what = "step has finished" if is_step else "collective has started"
            ranks = f"{len(self._marks)} of {self._ranks} ranks are reporting progress"
            self._job.notifier.send("first-step", f"the first {what}; {ranks}")

    def _tell_blindness(self) -> None:
        """Warn that no rank writes its progress, once until one does."""
        was_blind = self._is_blind
        self._is_blind = self._stall.all_silent if self._marks else time.monotonic() - self._began > UNSEEN_S
        is_alone = self._ranks == 1 and bool(self._marks)  # a single rank that is silent may just compute
        if self._is_blind and not was_blind and not is_alone:
            self._say(
                "no rank is writing progress records (is the file system hanging?): the watchdog cannot detect a hang"
            )

    def _judge(self, suspicion: Suspicion) -> None:
        """Look at the processes of the suspected ranks, and conclude, or wait while they may still advance."""
        states = hung_step.probe(self._job, suspicion.ranks[:NAMED])
        is_sure = not {*probe.NOT_RUNNING}.isdisjoint(states.values())
        if not is_sure and not suspicion.is_silent:
            suspicion, states = self._blame_lost_nodes(suspicion, states)
        is_lost = hung_step.NO_ANSWER in states.values()
        if not is_sure and self._may_recover(suspicion, is_lost):
            self._next_look = time.monotonic() + AGAIN_S
            return
        if is_lost and suspicion.is_silent:  # perhaps with others
            suspicion, states = self._blame_lost_nodes(suspicion, states)
        self._conclude(suspicion, states)

    def _may_recover(self, suspicion: Suspicion, is_lost: bool) -> bool:
        """Return whether suspected ranks that may just not reach the folder, or the network, have time to come back."""
        waits_for_slurm = is_lost and not self._job.options.spare_nodes
        limit = max(suspicion.limit, LOST_S) if waits_for_slurm else suspicion.limit
        return (suspicion.is_silent or is_lost) and suspicion.seconds <= limit

    def _look_at_worlds(self) -> None:
        """Warn once if several ranks have each started a world of their own, as a torchrun below each rank does."""
        line = worlds.running_message(self._own_worlds, self._ranks)
        if line and not self._has_warned_of_worlds and self._job.options.process_group != "independent":
            self._has_warned_of_worlds = True
            self._say(f"warning: {line}")

    def _end_exit(self, statuses: Iterable[object]) -> None:
        """Kill the step if a process still runs EXIT_S after all ranks have recorded their end: it hangs in its exit.

        The launch has the status of the records.
        """
        self._all_ended = self._all_ended or time.monotonic()
        if time.monotonic() - self._all_ended < EXIT_S or self._is_ending():
            return
        self._status = max(status if isinstance(status, int) else 1 for status in statuses)
        self.cause = f"all ranks ended {EXIT_S:.0f} s ago, but a process of the launch is still running"
        self._say(f"{self.cause}: killing the process; the launch ends with status {self._status}")
        self._process.kill()

    def _blame_lost_nodes(self, suspicion: Suspicion, states: dict[int, str]) -> tuple[Suspicion, dict[int, str]]:
        """Return the suspicion and the states with the ranks of nodes that do not respond, if there are any.

        A node may have lost its network while it still writes into the folder.
        """
        suspected = [*dict.fromkeys(mark.node for mark in suspicion.ranks)] if suspicion.is_silent else self._job.nodes
        nodes = hung_step.silent_nodes(self._job, suspected, self._is_over)
        lost = tuple(mark for mark in self._marks.values() if mark.node in nodes)
        if not lost:
            return suspicion, states
        return replace(suspicion, ranks=lost), dict.fromkeys((mark.pid for mark in lost), hung_step.NO_ANSWER)

    def _conclude(self, suspicion: Suspicion, states: dict[int, str]) -> None:
        """Collect the stacks, name the cause, and end the launch or print a warning."""
        written = self._collect_stacks(suspicion.ranks if suspicion.is_silent else ())
        late = [mark.rank for mark in suspicion.ranks[:NAMED]]
        others = sorted({*written} - {*map(stacks_name, late)})
        waiting = common_place(self._folder, others, len(self._marks))
        places = {rank: rank_place(self._folder, rank) for rank in late if stacks_name(rank) in written}
        cause = describe(suspicion, states, waiting, places)
        where = f"; stacks: {_short(self._folder)}/stacks-rank-*.txt" if written else ""
        nccl = self._ask_nccl(suspicion, states)
        if self._is_over():
            return
        if not self._ends_it:
            self._warned = self._newest()
            self._job.notifier.send("stalled", cause)
            self._say(f"warning: {cause}{where}; to end hung launches automatically, set --hang-timeout SECONDS")
            self._say_lines(nccl)
            return
        document = {
            "cause": cause,
            "ranks": [mark.rank for mark in suspicion.ranks],
            **_first_blamed(suspicion, states, places, waiting),
            "silent": suspicion.is_silent or not _DEAD.isdisjoint(states.values()),
            "seconds": round(suspicion.seconds, 1),
            "limit": suspicion.limit,
            "lost_nodes": lost_nodes(suspicion, states),
            "stacks": written,
            "nccl": nccl,
            "time": time.time(),
        }
        with suppress(OSError):
            write_record(self._folder / ends.HANG, document)
        self._say(cause + where)
        self._say_lines(nccl)
        self.cause = cause
        self._process.kill()

    def _collect_stacks(self, silent: Sequence[RankMark]) -> list[str]:
        """Let the ranks write their stacks, and return the names of the files after some seconds."""
        names = {*map(stacks_name, self._marks.keys() - {mark.rank for mark in silent})}
        with suppress(OSError):
            for name in names.intersection(os.listdir(self._folder)):
                (self._folder / name).unlink(missing_ok=True)
            self._requests += 1
            write_json(self._folder / REQUEST, {"request": self._requests})
        until = time.monotonic() + self._evidence_s
        written: list[str] = []
        while True:
            with suppress(OSError):
                written = sorted(names.intersection(os.listdir(self._folder)))
            if len(written) == len(names) or time.monotonic() > until or self._ended.wait(0.1):
                return written

    def _ask_nccl(self, suspicion: Suspicion, states: Mapping[int, str]) -> dict[str, object] | None:
        """Return what NCCL says of the launch, as in hang.json; no failure of it may keep the launch alive."""
        own = [mark.rank for mark in suspicion.ranks]
        try:
            return nccl_answer.collect(self._job, self._marks.values(), own, lost_nodes(suspicion, states))
        except Exception as error:
            return {"problem": f"{type(error).__name__}: {error}"}

    def _say_lines(self, nccl: Mapping[str, object] | None) -> None:
        for line in as_texts((nccl or {}).get("lines")):
            self._say(line)

    def _is_over(self) -> bool:
        return self._ended.is_set() or self._is_ending()

    def _newest(self) -> float:
        return max((mark.time - mark.still for mark in self._marks.values() if mark.still is not None), default=0.0)


def _first_blamed(
    suspicion: Suspicion, states: Mapping[int, str], places: Mapping[int, str], waiting: str
) -> dict[str, object]:
    """Return the first of the ranks that hang the launch, and the line of the user's code where it is."""
    if not suspicion.ranks:
        where = waiting.rpartition(" at ")[2].rpartition(" in ")[0]
        return {"rank": None, "node": "", "pid": None, "state": "", "place": where}
    first = suspicion.ranks[0]
    where = places.get(first.rank, "").rpartition(" in ")[0]
    state = states.get(first.pid, "")
    return {"rank": first.rank, "node": first.node, "pid": first.pid, "state": state, "place": where}


def lost_nodes(suspicion: Suspicion, states: Mapping[int, str]) -> list[str]:
    """Return the nodes of silent ranks that do not respond."""
    return sorted({mark.node for mark in suspicion.ranks if states.get(mark.pid) == hung_step.NO_ANSWER})


def describe(
    suspicion: Suspicion, states: dict[int, str], waiting: str = "", places: Mapping[int, str] = MappingProxyType({})
) -> str:
    """Return the cause in one line: for how long, which ranks on which nodes, and what their processes do.

    `waiting` is where most of the other ranks are in the user's code, `places` where the suspected ranks are.
    """
    busy = " with the GPUs 100% busy" if suspicion.gpus_busy else ""
    begin = f"no progress for {suspicion.seconds:.0f} s{busy}: "
    if not suspicion.ranks:
        relation = "" if waiting.startswith("the rank is ") else "no rank is behind the others"
        return begin + "; ".join(filter(None, (relation, waiting)))
    parts = _describe_ranks(suspicion, states, places)
    if waiting and not suspicion.is_silent:  # a process that is stopped needs no explanation
        parts.append(waiting)
    return begin + "; ".join(parts)


def _describe_ranks(suspicion: Suspicion, states: Mapping[int, str], places: Mapping[int, str]) -> list[str]:
    lost = lost_nodes(suspicion, states)
    parts = []
    for node in lost:
        ranks = ", ".join(str(mark.rank) for mark in suspicion.ranks if mark.node == node)
        parts.append(f"node {node} is not responding (rank{'s' * (', ' in ranks)} {ranks})")
    others = [mark for mark in suspicion.ranks[:NAMED] if mark.node not in lost]
    for mark in others:
        state = _in_words(mark, states.get(mark.pid, ""), suspicion.is_silent)
        parts.append(f"rank {mark.rank} on {mark.node} (pid {mark.pid}) {state}{_at(places.get(mark.rank))}")
    if more := len([mark for mark in suspicion.ranks[NAMED:] if mark.node not in lost]):
        parts.append(f"and {more} more rank{'s' * (more > 1)}")
    return parts


def _at(place: str | None) -> str:
    return f", at {place}" if place else ""


def _in_words(mark: RankMark, state: str, is_silent: bool) -> str:
    """Return what is known of a suspected rank, whose process is in this state (empty if not known)."""
    if is_silent and state in probe.NOT_RUNNING:
        return f"is {state}"
    if is_silent:
        return f"has no heartbeat and is {state}" if state else "has no heartbeat"
    at = f"step {mark.step}" if mark.step is not None else f"collective {sum(mark.collectives.values())}"
    return f"is at {at}, behind the others{f', and {state}' if state else ''}"


def _short(folder: Path) -> str:
    """Return a path below the current folder without it."""
    path = os.path.relpath(folder)
    return str(folder) if path.startswith("..") else path
