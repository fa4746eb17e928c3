"""Two nodes of two ranks under each launcher, on this machine and on Slurm: output, labels, failures, signals, ends."""

from __future__ import annotations

import os
import shlex
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.installed_command import SCRIPTS, Job, Site, read_json, until
from tests.support.lm_runs import STAND_IN
from tests.support.patience import HUNG
from tests.support.rank_files import ends_of

SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2")
ONE_EACH = (*SHAPE[:-1], "1")  # where one rank per node shows the same: each costs two seconds of processor time
JOINS = str(SCRIPTS / "joins.py")
no_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not a dependency")
#: Where a rank that is killed shows what a launcher that ends well shows too: the other one of each pair.
OTHERS = [("slurm", "accelerate"), *(pytest.param(one, "deepspeed", marks=no_deepspeed) for one in ("local", "slurm"))]
WORDS = ("$local_rank $$", "--", "-x")
LIMIT = 180  # seconds; each rank imports torch, and so does each launcher


def launch(site: Site, launcher: str, *words: str, shape: tuple[str, ...] = SHAPE) -> Job:
    return site.submit(*shape, "--launcher", launcher, *words)


def lines_of(job: Job, stream: str = "out") -> list[str]:
    path = job.out if stream == "out" else job.err
    return path.read_text().splitlines() if path.exists() else []


def statuses(job: Job) -> dict[int, int]:
    return {rank: end["status"] for rank, end in ends_of(job.attempts()[-1]).items()}


