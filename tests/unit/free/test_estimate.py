"""Asking where a job would start soonest: bounded, the promising first, and honest about silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import Refused, RequestError, SchedulerError
from clusterrun.base.units import format_when
from clusterrun.free.estimate import ALL, MOST_QUESTIONS, ONE, EstimateContext, choose_partition, refusals, soonest
from clusterrun.free.limits import UserLimit
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.scontrol import ClusterFacts
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.plan import LocalContext
from clusterrun.submit.request import Request, SubmitArgs
from clusterrun.system.shell import Completed

NODE = "NodeName={0} CPUAlloc={1} CPUTot=16 Gres=gpu:8 GresUsed=gpu:{2}\n   State={3}\n   Partitions={4}\n\n"
SAYS = "sbatch: Job 5 to start at {at} using 8 processors on nodes n1 in partition {partition}\n"


class Fake:
    """A cluster that answers sbatch --test-only by partition and shape, and remembers what it was asked."""

    def __init__(self, nodes: str, partitions: list[str], say: Callable[[str, str], Completed]) -> None:
        self.nodes, self.partitions, self.say = nodes, partitions, say
        self.asked: list[tuple[str, str]] = []
        self.timeouts: list[float] = []
        self.seconds = 0.0
        self.more: dict[str, str] = {}

    def __call__(self, argv: list[str], **how: Any) -> Completed:
        if argv[0] == "sbatch":
            assert argv[1] == "--test-only" and "TZ" not in how["env"]
            self.timeouts.append(how["timeout"])
            lines = dict(
                line[9:].split("=", 1)
                for line in how["stdin"].splitlines()
                if line.startswith("#SBATCH --") and "=" in line
            )
            shape = f"{lines['-nodes']}x{lines['-gpus-per-node']}"
            self.asked.append((lines["-partition"].strip('"'), shape))
            return self.say(*self.asked[-1])
        if "node" in argv:
            return Completed(0, self.nodes, "")
        lines = (
            f"PartitionName={p}\n   MaxTime=UNLIMITED State=UP {self.more.get(p, '')}\n\n" for p in self.partitions
        )
        return Completed(0, "".join(lines), "")

    def context(self, folder: Path, **typed: Any) -> EstimateContext:
        flags = {name.replace("_", "-"): Value(value, f"--{name}") for name, value in typed.items()}
        values = flags | {"python": Value("/usr/bin/python3", "me")}
        slurm = SlurmScheduler(ClusterFacts("c", accounting=False, gpus=True), os.environ, run=self)
        here = LocalContext(folder, {}, "me")
        asked = SubmitArgs(command=("true",), flags=flags)
        return EstimateContext(
            Request(folder, values, Command("/bin/true"), [], JobPython("/bin/true"), {}),
            slurm,
            here,
            True,
            asked,
            now=lambda: self.seconds,
        )


def yes(partition: str, shape: str, at: int = 0) -> Completed:
    return Completed(0, "", SAYS.format(at=at or 9, partition=partition))


def idle(count: int, partitions: str, used: int = 0) -> str:
    return "".join(NODE.format(f"n{n}", 0, used, "MIXED" if used else "IDLE", partitions) for n in range(1, count + 1))


def load_snapshot(fake: Fake) -> Any:
    from clusterrun.free.snapshot import load_snapshot as see

    return see(SlurmScheduler(ClusterFacts("c", accounting=False, gpus=True), os.environ, run=fake), "me")


def test_never_more_than_so_many_questions(tmp_path: Path) -> None:
    names = [f"p{n}" for n in range(40)]
    fake = Fake(idle(8, ",".join(names)), names, yes)
    found = soonest(fake.context(tmp_path, nodes=2, gpus_per_node=4), load_snapshot(fake))
    assert len(fake.asked) == MOST_QUESTIONS and found.unasked == 40 * 4 - MOST_QUESTIONS
    assert {shape for _, shape in fake.asked} == {"2x4"}, "the shape that was asked for goes first"
    assert max(fake.timeouts) <= ONE


def test_where_there_is_room_now_is_asked_first(tmp_path: Path) -> None:
    nodes = idle(4, "full", used=8) + idle(4, "free").replace("=n", "=m")
    fake = Fake(nodes, ["full", "free"], yes)
    soonest(fake.context(tmp_path, nodes=2, gpus_per_node=4), load_snapshot(fake))
    first = [partition for partition, _ in fake.asked]
    assert first == sorted(first) and len(first) == 6, "8x1 fits neither: four nodes each"


def test_the_limits_of_every_partitions_qos_are_named(tmp_path: Path) -> None:
    fake = Fake(idle(4, "a,b"), ["a", "b"], yes)
    fake.more["b"] = "QoS=small"
    limit = UserLimit("QOS small of partition b", "MaxTRESPU", "gres/gpu", 4, 0, qos="small")
    cluster = replace(load_snapshot(fake), limits=(limit,))
    estimates = soonest(fake.context(tmp_path, nodes=2, gpus_per_node=4), cluster)
    (line,) = estimates.exceeded_limits
    assert line.startswith("QOS small of partition b: 8 GPUs exceed the limit of 4")


def test_the_soonest_stands_first_and_a_refusal_once(tmp_path: Path) -> None:
    def say(partition: str, shape: str) -> Completed:
        if shape != "2x4":
            return Completed(1, "", "allocation failure: Requested node configuration is not available\n")
        return yes(partition, shape, {"a": 3000, "b": 2000, "c": 4000}[partition])

    fake = Fake(idle(8, "a,b,c"), ["a", "b", "c"], say)
    found = soonest(fake.context(tmp_path, nodes=2, gpus_per_node=4), load_snapshot(fake))
    assert [t.partition for t in found.starts] == ["b", "a", "c"]
    ((where, why),) = refusals(found)
    assert why == "Requested node configuration is not available"
    assert all(name in where for name in ("a", "b", "c", "1x8", "4x2", "8x1")) and "2x4" not in where


def test_a_silence_ends_the_asking(tmp_path: Path) -> None:
    fake = Fake(
        idle(8, "a,b"),
        ["a", "b"],
        lambda *_: Completed(1, "", "sbatch: error: Socket timed out on send/recv operation\n"),
    )
    found = soonest(fake.context(tmp_path, nodes=2, gpus_per_node=4), load_snapshot(fake))
    assert len(fake.asked) == 1 and "Socket timed out" in found.silence and not found.starts
    with pytest.raises(SchedulerError, match="nothing was submitted"):
        choose_partition(fake.context(tmp_path, partition="auto"), "me")


def test_all_questions_together_take_no_longer_than_promised(tmp_path: Path) -> None:
    def slow(partition: str, shape: str) -> Completed:
        fake.seconds += 14
        return yes(partition, shape)

    fake = Fake(idle(8, "a,b,c"), ["a", "b", "c"], slow)
    found = soonest(fake.context(tmp_path, nodes=2, gpus_per_node=4), load_snapshot(fake))
    assert len(fake.asked) == 5 and sum(fake.timeouts) <= 4 * ONE + ALL and fake.timeouts[-1] == ALL - 56
    assert found.unasked == 12 - 5


def test_auto_stops_at_a_partition_that_starts_now(tmp_path: Path) -> None:
    fake = Fake(idle(8, "a,b,c"), ["a", "b", "c"], yes)
    placed = choose_partition(fake.context(tmp_path, partition="auto", gpus_per_node=2), "me")
    assert len(fake.asked) == 1
    assert placed.values["partition"].value == fake.asked[0][0]
    assert placed.values["partition"].source == "--partition: auto, earliest start (Slurm's estimate): now"
    assert len(placed.notices) == 1 and "1 partition checked" in placed.notices[0]


def test_auto_says_why_no_partition_takes_it(tmp_path: Path) -> None:
    fake = Fake(idle(2, "a"), ["a"], lambda *_: Completed(1, "", "allocation failure: Invalid qos specification\n"))
    with pytest.raises(Refused) as error:
        choose_partition(fake.context(tmp_path, partition="auto"), "me")
    assert error.value.detail == "a: Invalid qos specification"
    with pytest.raises(RequestError) as wrong:
        choose_partition(fake.context(tmp_path, partition="auto", nodes=3), "me")
    assert wrong.value.detail == "a: the partition has only 2 nodes" and len(fake.asked) == 1


def test_auto_gives_a_job_without_time_no_less_of_it_than_the_default_partition(tmp_path: Path) -> None:
    def say(partition: str, shape: str) -> Completed:
        return yes(partition, shape, at=int(time.time()) + 900 * (partition == "gpu"))

    fake = Fake(idle(2, "gpu,quick"), ["gpu", "quick"], say)
    fake.more = {"gpu": "Default=YES DefaultTime=01:00:00", "quick": "DefaultTime=NONE MaxTime=00:10:00"}
    assert choose_partition(fake.context(tmp_path, partition="auto"), "me").values["partition"].value == "gpu"
    typed = fake.context(tmp_path, partition="auto", time="5")
    assert choose_partition(typed, "me").values["partition"].value == "quick"


def test_a_partition_that_is_called_auto_is_meant(tmp_path: Path) -> None:
    fake = Fake(idle(2, "auto"), ["auto"], yes)
    request = fake.context(tmp_path, partition="auto").request
    assert (
        choose_partition(fake.context(tmp_path, partition="auto"), "me").values == request.values and fake.asked == []
    )


@pytest.mark.parametrize(
    ("seconds", "words"), [(-5, "now"), (60, "now"), (61, "in 1 min"), (1500, "in 25 min"), (5399, "in 90 min")]
)
def test_a_moment_in_words(seconds: int, words: str) -> None:
    assert format_when(1_000_000 + seconds, 1_000_000) == words


def test_a_far_moment_names_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    noon = 1_700_049_600  # Wednesday, 15 November 2023
    assert format_when(noon + 6 * 3600, noon) == "today 18:00"
    assert format_when(noon + 3 * 86_400, noon) == "Sat 12:00"
    assert format_when(noon + 20 * 86_400, noon) == "5 Dec 2023 12:00"
    assert format_when(None, noon) == "time unknown"
