"""Slurm signals all processes of a step here (proctrack/linuxproc); the main process of each rank alone acts on it."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.faults_table import Figure
from tests.support.installed_command import ONE_RANK, ROOT, SCRIPTS, Job, Site
from tests.support.patience import HUNG, until

TIMES = 10
LIGHTNING = ROOT / "build" / "lightning"


def warn(lab: Lab, job: Job) -> None:
    assert lab.run(["scancel", "--signal=USR1", job.id]).returncode == 0


def wait_lines(job: Job, pattern: str, count: int) -> None:
    def there() -> bool:
        return job.out.exists() and len(re.findall(pattern, job.out.read_text(), re.MULTILINE)) >= count

    until(there, HUNG, lambda: f"no {count} lines with {pattern} in the log of {job}\n{job.err.read_text()}")


def processes_with(word: str) -> list[str]:
    """The command lines of the processes that name this word."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return [line for line in found if word in line]


def wait_no_orphans(word: str) -> None:
    until(lambda: not processes_with(word), HUNG, lambda: f"left behind: {processes_with(word)}")


def test_ranks_save_at_a_signal_while_their_data_loaders_go_on(lab: Lab, site: Site) -> None:
    script = site.project / "loads_with_workers.py"
    script.write_text((SCRIPTS / script.name).read_text())
    shape = ("--nodes", "1", "--gpus-per-node", "0", "--tasks-per-node", "2", "--independent")
    job = site.submit(*shape, "--", str(script), "fork", "4")
    wait_lines(job, "ready$", 2)
    warn(lab, job)
    wait_lines(job, "saved$", 2)
    site.cli("cancel", job.id)
    site.wait_end(job, HUNG)
    said = Counter(re.findall(r"^\d+: (saved|SIG.*)$", job.out.read_text(), re.MULTILINE))
    assert said == {"SIGUSR1 in the rank": 2, "SIGTERM in the rank": 2, "saved": 4}, job.err.read_text()
    wait_no_orphans(str(script))


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not LIGHTNING.exists(), reason="make build/lightning installs it")
@pytest.mark.parametrize("signal", ["USR1", "TERM"])
def test_lightning_saves_and_resumes_at_each_signal(lab: Lab, site: Site, signal: str, figure: Figure) -> None:
    script, calls = site.project / "train_lightning.py", site.project / f"calls-{signal}"
    script.write_text((ROOT / "tests" / "data" / script.name).read_text())
    options = (*ONE_RANK, "--env", f"LIGHTNING_PACKAGES={LIGHTNING}")
    job = site.submit(*options, "--", str(script), "1000000", str(calls))
    begun = []
    for _ in range(TIMES):
        wait_lines(job, r"^0: step \d+$", 1)
        if signal == "USR1":
            warn(lab, job)
        else:
            site.cli("cancel", job.id)
        site.wait_end(job, HUNG)
        begun += [int(step) for step in re.findall(r"begins at step (\d+)", job.out.read_text())]
        wait_no_orphans(str(script))
        assert set(calls.read_text().splitlines()) == {f"SIG{signal} rank"}, job.err.read_text()
        assert [path.name for path in (job.run_dir / "checkpoints").iterdir()] == ["last.ckpt"]
        site.wait_state(job, "FAILED", "CANCELLED")
        data = site.json("resume", job.id)
        job = Job(data["job_id"], Path(data["run_dir"]), *map(Path, data["logs"]))
    wait_lines(job, r"begins at step [1-9]", 1)
    site.cli("cancel", job.id)
    assert begun == sorted(set(begun)), "each start continued from the checkpoint of the one before"
    figure(6, f"Lightning, SIG{signal}: stopped and continued {TIMES} times, from steps {begun}")