def processes(job: Job) -> list[int]:
    """The pids of the job's ranks that still run; the lab's nodes are on this machine too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(job.run_dir).encode() in path.read_bytes() and b"joins.py" in (path.parent / "cmdline").read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("site", "launcher"), OTHERS, indirect=["site"])
def test_ranks_meet_and_each_line_has_its_ranks_label(site: Site, launcher: str) -> None:
    job = launch(site, launcher, "--", JOINS, "well", *WORDS)
    assert site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)["state"] == "COMPLETED", job.err.read_text()
    look_at_ranks_that_met(site, job)
    assert statuses(job) == dict.fromkeys(range(4), 0)
    assert site.state(job)["joined_group"] is True


def look_at_ranks_that_met(site: Site, job: Job, per_node: int = 2) -> None:
    """Labels, words, the start record and `logs` of the ranks on two nodes."""
    world = 2 * per_node
    for rank in range(world):
        assert f"{rank}: rank {rank} of {world}: sum {sum(range(world))} {[*WORDS]}" in lines_of(job)
        assert f"{rank}: error line of {rank}" in lines_of(job, "err")
    ranks = (job.start() or {})["ranks"]
    assert [(r["rank"], r["task"], r["node_rank"]) for r in ranks] == [(r, r, r // per_node) for r in range(world)]
    assert len({r["node"] for r in ranks[:per_node]}) == len({r["node"] for r in ranks[per_node:]}) == 1
    assert ranks[0]["node"] < ranks[per_node]["node"]  # in the scheduler's order
    shown = site.cli("logs", job.id, "--rank", str(world - 1)).stdout
    assert f"rank {world - 1} of {world}" in shown and f"rank {world - 2} of {world}" not in shown


def test_the_exit_status_is_the_failing_ranks(site: Site) -> None:
    job = launch(site, "torchrun", "--", JOINS, "fail", shape=ONE_EACH)
    state = site.wait_state(job, "FAILED", timeout=LIMIT)
    assert state["exit_status"] == 7
    first = read_json(job.attempts()[-1] / "first_failure.json") or {}
    assert (first["rank"], first["status"]) == (1, 7)


@pytest.mark.parametrize("site", ["local"], indirect=True)
def test_ranks_of_accelerate_meet_and_one_that_is_killed_is_named(site: Site) -> None:
    job = launch(site, "accelerate", "--", JOINS, "kill", *WORDS)
    look_at_a_killed_rank(site, job, 3)
    look_at_ranks_that_met(site, job)


@pytest.mark.parametrize("site", ["slurm"], indirect=True)
def test_a_killed_rank_is_named_and_its_last_line_is_kept(site: Site) -> None:
    look_at_a_killed_rank(site, launch(site, "torchrun", "--", JOINS, "kill", shape=ONE_EACH), 1)


@pytest.mark.parametrize("site", ["local"], indirect=True)
def test_with_none_a_rank_that_a_shell_script_started_and_that_is_killed_is_named(site: Site) -> None:
    words = ("--", str(SCRIPTS / "starts_torchrun.sh"), JOINS, "kill")
    look_at_a_killed_rank(site, launch(site, "none", *words, shape=ONE_EACH), 1)


def look_at_a_killed_rank(site: Site, job: Job, rank: int) -> None:
    state = site.wait_state(job, "FAILED", timeout=LIMIT)
    # a rank that lost the connection may exit with 1 before the launcher has seen the signal
    assert state["exit_status"] in (137, 1), job.err.read_text()
    assert f"{rank}: " + "last line " * 50 in job.out.read_text()
    said = site.cli("why", job.id, status=None).stdout
    assert f"rank {rank}" in said and ("SIGKILL" in said or "killed" in said), said
    until(lambda: not processes(job), 20, lambda: f"{processes(job)} still run")


@pytest.mark.parametrize("site", ["slurm"], indirect=True)  # torchrun itself restarts them
def test_ranks_that_fail_are_restarted_and_meet_again(site: Site) -> None:
    job = launch(site, "torchrun", "--max-restarts", "2", "--", JOINS, "once", *WORDS, shape=ONE_EACH)
    assert site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)["state"] == "COMPLETED", job.err.read_text()
    assert all(f"{rank}: rank {rank} after a restart" in lines_of(job) for rank in range(2))
    look_at_ranks_that_met(site, job, per_node=1)
    assert statuses(job) == dict.fromkeys(range(2), 0)
    assert site.state(job)["joined_group"] is True
    assert not (job.attempts()[-1] / "first_failure.json").exists()


def test_cancel_leaves_no_process_behind(site: Site) -> None:
    job = launch(site, "torchrun", "--max-restarts", "2", "--", JOINS, "wait", shape=ONE_EACH)
    until(lambda: sum("rank" in line and "of 2" in line for line in lines_of(job)) == 2, LIMIT)
    assert len(processes(job)) >= 2
    site.cli("cancel", job.id, "--yes")
    site.wait_state(job, "CANCELLED")
    until(lambda: not processes(job), 20, lambda: f"{processes(job)} still run")


@pytest.mark.parametrize("site", ["local"], indirect=True)  # each rank sees to it itself
def test_ranks_end_with_their_launcher(site: Site) -> None:
    job = launch(site, "torchrun", "--", JOINS, "wait", shape=ONE_EACH)
    until(lambda: sum("rank" in line and "of 2" in line for line in lines_of(job)) == 2, LIMIT)
    ranks = {r["pid"] for r in (job.start() or {})["ranks"]}
    launchers = [pid for pid in processes(job) if b"\0launch\0torchrun\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    ours = [pid for pid in launchers if ranks & set(map(int, children(pid)))]
    os.kill(ours[0], signal.SIGKILL)
    assert site.wait_state(job, "FAILED", timeout=HUNG)["exit_status"] in (1, 137)
    until(lambda: not processes(job), 20, lambda: f"{processes(job)} still run")


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_built_in_task_saves_on_sigterm(site: Site) -> None:
    settings = ("steps=1000000", "vocab=300", "seq_len=16", "global_batch_size=8", "eval_every=0", "log_every=5")
    chosen = [word for setting in settings for word in ("--set", setting)]
    light = () if site.lab else STAND_IN  # the real model on one of them
    job = site.submit(*ONE_EACH, "--launcher", "torchrun", *chosen, *light, "lm")
    metrics = job.run_dir / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 1, LIMIT, job.err.read_text)
    if site.lab:
        assert site.lab.run(["scancel", "--signal=TERM", job.id + ".0"]).returncode == 0
        assert site.wait_state(job, "FAILED", timeout=LIMIT)["exit_status"] == 85
    else:
        site.cli("cancel", job.id, "--yes")
        assert site.wait_state(job, "CANCELLED")["outcome"] == "cancelled"
    stopped = read_json(job.attempts()[-1] / "stopped") or {}
    assert stopped["reason"] == "SIGTERM"
    assert (job.run_dir / "checkpoints" / "latest").read_text().strip() == f"step-{stopped['step']:08d}"
    assert statuses(job) == dict.fromkeys(range(2), 0)


@pytest.mark.parametrize("site", ["slurm"], indirect=True)  # on this machine: test_launched_scripts.py
def test_with_none_a_shell_script_starts_its_own_torchrun(site: Site) -> None:
    job = launch(site, "none", "--", str(SCRIPTS / "starts_torchrun.sh"), JOINS, "well")
    assert site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)["state"] == "COMPLETED", job.err.read_text()
    out = lines_of(job)
    for node in (0, 1):
        assert f"{node}: node {node} of 2, world '', rank ''" in out
        for rank in (2 * node, 2 * node + 1):
            assert f"{node}: rank {rank} of 4: sum 6 []" in out
    assert statuses(job) == {0: 0, 1: 0}  # one record per node


@pytest.mark.parametrize("site", ["slurm"], indirect=True)
def test_with_none_the_line_of_a_refusal_makes_the_ranks_of_both_nodes_one_group(site: Site) -> None:
    line = ("--launcher", "none", "--", "python", "-m", "torch.distributed.run", "--nproc-per-node", "1", JOINS, "well")
    said = site.cli("submit", *ONE_EACH, *line, status=2).stderr
    assert "2 separate groups of ranks" in said
    job = site.submit(*shlex.split(said.partition("hint: clusterrun submit ")[2].splitlines()[0]))
    assert site.wait_state(job, "COMPLETED", "FAILED", timeout=LIMIT)["state"] == "COMPLETED", job.err.read_text()
    assert {f"{rank}: rank {rank} of 2: sum 1 []" for rank in range(2)} <= set(lines_of(job))
