"""Ranks that never meet, on the local scheduler: the log, status and why say so; ranks that meet give no alarm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.installed_command import ALLREDUCE, ROOT, SCRIPTS, Job, Site
from tests.support.patience import until
from tests.support.rank_files import ends_of

SEPARATE = str(ROOT / "tests" / "data" / "separate_script.py")
ONE_NODE = ("--gpus-per-node", "0", "--tasks-per-node", "2")
LINE = "clusterrun: rank 0: no rank used a process group: the job ran as 2 separate programs"
TWO = ("--gpus-per-node", "0", "--nodes", "2", "--tasks-per-node", "1")
REQUIRED = "clusterrun: rank 0: --require-group: no rank used a process group: the job ran as 2 separate programs"


def ended(site: Site, *words: str, state: str = "COMPLETED", shape: tuple[str, ...] = TWO) -> Job:
    job = site.submit(*shape, *words)
    site.wait_end(job)
    site.wait_state(job, state)
    return job


def kind(site: Site, job: Job) -> str:
    (found,) = site.json("why", job.id)
    return str(found["ended"]["kind"])


def test_ranks_that_never_meet_are_reported_at_the_end(site: Site) -> None:
    job = ended(site, "--", SEPARATE)
    last = job.err.read_text().splitlines()[-1]
    assert last.startswith(f"0: {LINE}") and "--independent" in last
    status, why = site.cli("status", job.id).stdout, site.cli("why", job.id).stdout
    assert "group  no rank used a process group: the 2 ranks ran as separate programs" in status
    assert "the job is COMPLETED, but no rank used a process group: the job ran as 2 separate programs" in why
    assert kind(site, job) == "no-process-group" and site.state(job)["joined_group"] is False


# that a group is seen under a launcher: conformance/test_launchers.py
def test_ranks_that_never_meet_are_reported_under_torchrun(site: Site) -> None:
    job = ended(site, "--launcher", "torchrun", "--", SEPARATE, shape=ONE_NODE)
    assert site.state(job)["joined_group"] is False
    assert "no rank used a process group" in job.err.read_text()


def test_ranks_that_meet_are_not(site: Site) -> None:
    job = ended(site, "--require-group", "--", str(ALLREDUCE), "{rank} of {world_size}", "{{rank}}")
    assert "process group" not in job.err.read_text() and "group  " not in site.cli("status", job.id).stdout
    assert kind(site, job) == "none" and site.state(job)["joined_group"] is True
    assert sorted(line[-30:] for line in job.out.read_text().splitlines() if "sum" in line) == [
        f"sum 3 args ['{rank} of 2', '{{rank}}']"[-30:] for rank in range(2)
    ]


def test_a_required_group_fails_the_run(site: Site) -> None:
    job = ended(site, "--require-group", "--", SEPARATE, state="FAILED")
    assert job.err.read_text().count(REQUIRED) == 1
    assert site.state(job)["exit_status"] == 1 and kind(site, job) == "no-process-group"
    assert {rank: end["status"] for rank, end in ends_of(job.attempts()[-1]).items()} == {0: 1, 1: 1}


def test_independent_ranks_are_silent(site: Site) -> None:
    job = ended(site, "--independent", "--", SEPARATE)
    assert "process group" not in job.err.read_text() + site.cli("status", job.id).stdout
    assert kind(site, job) == "none" and site.state(job)["joined_group"] is False


@pytest.mark.parametrize("joins", [True, False])
def test_a_commands_group_is_seen_in_the_runs_store(site: Site, tmp_path: Path, joins: bool) -> None:
    script = str(ALLREDUCE) if joins else SEPARATE
    job = ended(site, "--require-group", "--", "bash", "-c", f"{sys.executable} {script}",
                state="COMPLETED" if joins else "FAILED")  # fmt: skip
    assert site.state(job)["joined_group"] is True or not joins


def test_a_command_without_torch_gives_no_alarm(site: Site) -> None:
    job = ended(site, "--", "bash", "-c", "sleep 2")
    assert "process group" not in job.err.read_text()
    assert kind(site, job) == "none" and site.state(job)["joined_group"] is None


def test_ranks_that_start_a_launcher_each_are_told_while_they_run_and_at_the_end(site: Site, tmp_path: Path) -> None:
    job = site.submit(*TWO, "--", str(SCRIPTS / "starts_own_launcher.py"), str(tmp_path))
    line = "do not train together: 2 of 2 ranks have started a world of its own by torch.distributed.run, of 2 ranks"
    until(lambda: line in site.cli("status", job.id).stdout, 120, job.err.read_text, pause=1)
    assert line in site.cli("why", job.id).stdout
    until(lambda: "warning: the ranks do not train together" in job.err.read_text(), 120, job.err.read_text, pause=1)
    (tmp_path / "end").touch()
    site.wait_state(job, "COMPLETED")
    started = "started a world of its own by torch.distributed.run, of 2 ranks"
    log = job.err.read_text()
    assert f"clusterrun: warning: the ranks do not train together: 2 of 2 ranks have {started}" in log
    assert f"with the others: the job ran as 2 separate programs (each rank {started})" in log.splitlines()[-1]
    assert f"2 separate programs (each rank {started})" in site.cli("why", job.id).stdout
    assert "ran as separate programs" in site.cli("status", job.id).stdout


def test_a_program_that_gave_up_before_it_trained_is_shown_by_its_last_line(site: Site, tmp_path: Path) -> None:
    script = tmp_path / "gives_up.py"
    script.write_text("import torch\nprint('Unable to locate sufficient 2 gpus to run this example. Exiting.')\n")
    why = site.cli("why", ended(site, "--", str(script)).id).stdout
    assert "the last line that its program printed: Unable to locate sufficient 2 gpus" in why


def test_processes_that_a_single_rank_spawns_meet(site: Site) -> None:
    job = site.rank("spawns.py", arguments=["given"])  # own: below
    site.wait_state(job, "COMPLETED", timeout=120)
    assert job.out.read_text().count("sum 2.0") == 2


def test_processes_that_each_of_two_ranks_spawns_meet_at_their_own_address(site: Site) -> None:
    job = ended(site, "--independent", "--", str(SCRIPTS / "spawns.py"), "own")
    assert job.out.read_text().count("sum 2.0") == 4
