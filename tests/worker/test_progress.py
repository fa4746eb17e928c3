"""A rank's progress record: what is in it, when it is written, and that it disturbs nothing."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.records.progress import Gpu, read_ranks
from clusterrun.run_folder import training_progress
from clusterrun.worker.rank import nvml
from clusterrun.worker.rank.progress import Progress, resident_gib
from tests.support.patience import HUNG, until
from tests.support.rank_files import progress_of, recorder

ROOT = Path(__file__).resolve().parents[2]


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_login_side_reads_what_a_rank_says(tmp_path: Path) -> None:
    progress = Progress()
    progress.enter("training")
    progress.step, progress.steps, progress.tokens_per_second = 7, 100, 123.5
    progress.gpu = lambda: {
        "name": "NVIDIA H200", "use": 97, "memory_gib": 100.5, "memory_total_gib": 139.8, "temperature": 61
    }  # fmt: skip
    before = time.time()
    assert recorder(progress, tmp_path, rank=3).write_if_due()
    (one,) = read_ranks(tmp_path)
    assert (one.rank, one.node, one.local_rank, one.pid) == (3, "node1", 1, os.getpid())
    assert (one.phase, one.step, one.steps, one.tokens_per_second) == ("training", 7, 100, 123.5)
    assert one.since is not None and one.stepped is not None
    assert one.since <= before <= one.stepped <= one.time <= time.time()
    assert one.memory_gib is not None and 0.001 < one.memory_gib < 100
    assert one.gpu == Gpu(name="NVIDIA H200", use=97, memory_gib=100.5, memory_total_gib=139.8, temperature=61)
    assert one.interval == 10.0


def test_a_loss_that_a_script_reports_as_nan_is_recorded_as_nan(tmp_path: Path) -> None:
    progress, found = Progress(), []
    for step, loss in enumerate((2.5, math.nan)):
        progress.report(step, 9, loss)
        assert recorder(progress, tmp_path).write_if_due()
        found.append(training_progress.parse(progress_of(tmp_path)[0]))
    assert [one and (one.loss, one.nan_losses) for one in found] == [(2.5, None), (None, 1)]


def test_a_rank_that_has_not_begun_says_so_and_no_more(tmp_path: Path) -> None:
    recorder(Progress(), tmp_path).write_if_due()
    (one,) = read_ranks(tmp_path)
    assert (one.phase, one.step, one.steps, one.stepped, one.gpu) == ("starting", None, None, None, None)


def test_the_memory_of_a_command_is_that_of_the_child(tmp_path: Path) -> None:
    progress = Progress()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"x\n")
        assert child.stdout.read(2) == b"x\n"  # now it has all the memory that it will have
        progress.process = child.pid
        shown = recorder(progress, tmp_path).document()["memory_gib"]
        assert shown == resident_gib(child.pid) < resident_gib(os.getpid())
    assert resident_gib(child.pid) is None


def test_an_error_leaves_the_phase_in_which_it_came() -> None:
    progress = Progress()
    progress.enter("training")
    with progress.during("evaluating"):
        assert progress.entered[0] == "evaluating"
    assert progress.entered[0] == "training"
    with pytest.raises(ValueError), progress.during("saving"):
        raise ValueError
    assert progress.entered[0] == "saving"


# -- when it says it ---------------------------------------------------------------------------------------------------


def test_it_is_written_at_once_then_rarely_and_when_the_phase_changes(tmp_path: Path) -> None:
    progress = Progress()
    one = recorder(progress, tmp_path)
    assert [one.write_if_due(), one.write_if_due()] == [True, False]
    progress.step = 1
    assert not one.write_if_due()
    progress.enter("training")
    assert [one.write_if_due(), one.write_if_due()] == [True, False]


def test_stepped_is_when_the_step_moved_not_when_that_was_written(tmp_path: Path) -> None:
    progress = Progress()
    one = recorder(progress, tmp_path)
    progress.step = 1
    one.write_if_due()
    seen = one.document()["stepped"]
    one.write_if_due()
    assert one.document()["stepped"] == seen
    progress.step = 2
    one.write_if_due()
    assert one.document()["stepped"] > seen


def test_many_ranks_write_less_often_as_they_share_a_file_system(tmp_path: Path) -> None:
    assert recorder(Progress(), tmp_path, world_size=7500).interval == 10.0
    assert recorder(Progress(), tmp_path, world_size=75_000).interval == 100.0


def test_the_times_of_ranks_differ_and_nothing_is_drawn_from_the_users_generator(tmp_path: Path) -> None:
    random.seed(1)
    before = random.getstate()
    waits = {recorder(Progress(), tmp_path)._uneven(10.0) for _ in range(20)}
    assert random.getstate() == before
    assert len(waits) == 20 and all(8.0 <= wait <= 12.0 for wait in waits)


# -- that it disturbs nothing ------------------------------------------------------------------------------------------

WORK = """
import sys, time
from pathlib import Path
from clusterrun.worker.rank.distenv import DistEnv
from clusterrun.worker.rank.progress import Recorder, here
Recorder(here, DistEnv(0, 0, 1, 1, 0, "n", "h", 0, "single"), Path(sys.argv[1]), every=0.05).start()
here.enter("training")
for line in sys.stdin:
    here.step = int(line)
    print("did", line, flush=True)
