"""Unchanged scripts on 2 nodes x 2 ranks under each launcher that fits: one loss, saved on a signal, kill -9 named.

`make faults` runs all of them, `make test` a slice.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ROOT, Job, Site, until
from tests.support.patience import HUNG

SCRIPTS = ROOT / "tests" / "data" / "launched"
SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2")
#: The loss that plain torchrun gives at step 20.
LOSS = {
    "plain_torch.py": 0.198872,
    "takes_local_rank.py": 0.198872,
    "with_accelerate.py": 0.198872,
    "with_trainer.py": 0.450743,
    "with_deepspeed.py": 0.834627,
    "around_torchrun.sh": 0.198872,
}
OTHER = ("torchrun", "accelerate", "deepspeed")
#: The launchers that fit a script: a --launcher, or the line that is typed after --.
LAUNCHERS = {
    "plain_torch.py": ("srun", *OTHER, "torchrun --nnodes 2 --nproc_per_node 2"),
    "takes_local_rank.py": ("srun", "deepspeed", "python -m torch.distributed.launch --nnodes 2 --nproc_per_node 2"),
    "with_accelerate.py": ("srun", *OTHER, "accelerate launch --num_machines 2 --num_processes 4 --cpu"),
    "with_trainer.py": ("srun", *OTHER),
    "with_deepspeed.py": ("srun", *OTHER, "deepspeed --num_nodes 2 --num_gpus 2"),
    "around_torchrun.sh": ("none",),
}
#: What `make test` runs, with signals; ranks are killed in test_launchers.py, with less work, and in
#: slurm/test_why_ended.py.
SLICE = [
    ("local", "plain_torch.py", "srun"),
    ("local", "around_torchrun.sh", "none"),
    ("slurm", "with_accelerate.py", "accelerate"),
]
LINE = re.compile(r"rank (\d) pid (\d+) step 20 loss (\S+)")
LIMIT = 180  # seconds; each rank imports torch, and so does each launcher


def every_cell(usual: list[tuple[str, str, str]]) -> pytest.MarkDecorator:
    """All that fit; those that are not usual are left to `make faults`."""
    return pytest.mark.parametrize(
        ("site", "script", "launcher"), list(cells(usual)), indirect=["site"], scope="module"
    )


def cells(usual: list[tuple[str, str, str]]) -> Iterator[Any]:
    no_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not a dependency")
    for scheduler in ("local", "slurm"):
        for script, launchers in LAUNCHERS.items():
            for launcher in launchers:
                marks = [] if (scheduler, script, launcher) in usual else [pytest.mark.faults]
                marks += [no_deepspeed] if "deepspeed" in script + launcher else []
                yield pytest.param(scheduler, script, launcher, marks=marks, id=f"{scheduler}-{script}-{launcher}")


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, new_site: Callable[[Lab | None], Site]) -> Site:
    return new_site(request.getfixturevalue("lab") if request.param == "slurm" else None)


def start(site: Site, script: str, launcher: str) -> tuple[Job, dict[int, int]]:
    """Submit the script and wait for step 20; return the job and the ranks' process ids."""
    (site.project / "saved").unlink(missing_ok=True)
    typed, option = (launcher.split(), ()) if " " in launcher else ([], ("--launcher", launcher))
    option = () if launcher == "srun" else option  # the default, under which --local_rank is noticed
    job = site.submit(*SHAPE, *option, "--", *typed, str(SCRIPTS / script))

    def reported() -> list[tuple[str, ...]] | None:
        found = LINE.findall(job.out.read_text()) if job.out.exists() else []
        assert not job.end(), job.err.read_text()
        return found if len(found) == 4 else None

    rows = until(reported, LIMIT, lambda: f"{job}: {job.out.read_text()}{job.err.read_text()}")
    assert sorted((int(rank), float(loss)) for rank, _, loss in rows) == [
        (rank, pytest.approx(LOSS[script], abs=1e-5)) for rank in range(4)
    ]
    return job, {int(rank): int(pid) for rank, pid, _ in rows}


@every_cell(SLICE)
def test_the_loss_is_the_same_and_a_signal_saves(site: Site, script: str, launcher: str) -> None:
    job, _ = start(site, script, launcher)
    if site.lab is None:
        site.cli("cancel", job.id, "--yes")
        site.wait_state(job, "CANCELLED")
    elif launcher == "none":  # SIGUSR1 would end the script's own torchrun
        site.lab.run(["scancel", "--signal=TERM", job.id])
        site.wait_state(job, "FAILED", "COMPLETED")
    else:
        site.lab.run(["scancel", "--signal=USR1", job.id])  # as --sbatch-arg=--signal=USR1@60 does
        site.wait_state(job, "COMPLETED")
    assert "saved at step" in job.out.read_text(), job.err.read_text()
    assert (site.project / "saved").exists()


@every_cell([])
def test_a_rank_ended_by_kill_9_is_named(site: Site, script: str, launcher: str) -> None:
    job, pids = start(site, script, launcher)
    os.kill(pids[3], signal.SIGKILL)
    site.wait_state(job, "FAILED", timeout=LIMIT)
    why = site.cli("why", job.id, status=None).stdout
    assert re.search(r"\b(rank|task) 3\b", why) and ("SIGKILL" in why or "killed" in why), why  # srun names the task


# not with_deepspeed.py: under plain torchrun on one node, its processes hang when they end
@pytest.mark.faults
@pytest.mark.parametrize("script", ["plain_torch.py", "with_accelerate.py", "with_trainer.py"])
def test_plain_torchrun_gives_that_loss(script: str) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(SCRIPTS / script)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"ACCELERATE_USE_CPU": "1"})
    assert process.stdout is not None
    found = next(match for line in process.stdout if (match := LINE.search(line)))
    process.terminate()
    process.communicate(timeout=HUNG)
    assert float(found[3]) == pytest.approx(LOSS[script], abs=1e-5)
