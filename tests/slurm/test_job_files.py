"""What a job on a real Slurm leaves for others to write, and what it shows of its secrets: to another user, nothing."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, SCRIPTS, Job, Site, until

STRANGER = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]


@pytest.fixture(scope="module")
def job(site: Site) -> Job:
    """A shared job of a user with umask 002 in a group's folder, while its two ranks work."""
    site.project.chmod(0o2775)
    before = os.umask(0o002)
    try:
        shape = ("--shared", "--nodes", "2", "--gpus-per-node", "0", "--setup", "touch by_setup")
        job = site.submit(*shape, "--", "bash", "-c", 'touch by_rank; env >"env.$RANK"; sleep 600')
    finally:
        os.umask(before)
    site.wait_joined(job)
    until(lambda: (site.project / "env.0").exists() and "CLUSTERRUN_SECRET" in (site.project / "env.0").read_text(), 20)
    return job


def writable(folder: Path) -> list[str]:
    """What the group or others may write below a folder."""
    done = subprocess.run(
        ["find", str(folder), "!", "-type", "l", "-perm", "/022"], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def variable(path: Path, name: str) -> str:
    match = re.search(rf"^{name}=(.+)$", path.read_text(), re.MULTILINE)
    assert match, f"no {name}"
    return match[1]


def test_a_running_jobs_secrets_show_nowhere_to_another_user(lab: Lab, site: Site, job: Job) -> None:
    env = site.project / "env.0"
    secret, token = variable(env, "CLUSTERRUN_SECRET"), variable(env, "CLUSTERRUN_TOKEN")
    assert len(secret) == 32
    asked = [
        ["ps", "-e", "-ww", "-o", "args"], ["scontrol", "show", "job", "-d", job.id],
        ["scontrol", "show", "step", job.id], ["squeue", "-a", "-o", "%all"], ["squeue", "-s", "-a", "-o", "%all"],
        ["sacct", "-a", "-p", "-o", "ALL", "-j", job.id],
    ]  # fmt: skip
    for words in asked:
        done = lab.run([*STRANGER, *words])
        assert done.stdout.strip(), (words, done.stderr)
        assert secret not in done.stdout, words
        assert token not in done.stdout, words
    assert variable(env, "CLUSTERRUN_ATTEMPT_NUMBER") == "1"
    assert variable(env, "CLUSTERRUN_ATTEMPT_NUMBER_FILE") == f"{job.run_dir}/attempt_number"


def test_nothing_that_the_job_makes_in_the_runs_folder_is_for_others_to_write(site: Site, job: Job) -> None:
    assert writable(job.run_dir) == []
    site.cli("cancel", job.id, "--yes")
    site.wait_end(job)
    assert writable(job.run_dir) == [] and writable(job.out) == [] and writable(job.err) == []
    made = {path.name for path in job.attempts()[0].iterdir()}
    assert made >= {"end.json", "start.json", "log-start", "node-0.ranks"}


def test_what_the_users_code_makes_has_the_submitters_umask(site: Site, job: Job) -> None:
    found = {name: oct((site.project / name).stat().st_mode & 0o777) for name in ("by_setup", "by_rank")}
    assert found == {"by_setup": "0o664", "by_rank": "0o664"}


def test_a_task_of_ours_writes_nothing_for_others_either(site: Site) -> None:
    quick = ("steps=2", "vocab=300", "seq_len=16", "global_batch_size=8", "eval_every=0")
    before = os.umask(0o002)
    try:
        job = site.submit("--shared", *ONE_RANK, *(word for one in quick for word in ("--set", one)), "lm")
    finally:
        os.umask(before)
    site.cli("wait", job.id, timeout=200)
    assert (job.run_dir / "checkpoints").is_dir() and (job.run_dir / "metrics.jsonl").exists()
    assert writable(job.run_dir) == []


def test_a_script_sent_by_hand_names_the_command_that_runs_it(lab: Lab, site: Site) -> None:
    script = site.project / "by hand.sh"
    script.write_text(site.cli("render", *site.scheduler, *ONE_RANK, "--", str(SCRIPTS / "says_hello.sh")).stdout)
    (site.project / "logs").mkdir(exist_ok=True)

    def send(command: str) -> tuple[str, str]:
        done = lab.run(["bash", "-c", command.replace("sbatch ", "sbatch --parsable ")], cwd=site.project, env=site.env)
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        lab.wait_job(job, "COMPLETED", "FAILED", timeout=120)
        return lab.job(job)["JobState"], (site.project / "logs" / f"train_{job}.err").read_text()

    state, said = send(f"sbatch '{script}'")
    assert state == "FAILED" and "was not submitted by clusterrun" in said
    state, said = send(said.split("this script anyway: ")[1].strip())
    assert state == "COMPLETED", said
