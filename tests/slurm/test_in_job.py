"""Runs inside a job that exists, salloc's or that of `--in-job`, on a real Slurm (ADR 41)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Job, Site
from tests.support.patience import until

SHAPE = ("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=4", "--gpus-per-node=4", "--time=30")
# Each rank writes which GPUs it has, and works until there is a file `go`; TERM makes it save, for a moment.
RANK = """#!/bin/bash
name=$1
trap 'sleep 0.5; touch "saved-$name-$RANK"; exit 0' TERM
echo "$(hostname) $CUDA_VISIBLE_DEVICES" >"new-$name-$RANK" && mv "new-$name-$RANK" "seen-$name-$RANK"
until [ -e "go-$name" ]; do sleep 0.1; done
"""


@pytest.fixture
def held(lab: Lab) -> Iterator[str]:
    """A running job of two nodes with four GPUs each, as salloc makes one."""
    said = lab.run(["salloc", "--no-shell", *SHAPE]).stderr
    job = next(line.split()[-1] for line in said.splitlines() if "Granted job allocation" in line)
    yield job
    lab.run(["scancel", job])


@pytest.fixture
def script(site: Site, request: pytest.FixtureRequest) -> Path:
    folder = site.project / request.node.name[:40]
    folder.mkdir()
    path = folder / "rank.sh"
    path.write_text(RANK)
    path.chmod(0o755)
    return path


def start(site: Site, script: Path, name: str, *options: str, **env: str) -> Job:
    words = ("submit", "--json", "--independent", *options, "--", str(script), name)
    data = json.loads(site.cli(*words, cwd=script.parent, env=env).stdout)["data"]
    return Job(data["job_id"], Path(data["run_dir"]), *map(Path, data["logs"]))


def gpus(script: Path, name: str, ranks: int) -> set[tuple[str, str]]:
    """The node and number of each GPU that a run's ranks have, once all have started."""
    files = [script.parent / f"seen-{name}-{rank}" for rank in range(ranks)]
    until(lambda: all(file.exists() for file in files), 120, f"the ranks of {name} did not start")
    seen = (file.read_text().split() for file in files)
    return {(node, number) for node, numbers in seen for number in numbers.split(",")}


def steps(lab: Lab, job: str) -> list[str]:
    return lab.run(["squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i"]).stdout.split()


def test_two_runs_at_once_of_which_one_is_cancelled(lab: Lab, site: Site, held: str, script: Path) -> None:
    shape = ("--in-job", held, "--nodes", "2", "--gpus-per-node", "2")
    first, second = start(site, script, "a", *shape), start(site, script, "b", *shape)
    have = gpus(script, "a", 4), gpus(script, "b", 4)
    assert len(have[0]) == len(have[1]) == 4 and not have[0] & have[1]
    nodes = {node for node, _ in have[0]}
    assert len(nodes) == 2 and {node for node, _ in have[1]} == nodes
    assert len(steps(lab, held)) == 4
    assert "Cancelled" in site.cli("cancel", first.id).stdout
    assert sorted(file.name for file in script.parent.glob("saved-*")) == [f"saved-a-{rank}" for rank in range(4)]
    assert site.state(first)["state"] == "CANCELLED"
    assert site.state(second)["state"] == lab.job(held)["JobState"] == "RUNNING"
    assert len(steps(lab, held)) == 2
    (script.parent / "go-b").touch()
    assert "COMPLETED" in site.cli("wait", second.id).stderr
    assert "nothing went wrong" in site.cli("why", second.id).stdout
    assert lab.job(held)["JobState"] == "RUNNING" and steps(lab, held) == []
    assert held in site.cli("status", second.id).stdout


def test_a_run_waits_for_the_gpus_of_another_and_runs_on_the_other_node(site: Site, held: str, script: Path) -> None:
    shape = ("--in-job", held, "--gpus-per-node", "4")
    runs = [start(site, script, name, *shape) for name in "abc"]
    nodes = [{node for node, _ in gpus(script, name, 4)} for name in "ab"]
    assert not nodes[0] & nodes[1]
    assert site.state(runs[2])["state"] == "PENDING"
    shown = site.cli("why", runs[2].id).stdout
    assert f"4 GPUs; job {held} has 8" in shown and f"(job {runs[0].id})" in shown
    (script.parent / "go-b").touch()
    assert {node for node, _ in gpus(script, "c", 4)} == nodes[1]
    for name in "ac":
        (script.parent / f"go-{name}").touch()
    for run in runs:
        site.wait_state(run, "COMPLETED")


