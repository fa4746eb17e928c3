"""Small runs of the task lm for tests that interrupt them: how far one is, and the bytes of its model.

Their ranks import a stand-in for transformers, which saves two thirds of a rank's processor time: these tests are about
our loop and what is around it. conformance/test_launchers.py runs the task with the real one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from pathlib import Path

from tests.support.installed_command import ROOT, Job, Site, until

SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "1")
SETTINGS = ("eval_every=0", "save_every=5", "log_every=5", "vocab=300", "seq_len=16", "global_batch_size=4")
#: The stand-in comes before the real package.
STAND_IN = ("--env", f"PYTHONPATH={ROOT / 'tests' / 'data' / 'light'}")
#: One rank in place of two, with the same steps to the bit.
ONE = ("--nodes", "1", "--set", "micro_batch_size=2")
STEPS = 150  # of a run that is interrupted
LIMIT = 240.0  # seconds; each start imports torch


def slow(starts: int = 1, seconds: float = 0.5) -> tuple[str, str]:
    """Options of a run whose first starts train slowly from step 15 or 30 on: a minute is left to interrupt each."""
    return "--env", f"LM_SLOW={starts}:{seconds}"


def lm(site: Site, steps: int, *options: str, save_every: int = 5) -> Job:
    """Submit a run of two ranks on two nodes."""
    settings = (f"steps={steps}", *SETTINGS, f"save_every={save_every}")
    words = [word for setting in settings for word in ("--set", setting)]
    return site.submit(*SHAPE, *words, *STAND_IN, *options, "lm")


def weights(job: Job) -> str:
    """The sha256 of the finished model's weights."""
    return hashlib.sha256((job.run_dir / "model" / "model.safetensors").read_bytes()).hexdigest()


def undisturbed_weights(site: Site, folder: Path) -> str:
    """The weights after STEPS that nothing interrupts: of one run on either scheduler for all that share the folder."""
    with (folder / "undisturbed").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (found := file.read()):
            found = final_weights(site, lm(site, STEPS, *ONE))
            file.write(found)
    return found


def final_weights(site: Site, job: Job, timeout: float = LIMIT) -> str:
    """The weights of a run once it is done."""
    site.wait_state(job, "COMPLETED", timeout=timeout)
    return weights(job)


def saved(job: Job) -> int:
    """The step of the newest checkpoint, 0 without one."""
    return max((int(path.name[5:]) for path in (job.run_dir / "checkpoints").glob("step-*[0-9]")), default=0)


def reached(job: Job) -> int:
    """The last step that the run's metrics have."""
    metrics = job.run_dir / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return max((json.loads(line)["step"] for line in lines), default=0)


def wait_saved(job: Job, step: int, timeout: float = LIMIT) -> None:
    """Wait until a checkpoint of this step or a later one is there."""
    until(lambda: saved(job) >= step, timeout, lambda: job.err.read_text() if job.err.exists() else str(job))
