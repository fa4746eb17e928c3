"""Sweeps on real Slurm: each task of an array is a run, each parameter set runs once, whatever fails on the way.

The tasks are shell commands. `make faults` sends 200 sets to a cluster with MaxArraySize 51.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from lab.fixtures import require_lab
from tests.support.installed_command import ONE_RANK, Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import all_over, held_by_slurm, light_template, wrap_sbatch

MakeSite = Callable[[Lab | None], Site]
SHELL = (*ONE_RANK, "--no-check", "--independent", "--launcher", "none", "--")
#: A set notes that it ran; unless `fixed` is there, 2 fails and 5 waits until it is cancelled.
BODY = (
    'echo "$CLUSTERRUN_SWEEP_X" >>"$CLUSTERRUN_RUN_DIR/ran"; echo "this is {x} of $SLURM_ARRAY_TASK_ID"; '
    "[ -e fixed ] || { [ {x} != 2 ] || exit 3; [ {x} != 5 ] || exec sleep 600; }"
)


@pytest.fixture(scope="module")
def small_arrays() -> Iterator[Lab]:
    """A cluster on which an array has at most 51 tasks."""
    require_lab()
    with Lab(name=f"s{os.getpid()}", settings={"MaxArraySize": "51"}) as made:
        yield made


def ran(site: Site) -> Counter[str]:
    """How often each set ran, by the tasks' own files."""
    files = (site.project / ".clusterrun" / "runs").glob("*/ran")
    return Counter(line for file in files for line in file.read_text().split())


def states(site: Site, name: str) -> dict[str, dict[str, Any]]:
    return {one["job_id"]: one for one in site.json("status", name, status=None)}


def test_each_task_is_a_job_of_its_own_and_the_failed_ones_run_again(lab: Lab, new_site: MakeSite) -> None:
    site = new_site(lab)
    data = site.json("sweep", "--grid", "x=0..7", "--max-running", "4", "--job-name", "eight", *SHELL, "sh", "-c", BODY)
    array = data["tasks"][0]["job_id"].partition("_")[0]
    jobs = [f"{array}_{index}" for index in range(8)]
    assert [task["job_id"] for task in data["tasks"]] == jobs
    seen = states(site, "eight")
    assert sum(one["state"] == "RUNNING" for one in seen.values()) <= 4, "--max-running"
    listed = site.cli("list").stdout
    assert listed.count("eight") <= 4, f"a row for each state:\n{listed}"
    until(lambda: states(site, array)[jobs[5]]["state"] == "RUNNING", 90, lambda: str(states(site, array)))
    until((Path(data["tasks"][5]["run_dir"]) / "ran").exists, 60)
    number = lab.run(["squeue", "-h", "-j", jobs[5], "-o", "%A"]).stdout.strip()
    assert f"SLURM_JOB_ID={number}\n" in site.cli("exec", jobs[5], "--", "env").stdout
    steps = lab.run(["squeue", "-s", "-h", "-o", "%i", "-j", jobs[5]]).stdout.split()
    assert f"{jobs[5]}.0" in steps, f"worker/job/hung_step.py looks for this name: {steps}"
    site.cli("cancel", jobs[5])
    site.cli("wait", "eight", status=1)
    ended = {job: one["state"] for job, one in states(site, "eight").items()}
    assert ended == {**dict.fromkeys(jobs, "COMPLETED"), jobs[2]: "FAILED", jobs[5]: "CANCELLED"}
    assert site.cli("logs", jobs[3]).stdout.count("this is 3 of 3") == 1
    assert "exit status 3" in site.cli("why", jobs[2], status=None).stdout
    (site.project / "fixed").touch()
    site.cli("resume", jobs[2])
    resumed = [job for job in states(site, "eight") if job not in jobs]
    assert len(resumed) == 1 and "_" not in resumed[0], "the run of the task continues as a job of its own"
    again = site.json("resubmit", "--failed", "eight", "--no-check")
    assert [task["parameters"] for task in again["tasks"]] == [{"x": "5"}]
    site.cli("wait", "eight")
    assert ran(site) == {**dict.fromkeys("013467", 1), "2": 2, "5": 2}
    assert {one["outcome"] for one in states(site, "eight").values()} == {"done"}


def test_a_sweep_that_waits_is_cancelled_by_its_name(lab: Lab, new_site: MakeSite) -> None:
    site = new_site(lab)
    site.json(
        "sweep", "--grid", "x=0..5", "--sbatch-arg=--begin=now+1hour", "--job-name", "waits", *SHELL, "true", "{x}"
    )
    assert [one["state"] for one in states(site, "waits").values()] == ["PENDING"] * 6
    site.cli("cancel", "waits")
    assert {one["outcome"] for one in states(site, "waits").values()} == {"cancelled"}


