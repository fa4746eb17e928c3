"""Two processes that write for one run, or into one folder: only one does, whatever moment the other slept in."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.patience import HUNG
from tests.support.proc import state_of
from tests.support.warm_programs import WarmProcess, WarmPrograms

from .conftest import WORKER, write_llama

Start = Callable[..., WarmProcess]


@pytest.fixture
def start(tmp_path: Path, warm: WarmPrograms) -> Iterator[Start]:
    """Start one rank of a very small training, as attempt `number` of a run: `start("run", 1, key=value …)`."""
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 300}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    write_llama(tmp_path / "m", **shape, **heads)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i} is {i * i} and {i % 7}\n" for i in range(200)))
    started: list[WarmProcess] = []

    def start(run: str, number: int, **settings: object) -> WarmProcess:
        folder = tmp_path / ".clusterrun" / "runs" / run
        attempt = folder / "attempts" / str(number)
        attempt.mkdir(parents=True)
        new = folder / f"attempt_number.{number}"
        new.write_text(f"{number}\n")
        os.replace(new, folder / "attempt_number")  # as the batch script raises it
        variables = {
            "CLUSTERRUN_RUN_DIR": folder,
            "CLUSTERRUN_RUN_ID": run,
            "CLUSTERRUN_JOB_ID": "140",
            "CLUSTERRUN_ATTEMPT_DIR": attempt,
            "CLUSTERRUN_ATTEMPT_NUMBER": number,
            "CLUSTERRUN_ATTEMPT_NUMBER_FILE": folder / "attempt_number",
            "OMP_NUM_THREADS": 1,
        }
        given: dict[str, object] = {"vocab": 300, "seq_len": 16, "model": tmp_path / "m", "data": text, "log_every": 1}
        given |= {"global_batch_size": 8, "eval_every": 0, "save_every": 1, **settings}
        process = warm.start(
            WORKER / "__main__.py",
            "task",
            "lm",
            *(f"{k}={v}" for k, v in given.items()),
            cwd=tmp_path,
            env=os.environ | {name: str(value) for name, value in variables.items()},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(ready: Callable[[], bool], process: WarmProcess) -> None:
    deadline = time.monotonic() + 3 * HUNG
    while not ready():
        assert process.poll() is None and time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def freeze(process: WarmProcess) -> None:
    """Stop a process, and wait until it has stopped: until then it may finish a rename."""
    os.kill(process.pid, signal.SIGSTOP)
    threads = Path(f"/proc/{process.pid}/task")
    while not all(state_of(thread) in ("T", "") for thread in threads.iterdir()):
        time.sleep(0.001)


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, newest first."""
    from clusterrun.worker.training import checkpoint  # imports torch

    return [step for step, _ in checkpoint.found(folder)]


def newest(folder: Path) -> int:
    return max([0, *steps_in(folder)])


def lasting(run: Path) -> dict[str, bytes]:
    """All that outlives an attempt: metrics, samples, checkpoints with `latest` and best.json, the model, the cache."""
    names = [str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()]
    return {name: (run / name).read_bytes() for name in names if "attempts/" not in name and ".tmp-" not in name}