def test_in_a_shell_of_salloc_a_run_starts_in_its_job(lab: Lab, site: Site, held: str, script: Path) -> None:
    words = ("submit", "--dry-run", "--gpus-per-node", "1", "--", str(script), "a")
    shell = {"SLURM_JOB_ID": held}
    assert f"running inside job {held}" in site.cli(*words, env=shell).stderr
    assert "to Slurm" in site.cli("submit", "--in-job", "none", *words[1:], env=shell).stderr
    (script.parent / "go-a").touch()
    run = start(site, script, "a", "--gpus-per-node", "1", "--launcher", "none", **shell)
    assert run.id.startswith("L")
    site.wait_state(run, "COMPLETED")
    again = site.json("resubmit", run.id, cwd=script.parent)
    site.wait_state(again["job_id"], "COMPLETED")
    assert lab.job(held)["JobState"] == "RUNNING"


def test_the_end_of_the_job_cancels_its_runs(lab: Lab, site: Site, held: str, script: Path) -> None:
    run = start(site, script, "a", "--in-job", held, "--nodes", "2", "--gpus-per-node", "1")
    gpus(script, "a", 2)
    lab.run(["scancel", held])
    assert f"the end of job {held}" in site.wait_state(run, "CANCELLED")["reason"]
    assert len(list(script.parent.glob("saved-a-*"))) == 2
    assert f"the end of job {held}" in site.cli("why", run.id).stdout
    lab.wait_job(held, "CANCELLED")  # until then it is COMPLETING
    refused = site.cli("submit", "--in-job", held, "--", str(script), "b", status=3).stderr
    assert f"job {held} has ended (CANCELLED)" in refused and "--in-job none" in refused


def test_a_cancel_ends_the_ranks_of_a_run_whose_supervisor_was_killed(
    lab: Lab, site: Site, held: str, script: Path
) -> None:
    run = start(site, script, "a", "--in-job", held, "--nodes", "2", "--gpus-per-node", "1")
    gpus(script, "a", 2)
    state = json.loads((Path(site.env["CLUSTERRUN_STATE"]) / "local" / run.id / "state.json").read_text())
    os.kill(state["supervisor"][0], signal.SIGKILL)
    until(lambda: "clusterrun cancel" in site.state(run)["reason"], 60, "the loss was not seen")
    assert "ended its steps" in site.cli("cancel", run.id, status=None).stdout
    assert steps(lab, held) == [] and lab.job(held)["JobState"] == "RUNNING"
    assert len(list(script.parent.glob("saved-a-*"))) == 2


def test_a_run_that_cannot_start_in_a_job_leaves_nothing(lab: Lab, site: Site, held: str, script: Path) -> None:
    runs = site.project / ".clusterrun" / "runs"
    before = sorted(runs.glob("*"))
    waiting = lab.run(["sbatch", "--parsable", "--hold", "--wrap=true"]).stdout.strip()
    theirs = lab.run(["sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 100"], user="nobody").stdout.strip()
    lab.wait_job(theirs, "RUNNING")
    for words, message in (
        (("--in-job", "987654"), "there is no job 987654"),
        (("--in-job", waiting), f"job {waiting} has not started yet (PENDING)"),
        (("--in-job", theirs), f"job {theirs} belongs to nobody, not to you"),
        (("--in-job", held, "--nodes", "3"), f"job {held} has 2 nodes, but the run needs 3"),
        (("--in-job", held, "--gpus-per-node", "5"), f"job {held} has 4 GPUs on each node, but the run needs 5"),
    ):
        for dry in ((), ("--dry-run",)):
            refused = site.cli("submit", *words, *dry, "--", str(script), "a", status=3).stderr.splitlines()
            assert message in refused[-2] and "--in-job none" in refused[-1], refused
    lab.run(["scancel", waiting, theirs])
    assert sorted(runs.glob("*")) == before