"""


@pytest.fixture
def rank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that keeps its record in tmp_path/attempt every 0.05 s, and does a step for each line it reads.

    Its parameter, where it has one, is code to run before.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", getattr(request, "param", "") + WORK, str(tmp_path / "attempt")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def do_step(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{step}\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == f"did {step}"
    process.stdout.readline()


def wait_for_step(folder: Path, step: int, seconds: float = HUNG) -> float:
    """Wait until the record tells a step; returns when it was written."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = read_ranks(folder)
        if found and found[0].step == step:
            return found[0].time
        time.sleep(0.01)
    raise AssertionError(f"step {step} was not told: {read_ranks(folder)}")


def test_a_stopped_rank_falls_silent_and_speaks_again_when_it_goes_on(
    rank: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    do_step(rank, 1)
    wait_for_step(folder, 1)
    rank.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
    last = read_ranks(folder)
    time.sleep(0.5)  # ten times its interval
    assert read_ranks(folder) == last
    rank.send_signal(signal.SIGCONT)
    do_step(rank, 2)
    assert wait_for_step(folder, 2) > last[0].time


def test_a_folder_that_takes_no_files_costs_the_record_only_and_it_comes_back(
    rank: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = tmp_path / "attempt"  # not there: every write fails
    do_step(rank, 1)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "node-0.ranks").mkdir()
    (tmp_path / "new").rename(folder)  # now it is there, and takes no file of that name
    do_step(rank, 2)
    time.sleep(0.3)
    assert read_ranks(folder) == []
    (folder / "node-0.ranks").rmdir()
    wait_for_step(folder, 2)


HANGS = "import os, threading\nos.pwrite = lambda *_: threading.Event().wait()\n"


@pytest.mark.parametrize("rank", [HANGS], indirect=True, ids=["hangs"])
def test_a_write_that_hangs_holds_neither_the_work_nor_its_end(rank: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / "attempt"
    folder.mkdir()
    for step in range(200):
        do_step(rank, step)
    rank.communicate(timeout=HUNG)
    assert rank.returncode == 0
    assert read_ranks(folder) == []


# -- the GPU -----------------------------------------------------------------------------------------------------------


class FakeNvml(types.ModuleType):
    """Two whole GPUs and a part of the second (MIG), as pynvml shows them; a handle is a UUID."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """What every call of pynvml may raise."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.gpus = ["GPU-aaaa-1", "GPU-bbbb-2"]

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self.gpus):
            raise self.NVMLError("invalid argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in (*self.gpus, "MIG-cccc-3"):
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()  # old versions of the package give bytes

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA Test"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(used=3 * 2**30, total=(8 if handle.startswith("MIG-") else 80) * 2**30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> types.SimpleNamespace:
        if handle.startswith("MIG-"):
            raise self.NVMLError("not supported")
        return types.SimpleNamespace(gpu=42)

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> bool:
        return handle.startswith("MIG-")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        return self.gpus[1]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        if handle.startswith("MIG-"):
            raise self.NVMLError("invalid argument")
        return 61


@pytest.mark.parametrize(
    ("index", "uuid", "visible", "found"),
    [
        (1, "", "", "GPU-bbbb-2"),
        (0, "", "1", "GPU-bbbb-2"),
        (0, "", "GPU-bbbb", "GPU-bbbb-2"),
        (1, "", "GPU-bbbb-2, GPU-aaaa-1", "GPU-aaaa-1"),
        (0, "bbbb-2", "", "GPU-bbbb-2"),  # CUDA's first is not NVML's
        (0, "GPU-bbbb-2", "0,1", "GPU-bbbb-2"),
        (0, "bbbb-2", "MIG-cccc-3", "MIG-cccc-3"),
    ],
)
def test_the_device_is_the_one_that_torch_uses(index: int, uuid: str, visible: str, found: str) -> None:
    assert nvml.find_device(FakeNvml(), index, uuid, visible) == found


def test_the_mean_use_and_the_most_memory_of_all_samples_are_kept() -> None:
    sampler = nvml.GpuSampler(0)
    for use, memory in ((100, 10.0), (None, 70.0), (50, 20.0)):
        figures = sampler._with_history({"use": use, "memory_gib": memory})
    assert figures == {"use": 50, "memory_gib": 20.0, "mean_use": 75.0, "samples": 2, "peak_gib": 70.0}
    assert nvml.GpuSampler(0)._with_history({"use": None, "memory_gib": None})["peak_gib"] is None


@pytest.mark.parametrize(("index", "uuid", "visible"), [(1, "", "0"), (0, "dddd", ""), (0, "", "GPU-dddd")])
def test_another_devices_figures_are_never_shown(index: int, uuid: str, visible: str) -> None:
    with pytest.raises(LookupError):
        nvml.find_device(FakeNvml(), index, uuid, visible)


def test_what_a_part_of_a_gpu_does_not_tell_is_left_open() -> None:
    whole, part = nvml.sample(FakeNvml(), "GPU-aaaa-1"), nvml.sample(FakeNvml(), "MIG-cccc-3")
    assert whole == {"name": "NVIDIA Test", "use": 42, "memory_gib": 3.0, "memory_total_gib": 80.0, "temperature": 61}
    assert part == {"name": "NVIDIA Test", "use": None, "memory_gib": 3.0, "memory_total_gib": 8.0, "temperature": 61}


def test_without_nvml_there_are_no_figures_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watcher = nvml.GpuSampler(0)
    thread = threading.Thread(target=watcher._run)  # never in the main thread: it blocks all signals where it runs
    thread.start()
    thread.join(HUNG)
    assert not thread.is_alive(), "there is nothing to watch"
    assert watcher.figures() is None


def test_old_figures_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = nvml.GpuSampler(0, every=10.0)
    watcher._last = (time.monotonic() - 30, {"use": 42})
    assert watcher.figures() == {"use": 42}
    watcher._last = (time.monotonic() - 50, {"use": 42})
    assert watcher.figures() is None


def test_a_sample_is_taken_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    watcher = nvml.GpuSampler(0, uuid="bbbb-2", every=1000.0)
    watcher.start()
    until(watcher.figures)
    progress = Progress()
    progress.gpu = watcher.figures
    recorder(progress, tmp_path).write_if_due()
    document = progress_of(tmp_path)[0]
    assert document["gpu"]["use"] == 42 and document["gpu"]["memory_total_gib"] == 80.0
