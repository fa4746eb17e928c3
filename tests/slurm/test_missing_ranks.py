"""A rank that never arrives, and a store that a rank cannot reach, are named within the join limit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faults_table import Figure
from tests.support.installed_command import ALLREDUCE, Job, Site
from tests.support.rank_files import progress_of

SHAPE = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node")
JOIN_S, END_S = 20, 80  # the limit, and what the end of the job may take
TIMES = 5

# Python runs it at the start of every process of the job; it changes one rank only
IN_ONE_RANK = """
import os, sys
if "__main__.py" in " ".join(sys.orig_argv) and "supervise" not in sys.orig_argv:
    if os.environ.get("SLURM_PROCID") == "{rank}":
        {statement}
"""
NEVER_ARRIVES = "import signal; signal.pause()"
WRONG_ADDRESS = "os.environ['MASTER_ADDR'] = '192.0.2.1'"


def submit(site: Site, folder: Path, rank: int, statement: str, ranks: int) -> Job:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(IN_ONE_RANK.format(rank=rank, statement=statement))
    environ = ("--env", f"PYTHONPATH={folder}")
    return site.submit(*SHAPE, str(ranks // 2), "--join-timeout", str(JOIN_S), *environ, "--", str(ALLREDUCE))


def seconds(job: Job) -> float:
    """From the moment when the first rank waits for the others to the job's end."""
    end, records = job.end(), progress_of(job.attempts()[-1]).values()
    assert end is not None
    return float(end["time"]) - min(one["since"] for one in records if one["phase"] == "joining")


def check_never_arrives(site: Site, folder: Path, rank: int, ranks: int) -> None:
    job = submit(site, folder, rank, NEVER_ARRIVES, ranks)
    site.wait_state(job, "FAILED", timeout=120)
    assert f"1 of {ranks} ranks did not join within {JOIN_S} s: rank {rank} on " in job.err.read_text()
    (why,) = site.json("why", job.id)
    assert f"rank {rank} on" in why["ended"]["cause"]
    assert seconds(job) < JOIN_S + END_S


def check_wrong_address(site: Site, folder: Path, rank: int, ranks: int) -> None:
    job = submit(site, folder, rank, WRONG_ADDRESS, ranks)
    site.wait_state(job, "FAILED", timeout=120)
    errors = job.err.read_text()
    named = f"rank {rank}: cannot reach the run's store at 192.0.2.1:" in errors
    assert named or f"1 of {ranks} ranks did not join within {JOIN_S} s: rank {rank} on " in errors, errors
    assert seconds(job) < JOIN_S + END_S


def test_a_rank_that_never_arrives_is_named_within_the_join_limit(site: Site, tmp_path: Path) -> None:
    check_never_arrives(site, tmp_path / "late", 1, 2)


def test_a_wrong_master_addr_is_named_within_the_join_limit(site: Site, tmp_path: Path) -> None:
    check_wrong_address(site, tmp_path / "lost", 1, 2)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_each_of_five_ranks_that_never_arrive_is_named(site: Site, tmp_path: Path, figure: Figure) -> None:
    for number in range(TIMES):
        check_never_arrives(site, tmp_path / str(number), random.Random(number).randrange(4), 4)
    figure(9, f"never arrives: {TIMES} of {TIMES} named")


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_each_of_five_wrong_addresses_is_named(site: Site, tmp_path: Path, figure: Figure) -> None:
    for number in range(TIMES):
        check_wrong_address(site, tmp_path / str(number), random.Random(number).randrange(4), 4)
    figure(9, f"wrong MASTER_ADDR: {TIMES} of {TIMES} named")