@pytest.mark.parametrize("round_number", range(3))
def test_a_frozen_attempt_that_wakes_beside_its_successor_writes_nothing_and_ends(
    start: Start, tmp_path: Path, round_number: int
) -> None:
    run = tmp_path / ".clusterrun" / "runs" / "r"
    older = start("r", 1, steps=1_000_000, keep_last=3)
    wait_for(lambda: newest(run / "checkpoints") >= 5, older)
    time.sleep(random.Random(round_number).uniform(0, 0.2))  # the moment in which it freezes is what is drawn here
    freeze(older)
    frozen_at = newest(run / "checkpoints")

    newer = start("r", 2, steps=frozen_at + 12, keep_last=3)
    wait_for(lambda: newest(run / "checkpoints") >= frozen_at + 5, newer)  # it is in the middle of its own writing
    os.kill(older.pid, signal.SIGCONT)
    _, said = older.communicate(timeout=HUNG)
    assert older.returncode in (1, -signal.SIGKILL)  # at its next write or its next heartbeat, whichever is first
    assert "Traceback" not in said
    # of the attempt or, if its next write is in the folder of checkpoints, of that folder's owner
    lines = [line for line in said.splitlines() if line.endswith(": this process will stop and write nothing more")]
    assert lines, said
    for line in lines:  # its heartbeat may say so too
        assert (
            "(the attempt counter is now 2; it was 1 when this process started)" in line
            or "checkpoints now belongs to run r (job " in line
        )
    _, err = newer.communicate(timeout=120)
    assert newer.returncode == 0, err
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(frozen_at + 13)), "a line is missing or doubled"
    assert (run / "checkpoints" / "latest").read_text() == f"step-{frozen_at + 12:08d}\n"
    assert steps_in(run / "checkpoints") == [frozen_at + n for n in (12, 11, 10, 0)]


def test_a_frozen_attempt_that_wakes_after_its_successor_has_ended_changes_no_byte(
    start: Start, tmp_path: Path
) -> None:
    run = tmp_path / ".clusterrun" / "runs" / "r"
    older = start("r", 1, steps=1_000_000)
    wait_for(lambda: newest(run / "checkpoints") >= 3, older)
    freeze(older)
    newer = start("r", 2, steps=newest(run / "checkpoints") + 5)
    assert newer.communicate(timeout=120) and newer.returncode == 0
    (run / "STOP").touch()  # for whoever comes next
    before = lasting(run)
    for signum in (signal.SIGTERM, signal.SIGCONT):  # as the cluster ends it: it may not even save
        os.kill(older.pid, signum)
    older.communicate(timeout=HUNG)
    assert older.returncode != 0
    assert lasting(run) == before


def test_a_second_job_is_refused_the_folder_of_a_first_that_lives(start: Start, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = start("a", 1, steps=1_000_000, checkpoint_dir=kept, save_every=20, keep_last=9)
    wait_for(lambda: newest(kept) >= 3, first)
    second = start("b", 1, steps=5, checkpoint_dir=kept)
    _, said = second.communicate(timeout=HUNG)
    assert second.returncode == 2
    assert f"checkpoint_dir={kept} is in use by run a (job 140, since " in said and len(said.splitlines()) == 1

    reader = start("c", 1, steps=1_000_000, resume=kept)
    wait_for(lambda: newest(tmp_path / ".clusterrun" / "runs" / "c" / "checkpoints") > 0, reader)
    reader.kill()
    first.send_signal(signal.SIGUSR2)
    first.communicate(timeout=HUNG)
    assert first.returncode == 0
    steps = set(steps_in(kept))

    third = start("d", 1, steps=max(steps) + 5, checkpoint_dir=kept, keep_last=1)
    out, err = third.communicate(timeout=120)
    assert third.returncode == 0, err
    assert "took over checkpoint_dir from run a (job 140, since " in out and f"(step {max(steps)})" in out
    assert set(steps_in(kept)) == steps | {max(steps) + 5}


def test_a_job_that_was_cut_off_finds_its_folder_taken_over_and_stops(start: Start, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = start("a", 1, steps=1_000_000, checkpoint_dir=kept)
    wait_for(lambda: newest(kept) >= 3, first)
    freeze(first)
    progress = tmp_path / ".clusterrun" / "runs" / "a" / "attempts" / "1" / "node-0.ranks"
    os.utime(progress, (time.time() - 1000,) * 2)  # it has been silent for long
    second = start("b", 1, steps=newest(kept) + 3, checkpoint_dir=kept)
    assert second.communicate(timeout=120) and second.returncode == 0
    before = lasting(kept)
    os.kill(first.pid, signal.SIGCONT)
    _, said = first.communicate(timeout=HUNG)
    assert first.returncode == 1 and "now belongs to run b (job 140, since " in said
    assert lasting(kept) == before
