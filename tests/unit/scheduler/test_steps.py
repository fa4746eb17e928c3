"""The steps of a run inside a Slurm job: the commands that start, signal and end them, with stand-ins for Slurm's."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.scheduler.local import steps
from clusterrun.scheduler.local.jobfiles import Job

TOKEN = "abcdefgh" * 2
JOB = Job(token=TOKEN, run_dir="/r", script="/r/s.sh", workdir="/", logs="/l", umask=0o77, nodes=2,
          tasks_per_node=1, gpus_per_node=1, time_limit=None, dependency="", submitted=0, grace=1.0, in_job="8",
          cpus_per_task=3)  # fmt: skip
NAME = "clusterrun.abcdefgh"
SHOWN = f"8.extern extern\n8.10 {NAME}\n8.2 {NAME}\n8.3 clusterrun.other\n8.4 my {NAME}\n"


class Commands:
    """squeue, which prints `shown` or fails, and scancel, which writes down what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": f"{folder}:/usr/bin:/bin"}
        self._write("scancel", f'echo "$*" >>{folder}/asked; echo "error: Invalid job id specified" >&2; exit 1')
        self.shows(SHOWN)

    def shows(self, text: str) -> None:
        (self.folder / "shown").write_text(text)
        self._write("squeue", f"cat {self.folder}/shown")

    def fails(self, words: str) -> None:
        self._write("squeue", f"echo 'slurm_load_jobs error: {words}' >&2; exit 1")

    def forgets_after_a_cancel(self) -> None:
        self._write("squeue", f"[ -e {self.folder}/asked ] || cat {self.folder}/shown")

    def _write(self, name: str, line: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / name).chmod(0o755)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines() if (self.folder / "asked").exists() else []


@pytest.fixture
def slurm(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def test_the_supervisor_is_told_before_the_ranks_get_term(slurm: Commands) -> None:
    steps.request_end(JOB, slurm.environ)
    assert slurm.asked == ["--signal=URG 8.2", "--signal=TERM 8.10"]


def test_a_script_without_ranks_gets_term(slurm: Commands) -> None:
    slurm.shows(f"8.2 {NAME}\n")
    steps.request_end(JOB, slurm.environ)
    assert slurm.asked == ["--signal=TERM 8.2"]


@pytest.mark.parametrize("rubbish", ["", "8.2", f"8.99999999999999999999 {NAME}\n", f"9.2 {NAME}\n"])
def test_no_other_step_gets_a_signal(slurm: Commands, rubbish: str) -> None:
    slurm.shows(rubbish)
    steps.request_end(JOB, slurm.environ)
    assert slurm.asked == []


def test_what_is_left_is_killed_until_it_is_gone(slurm: Commands) -> None:
    slurm.forgets_after_a_cancel()
    assert steps.end(JOB, slurm.environ)
    assert slurm.asked == ["--signal=KILL 8.2 8.10"]


def test_a_job_that_slurm_has_forgotten_has_no_steps(slurm: Commands) -> None:
    slurm.fails("Invalid job id specified")
    assert steps.end(JOB, slurm.environ)
    assert steps.why_cancelled(JOB, slurm.environ) == "the end of job 8"


def test_of_a_silent_slurm_it_is_not_known_whether_steps_are_left(
    slurm: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_ENDING", 0.0)
    slurm.fails("Unable to contact slurm controller (connect failure)")
    steps.request_end(JOB, slurm.environ)
    assert not steps.end(JOB, slurm.environ) and slurm.asked == []
    assert steps.why_cancelled(JOB, slurm.environ) == ""
    assert not steps.end(JOB, {"PATH": "/nowhere"})


def test_the_end_of_the_job_is_why_a_run_ended(slurm: Commands) -> None:
    for state, why in (
        ("RUNNING", ""),
        ("TIMEOUT", "the end of job 8 (TIMEOUT)"),
        ("CANCELLED", "the end of job 8 (CANCELLED)"),
        ("COMPLETING", "the end of job 8"),
        ("SUSPENDED", ""),
    ):
        slurm.shows(f"{state}\n")
        assert steps.why_cancelled(JOB, slurm.environ) == why


def test_the_script_finds_what_a_batch_script_finds(tmp_path: Path) -> None:
    out, err, script = tmp_path / "a b.out", tmp_path / "a.err", tmp_path / "it's.sh"
    script.write_text('env | grep -E "^(SLURM|SRUN|PMI|CUDA)" | sort; echo bad >&2\n')
    out.write_text("before\n")
    argv = steps.start_argv(replace(JOB, script=str(script)), ["n1", "n2"], out, err)
    assert argv[: argv.index("/bin/bash")] == [
        "srun", "--jobid=8", f"--job-name={NAME}", "--quiet", "--overlap", "--mem=0", "--nodes=1",
        "--ntasks=1", "--nodelist=n1", "--cpu-bind=none", "--export=ALL",
    ]  # fmt: skip
    of_step = {
        "SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SRUN_CPUS_PER_TASK": "1", "PMI_RANK": "0",
        "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_CONF": "/etc/s.conf", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path),
    }  # fmt: skip
    subprocess.run(argv[argv.index("/bin/bash") :], env=of_step, cwd=tmp_path, check=True)
    kept = ["SLURM_CONF=/etc/s.conf", "SLURM_CPUS_PER_TASK=3", "SLURM_JOB_ID=8", "SLURM_JOB_NODELIST=n1,n2"]
    assert out.read_text().splitlines() == ["before", *kept]
    assert err.read_text() == "bad\n"