def test_who_waits_for_a_sweep_hears_that_its_waiting_tasks_were_cancelled(lab: Lab, new_site: MakeSite) -> None:
    site = new_site(lab)
    (site.project / "jobs").mkdir()
    (site.project / "jobs" / "half.toml").write_text(
        'command = "sh"\nargs = ["-c", "until [ -e go ]; do sleep 0.1; done", "{x}"]\nindependent = true\n'
        'launcher = "none"\nnodes = 1\ntasks-per-node = 1\ngpus-per-node = 0\n'
        '[sweep]\nmax-running = 2\ngrid.x = "0..3"\n'
    )
    assert "clusterrun sweep half" in site.cli("submit", "half", status=2).stderr
    tasks = [task["job_id"] for task in site.json("sweep", "half", "--no-check")["tasks"]]
    until(lambda: states(site, "half")[tasks[1]]["state"] == "RUNNING", 90)
    waits = site.start("wait", "half")
    assert waits.stdout is not None
    until(lambda: f"job {tasks[2]}: PENDING" in waits.stdout.readline(), 60)
    site.cli("cancel", "--name", "half", "--state", "PENDING", "--yes")
    (site.project / "go").touch()
    said = waits.communicate(timeout=HUNG)[0]
    array = tasks[0].partition("_")[0]
    assert waits.returncode == 1 and "UNKNOWN" not in said, said
    assert f"job {array}_[0-1]: COMPLETED" in said and f"job {array}_[2-3]: CANCELLED" in said
    assert f"clusterrun resubmit {tasks[2]}" in site.cli("why", tasks[2], status=None).stdout
    listed = [line.split()[:2] for line in site.cli("list", "--all").stdout.splitlines() if line.startswith(array)]
    assert sorted(listed) == [[f"{array}_[0-1]", "half"], [f"{array}_[2-3]", "half"]]


def test_a_requeue_of_the_last_task_is_its_own(lab: Lab, new_site: MakeSite) -> None:
    site = new_site(lab)
    # the last task of an array has the array's number, by which scontrol means all of them
    body = 'echo "$SLURM_JOB_ID $SLURM_RESTART_COUNT" >>"$CLUSTERRUN_RUN_DIR/starts"; exec sleep 600'
    data = site.json(
        "sweep", "--grid", "x=0..1", "--job-name", "again", "--requeue", *SHELL, "sh", "-c", f"{body} # {{x}}"
    )
    starts = [Path(task["run_dir"]) / "starts" for task in data["tasks"]]
    until(lambda: all(path.exists() for path in starts), 90, lambda: str(states(site, "again")))
    assert starts[1].read_text().split()[0] == data["tasks"][1]["job_id"].partition("_")[0]
    lab.run(["scontrol", "requeue", data["tasks"][1]["job_id"]])
    until(lambda: len(starts[1].read_text().splitlines()) == 2, 200, lambda: str(states(site, "again")))
    assert len(starts[0].read_text().splitlines()) == 1
    assert states(site, "again")[data["tasks"][1]["job_id"]]["restarts"] == 1
    site.cli("cancel", "again")


def test_an_answer_that_is_lost_is_looked_up_for_all_tasks(lab: Lab, new_site: MakeSite) -> None:
    site = new_site(lab)
    message = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    path = wrap_sbatch(site.home, f'real "$@" >/dev/null; echo "{message}" >&2; exit 1', site.env["PATH"])
    words = ("sweep", "--grid", "x=0..3", "--job-name", "lost", *SHELL, "sh", "-c", BODY)
    (site.project / "fixed").touch()
    data = site.json(*words, env={"PATH": path})
    site.cli("wait", "lost")
    assert ran(site) == dict.fromkeys("0123", 1)
    assert len([name for name in held_by_slurm(lab) if name.startswith("lost.")]) == 1, "one array"
    assert [task["job_id"].partition("_")[2] for task in data["tasks"]] == list("0123")


@pytest.mark.faults
@pytest.mark.timeout(1500)
def test_200_sets_on_maxarraysize_51_run_once_each_and_the_killed_ones_again(
    small_arrays: Lab, new_site: MakeSite, tmp_path: Path
) -> None:
    site = new_site(small_arrays)
    body = 'echo "$CLUSTERRUN_SWEEP_A-$CLUSTERRUN_SWEEP_B" >>"$CLUSTERRUN_RUN_DIR/ran"; '
    body += '[ -e fixed ] || [ "$CLUSTERRUN_SWEEP_B" != 7 ] || exec sleep 3000'
    words = ("--grid", "a=1..10", "--grid", "b=1..20", "--job-name", "big", "--cpus-per-task", "2", *ONE_RANK,
             "--no-check", "--template", str(light_template(tmp_path, body)), "--", "true", "{a}", "{b}")  # fmt: skip
    # clusterrun is killed while it sends the third of four arrays
    path = wrap_sbatch(site.home, 'n=$(($(cat $HOME/n 2>/dev/null) + 1)); echo $n >$HOME/n; real "$@"; s=$?\n'
                                  '[ $n != 3 ] || kill -9 $PPID; exit $s', site.env["PATH"])  # fmt: skip
    dying = site.start("sweep", *words, env={"PATH": path})
    dying.communicate(timeout=120)
    assert dying.returncode == -signal.SIGKILL
    run = next((site.project / ".clusterrun" / "sweeps").glob("*.json")).stem
    assert "--recover" in site.cli("status", "big", status=75).stdout
    site.cli("submit", "--recover", run)
    sets = [f"{a}-{b}" for a in range(1, 11) for b in range(1, 21)]
    until(lambda: len(ran(site)) == 200, 900, lambda: f"{len(ran(site))} of 200", pause=2.0)
    running = until(lambda: _only_left(site, "RUNNING", 10), 300, pause=2.0)
    assert ran(site) == dict.fromkeys(sets, 1), "each set once"
    names = [name for name in held_by_slurm(small_arrays) if name.startswith("big.")]
    assert len(names) == 4, "four arrays, none twice"
    site.cli("cancel", *running[:5])
    for job in running[5:]:
        small_arrays.run(["scancel", job])
    all_over(small_arrays)
    (site.project / "fixed").touch()
    again = site.json("resubmit", "--failed", "big", "--no-check")
    assert sorted(task["parameters"]["a"] for task in again["tasks"]) == sorted(map(str, range(1, 11)))
    site.cli("wait", "big", timeout=300)
    assert ran(site) == {**dict.fromkeys(sets, 1), **dict.fromkeys((f"{a}-7" for a in range(1, 11)), 2)}
    assert Counter(one["outcome"] for one in states(site, "big").values()) == {"done": 200}


def _only_left(site: Site, state: str, count: int) -> list[str]:
    """The jobs that have not ended, once they are so many in this state."""
    left = [job for job, one in states(site, "big").items() if one["outcome"] != "done"]
    return left if len(left) == count and all(states(site, "big")[job]["state"] == state for job in left) else []


@pytest.mark.faults
@pytest.mark.timeout(1500)
def test_a_controller_or_an_sbatch_that_is_killed_makes_no_double(
    small_arrays: Lab, new_site: MakeSite, tmp_path: Path
) -> None:
    site, ctld = new_site(small_arrays), small_arrays.daemon("slurmctld")
    template = light_template(tmp_path, 'echo "$CLUSTERRUN_SWEEP_X" >>"$CLUSTERRUN_RUN_DIR/ran"')
    path = site.env["PATH"]
    faults = (
        f'kill -9 {ctld.pid}; real "$@"',
        'real "$@" >/dev/null; kill -9 $$',  # sbatch, whose job is there
        "kill -9 $$",  # sbatch, which has sent nothing
    )
    for number, fault in enumerate(faults):
        once = f'mkdir "$HOME/once{number}" 2>/dev/null || {{ real "$@"; exit; }}\n'
        env = {"PATH": wrap_sbatch(site.home, once + fault, path)}
        words = ("sweep", "--grid", f"x={number}00..{number}51", "--job-name", f"s{number}", *ONE_RANK,
                 "--no-check", "--template", str(template), "--", "true", "{x}")  # fmt: skip
        going = site.start(*words, env=env)
        if number == 0:
            until(lambda: ctld.state == "dead", 60, lambda: "slurmctld is still there")
            ctld.start()
        out, _ = going.communicate(timeout=300)
        assert going.returncode in (0, 3), out
        if going.returncode:
            assert "no job was created" in out
            site.cli(*words)
    until(lambda: len(ran(site)) == 156, 900, lambda: f"{len(ran(site))} of 156", pause=2.0)
    all_over(small_arrays, 300)
    assert set(ran(site).values()) == {1}
