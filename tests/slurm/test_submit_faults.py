"""Submitting to a real controller that is frozen, restarted or killed meanwhile, by clusterruns that are killed too.

What became of a submission is taken from Slurm's own account (squeue and sacct, by job name), never from ours.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterrun import store as records
from clusterrun import submission
from clusterrun.cluster import Cluster
from clusterrun.errors import Ambiguous, NotDelivered
from clusterrun.fields import Value
from clusterrun.planning import Plan
from clusterrun.request import Asked
from lab.cluster import Lab
from tests.sites import ONE_RANK, Job, Site, until
from tests.submitting import Fleet, fast, held_by_slurm, light_template, runs_of, wrap_sbatch

MakeSite = Callable[[Lab | None], Site]
FROZEN = 12.0  # seconds: longer than Slurm's MessageTimeout, so that each sbatch under way is cut off
NEVER = "--sbatch-arg=--begin=now+1hour"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return light_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def site(fresh_lab: Lab, new_site: MakeSite) -> Site:
    return new_site(fresh_lab)


@pytest.fixture
def rng() -> random.Random:
    """A die whose seed is printed; CLUSTERRUN_TEST_SEED throws the same again."""
    seed = int(SEED) if (SEED := os.environ.get("CLUSTERRUN_TEST_SEED", "")) else random.SystemRandom().getrandbits(32)
    print(f"CLUSTERRUN_TEST_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def fleets() -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(*args: Any) -> Fleet:
        made.append(Fleet(*args))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def light(site: Site, template: Path, *options: str, **kwargs: Any) -> Job:
    """Submit one light job."""
    return site.submit(*ONE_RANK, "--template", str(template), *options, "--", "true", **kwargs)


def begin(site: Site, template: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    words = (*site.scheduler, *ONE_RANK, "--template", str(template), *options, "--", "true")
    return site.start("submit", *words, env=env)


def all_over(lab: Lab, seconds: float = 90) -> None:
    until(lambda: not lab.run(["squeue", "-h"]).stdout.strip(), seconds, lambda: lab.run(["squeue"]).stdout, pause=0.3)


def saved(lab: Lab) -> None:
    """Wait until what slurmctld knows now is on its disk."""
    time.sleep(0.01)  # mtimes are coarse
    since = time.time()
    (some,) = lab.run(["squeue", "-h", "-o", "%A"]).stdout.split()[:1]
    lab.run(["scontrol", "update", f"jobid={some}", "priority=4711"])  # it saves only after a change
    until(lambda: (lab.folder / "state" / "job_state").stat().st_mtime > since, 20, lambda: "slurmctld's state on disk")


# -- the controller fails while many submit --------------------------------------------------------------------------


def submit_under_faults(
    lab: Lab, site: Site, template: Path, make_fleet: Callable[..., Fleet], rng: random.Random, count: int, faults: int
) -> None:
    ctld = lab.daemon("slurmctld")
    kinds = (["freeze", "restart"] * faults)[:faults]
    rng.shuffle(kinds)
    at = sorted(rng.sample(range(1, count * 7 // 10), faults))
    fleet = make_fleet(site, template, {f"sweep,{i}": count // 4 for i in range(4)})
    began = time.monotonic()
    for kind, number in zip(kinds, at, strict=True):
        until(lambda n=number: fleet.begun > n, 120, lambda: f"only {fleet.begun} begun: {fleet.errors[-5:]}", 0.01)
        time.sleep(rng.random() * 0.1)
        assert fleet.busy, "the faults came too late"
        if kind == "freeze":
            ctld.stop()
            time.sleep(FROZEN)
            ctld.cont()
        else:
            ctld.restart()
    told = fleet.join(240)
    for one in told:
        if one.get("job_id") is None and "run_id" in one:  # honest: it could not be known then
            site.cli("submit", "--recover", one["run_id"])
            record = records.load(Path(one["run_dir"]))
            assert record is not None
            one["job_id"] = str(record.job_id)
    seconds = time.monotonic() - began
    all_over(lab)
    slurms = {name: ids for name, ids in held_by_slurm(lab).items() if name.startswith("sweep,")}
    known = {one["name"]: one["job_id"] for one in told if "name" in one}
    lost = [name for name in known if name not in slurms]
    doubled = [name for name, ids in slurms.items() if len(ids) > 1]
    wrong = [name for name, job in known.items() if name in slurms and job not in slurms[name]]
    unknown = [name for name in slurms if name not in known]
    print(f"{count} submissions, {', '.join(kinds)}, {seconds:.0f} s: {len(lost)} lost, {len(doubled)} doubled, "
          f"{len(wrong)} wrong ids, {len(unknown)} without a record; told: {fleet.heard()}")  # fmt: skip
    assert not [one for one in told if "name" not in one], fleet.errors
    assert len(known) == count and len(runs_of(site)) == count
    assert not lost and not doubled and not wrong and not unknown, (lost, doubled, wrong, unknown)
    ran = {path.parent.name: path.read_text().split() for path in site.project.glob(".clusterrun/runs/*/ran")}
    assert sorted(ran.values()) == sorted([job] for job in known.values()), "each ran once"
    states = site.json("list", "--all")
    assert {state["job_id"] for state in states} == set(known.values())
    assert {state["state"] for state in states} == {"COMPLETED"}


def test_a_frozen_and_a_restarted_controller_lose_and_double_nothing(
    fresh_lab: Lab, site: Site, template: Path, fleets: Callable[..., Fleet], rng: random.Random
) -> None:
    submit_under_faults(fresh_lab, site, template, fleets, rng, count=20, faults=2)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_hundred_submissions_under_nine_faults(
    fresh_lab: Lab, site: Site, template: Path, fleets: Callable[..., Fleet], rng: random.Random
) -> None:
    submit_under_faults(fresh_lab, site, template, fleets, rng, count=100, faults=9)


# -- one token, two jobs ---------------------------------------------------------------------------------------------


def test_of_twenty_tokens_submitted_twice_twenty_run(
    fresh_lab: Lab, site: Site, template: Path, fleets: Callable[..., Fleet]
) -> None:
    lab = fresh_lab
    first, held = (fleets(site, template, {"first": 10}), fleets(site, template, {"held": 10}, "--hold"))
    runs = {one["run_id"]: one for one in first.join(60) + held.join(60)}
    assert len(runs) == 20
    jobs = {}
    for run_id, one in runs.items():
        copy = lab.run(["sbatch", "--parsable", f"{one['run_dir']}/script.sh"], cwd=site.project, env=site.env)
        assert copy.returncode == 0, copy.stderr
        jobs[run_id] = (one["job_id"], copy.stdout.strip())
    # of the held ones the copy has run before the original may
    ran = lambda: list(site.project.glob(".clusterrun/runs/*/ran"))  # noqa: E731
    until(lambda: len(ran()) == 20, 60, lambda: f"{len(ran())} of 20 have run")
    for one in held.told:
        assert lab.run(["scontrol", "release", one["job_id"]]).returncode == 0
    all_over(lab)

    copies_that_ran = 0
    for run_id, pair in jobs.items():
        run_dir = Path(runs[run_id]["run_dir"])
        (winner,) = (run_dir / "ran").read_text().split()
        (loser,) = set(pair) - {winner}
        copies_that_ran += winner == pair[1]
        assert lab.job(winner)["ExitCode"] == "0:0"
        assert lab.job(loser)["ExitCode"] == "75:0"
        (attempt,) = (run_dir / "attempts").iterdir()
        assert json.loads((attempt / "end.json").read_text())["job"] == winner
        logs = site.project / "logs"
        assert (logs / f"train_{winner}.err").read_text() == (logs / f"train_{winner}.out").read_text() == ""
        assert f"job {winner} (restart 0) already runs {run_id}" in (logs / f"train_{loser}.err").read_text()
    assert 10 <= copies_that_ran < 20
    # the record follows the claim: a run is the job that ran, whichever id sbatch gave us
    for state in site.json("list", "--all"):
        run_dir = Path(runs[state["run_id"]]["run_dir"])
        assert state["job_id"] == (run_dir / "ran").read_text().strip()
        assert (state["state"], state["outcome"]) == ("COMPLETED", "done")

    # started again by Slurm, the owner runs again under its id and the other leaves again
    one = next(iter(jobs))
    run_dir = Path(runs[one]["run_dir"])
    (winner,) = (run_dir / "ran").read_text().split()
    for job in jobs[one]:
        assert lab.run(["scontrol", "requeue", job]).returncode == 0
    until(
        lambda: (run_dir / "ran").read_text().split() == [winner, winner], 60, lambda: "the requeued job's second run"
    )
    all_over(lab)
    assert (run_dir / "ran").read_text().split() == [winner, winner]
    assert site.state(winner)["restarts"] == 1


def test_a_script_run_by_hand_takes_nothing_from_its_job(fresh_lab: Lab, site: Site, template: Path) -> None:
    job = light(site, template, NEVER)
    for force, status in (("", 2), ("1", 0)):
        done = subprocess.run(
            ["bash", str(job.run_dir / "script.sh")], env=site.env | {"CLUSTERRUN_FORCE": force}, cwd=site.project,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
    assert not list((job.run_dir / "claims").iterdir())
    fresh_lab.run(["scontrol", "update", f"jobid={job.id}", "starttime=now"])
    assert site.wait_state(job, "COMPLETED")["job_id"] == job.id
    assert (job.run_dir / "ran").read_text().split() == [job.id]


# -- accepted, then lost with the controller -------------------------------------------------------------------------


def test_lost_jobs_are_told_as_lost_and_never_as_who_got_their_id(
    fresh_any_lab: Lab, new_site: MakeSite, template: Path
) -> None:
    lab, site = fresh_any_lab, new_site(fresh_any_lab)
    ctld = lab.daemon("slurmctld")
    running = light(site, template, "--setup", "sleep 600")
    waiting = light(site, template, NEVER)
    lab.wait_job(running.id, "RUNNING")
    saved(lab)
    site.env["PATH"] = wrap_sbatch(site.home, f'real "$@" && kill -9 {ctld.pid}', site.env["PATH"])
    fresh = [light(site, template, NEVER)]  # the controller dies as it answers
    ctld.start()
    site.env["PATH"] = site.env["PATH"].partition(":")[2]
    lost = [job for job in fresh if not lab.job(job.id)]
    assert lost, "slurmctld had saved the job within milliseconds"
    old = {job.id: job for job in lost}
    before = {job.id: job.run_dir.name for job in lost}

    # while its id is free, and after others got it
    for given_out in (False, True):
        if given_out:
            top = max(int(job.id) for job in lost)
            others: list[str] = []
            while not others or int(others[-1]) < top:
                argv = ["sbatch", "--parsable", "--output=/dev/null", "--job-name=other", "--wrap=exit 3"]
                others.append(lab.run(argv, env=site.env).stdout.strip())
            assert set(old) & set(others), "no id was given out twice"
            lab.wait_job(top, "FAILED")
        for job in lost:
            not_of_others(site, before[job.id])  # also as long as it is too early to call it lost
            age(job.run_dir, 20)
            assert not_of_others(site, before[job.id])["outcome"] == "lost"
            assert site.cli("status", before[job.id], status=75).stdout.count("(lost)") == 1
            assert not_of_others(site, job.id)["run_id"] == before[job.id]
        assert site.state(running)["state"] == "RUNNING"
        assert site.state(waiting)["state"] == "PENDING"
        lost_ones = dict.fromkeys(before.values(), "lost")
        listed = {state["run_id"]: state["outcome"] for state in site.json("list")}
        assert listed == {running.run_dir.name: "running", waiting.run_dir.name: "running"} | lost_ones


def test_an_id_given_to_a_second_run_leads_to_it_and_the_first_stays_lost(
    fresh_any_lab: Lab, new_site: MakeSite, template: Path
) -> None:
    lab, site = fresh_any_lab, new_site(fresh_any_lab)
    ctld = lab.daemon("slurmctld")
    path = site.env["PATH"]
    first = light(site, template, NEVER, env={"PATH": wrap_sbatch(site.home, f'real "$@" && kill -9 {ctld.pid}', path)})
    ctld.start()
    assert not lab.job(first.id), "slurmctld had saved the job within milliseconds"
    second = light(site, template)
    assert second.id == first.id, "the id was not given out again"
    lab.wait_job(second.id, "COMPLETED")
    state = site.state(second)
    assert (state["run_id"], state["state"]) == (second.run_dir.name, "COMPLETED")
    assert f"(older: {first.run_dir.name})" in site.cli("status", first.id).stderr
    age(first.run_dir, 20)
    assert not_of_others(site, first.run_dir.name)["outcome"] == "lost"
    lab.run(["scancel", second.id])
    assert "already over" in site.cli("cancel", second.id, status=None).stdout + site.cli("list").stderr


def age(run_dir: Path, seconds: int) -> None:
    """Let a submission be that much older."""
    (file,) = (run_dir / "submissions").glob("*.json")
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"at": data["at"] - seconds}))


def not_of_others(site: Site, which: str) -> dict[str, Any]:
    """A lost run's state, which must never be that of the job with its id."""
    state = site.state(which, status=75)
    assert state["state"] == "UNKNOWN" and state["outcome"] in ("unknown", "lost"), state
    assert not state["nodes"] and state["exit_status"] is None, state
    return state


# -- the controller is away ------------------------------------------------------------------------------------------


def plan(site: Site, template: Path, name: str) -> tuple[Cluster, Plan]:
    """A plan as the command line makes it, to be submitted with a clock of the test's own."""
    cluster = Cluster(cwd=site.project, environ=site.env)
    flags = {"scheduler": "slurm", "job-name": name, "template": str(template), "gpus-per-node": 0, "tasks-per-node": 1}
    made = cluster.plan(Asked(words=("true",), flags={k: Value(v, "test") for k, v in flags.items()}))
    store = cluster.store()
    store.prepare_logs(False)
    store.stage(made.record, made.spec_json(), made.script)
    return cluster, made


def impatient(lab: Lab, site: Site) -> None:
    """Let this site's Slurm commands wait 2 s for an answer instead of 10."""
    conf = site.home / "slurm.conf"
    conf.write_text(lab.conf.read_text() + "MessageTimeout=2\n")
    site.env["SLURM_CONF"] = str(conf)


def test_with_no_controller_nothing_is_submitted_then_or_later(fresh_lab: Lab, site: Site, template: Path) -> None:
    site.cli("list")  # the cluster is known
    impatient(fresh_lab, site)
    cluster, made = plan(site, template, "undelivered")
    fresh_lab.daemon("slurmctld").kill()
    said: list[str] = []
    with pytest.raises(NotDelivered, match="nothing was submitted") as caught:
        submission.submit(
            cluster.store(), cluster.scheduler("slurm"), made.record, made.order, tell=said.append, clock=fast(20)
        )
    assert "connect failure" in caught.value.said and "scontrol ping" in caught.value.hint
    assert "trying again" in said[0]
    assert not runs_of(site)
    fresh_lab.daemon("slurmctld").start()
    assert not [name for name in held_by_slurm(fresh_lab) if name.startswith("undelivered.")]


def test_with_a_silent_controller_it_is_not_known_and_recover_settles_it(
    fresh_lab: Lab, site: Site, template: Path
) -> None:
    site.cli("list")
    impatient(fresh_lab, site)
    cluster, made = plan(site, template, "silent")
    ctld = fresh_lab.daemon("slurmctld")
    ctld.stop()
    with pytest.raises(Ambiguous, match="not known whether") as caught:
        submission.submit(
            cluster.store(), cluster.scheduler("slurm"), made.record, made.order, tell=str, clock=fast(20)
        )
    assert caught.value.hint == f"settle it later: clusterrun submit --recover {made.record.run_id}"
    ctld.cont()
    ctld.wait_ready()
    data = site.json("submit", "--recover", made.record.run_id, env={"SLURM_CONF": str(fresh_lab.conf)})
    name = f"silent.{made.order.token[:8]}"
    until(
        lambda: held_by_slurm(fresh_lab).get(name) == [data["job_id"]], 20, lambda: str(held_by_slurm(fresh_lab)), 0.5
    )
    assert site.json("submit", "--recover", made.record.run_id)["job_id"] == data["job_id"], "settled is settled"


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_the_limits_of_the_command_line_when_the_controller_is_away(
    fresh_lab: Lab, fresh_lab_no_accounting: Lab, new_site: MakeSite, template: Path
) -> None:
    dead, silent = new_site(fresh_lab), new_site(fresh_lab_no_accounting)
    for one in (dead, silent):
        one.cli("list")
    fresh_lab.daemon("slurmctld").kill()
    fresh_lab_no_accounting.daemon("slurmctld").stop()
    began = time.monotonic()
    undelivered = begin(dead, template, "--job-name", "undelivered")
    ambiguous = begin(silent, template, "--job-name", "silent")
    said, _ = undelivered.communicate(timeout=200)
    took = time.monotonic() - began
    assert (undelivered.returncode, took < 150) == (3, True), (took, said)
    assert "nothing was submitted" in said and said.count("connect failure") == 1 and "hint: " in said
    assert not runs_of(dead)
    said, _ = ambiguous.communicate(timeout=200)
    took = time.monotonic() - began
    (run,) = runs_of(silent)
    assert (ambiguous.returncode, took < 180) == (75, True), (took, said)
    assert f"clusterrun submit --recover {run.name}" in said
    fresh_lab.daemon("slurmctld").start()
    fresh_lab_no_accounting.daemon("slurmctld").cont()
    fresh_lab_no_accounting.daemon("slurmctld").wait_ready()
    job = silent.json("submit", "--recover", run.name)["job_id"]
    (name,) = (name for name in held_by_slurm(fresh_lab_no_accounting) if name.startswith("silent."))
    assert held_by_slurm(fresh_lab_no_accounting)[name] == [job]
    assert not [name for name in held_by_slurm(fresh_lab) if name.startswith("undelivered.")]


# -- clusterrun itself is killed -------------------------------------------------------------------------------------


def test_killed_before_sbatch_it_is_told_and_recover_submits_once(fresh_lab: Lab, site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, "kill -9 $PPID; exit 1", site.env["PATH"])
    dying = begin(site, template, "--job-name", "before", env={"PATH": path})
    dying.communicate(timeout=60)
    assert dying.returncode == -signal.SIGKILL
    (run,) = runs_of(site)
    (state,) = site.json("list")
    assert (state["job_id"], state["run_id"], state["outcome"]) == (None, run.name, "unknown")
    assert f"submit --recover {run.name}" in state["reason"]
    # nobody can be at it a minute later
    age(run, 100)
    (state,) = site.json("status", run.name, status=75)
    assert state["reason"].startswith("never submitted")
    job = site.json("submit", "--recover", run.name)["job_id"]
    site.wait_state(job, "COMPLETED")
    assert [ids for name, ids in held_by_slurm(fresh_lab).items() if name.startswith("before.")] == [[job]]


def test_killed_after_sbatch_the_next_command_adopts_the_job(fresh_lab: Lab, site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, 'real "$@" >"$HOME/id" && kill -9 $PPID', site.env["PATH"])
    for name, options in (("ran", ()), ("waits", (NEVER,))):
        dying = begin(site, template, "--job-name", name, *options, env={"PATH": path})
        dying.communicate(timeout=60)
        assert dying.returncode == -signal.SIGKILL
        job = (site.home / "id").read_text().strip()
        run = runs_of(site)[-1]
        known = records.load(run)
        assert known is not None and known.job_id is None
        (state,) = (s for s in site.json("list", "--all") if s["run_id"] == run.name)
        assert state["job_id"] == job and state["outcome"] in ("running", "done")
        assert site.state(job)["run_id"] == run.name
        assert [ids for held, ids in held_by_slurm(fresh_lab).items() if held.startswith(f"{name}.")] == [[job]]


def test_killed_while_sbatch_waits_for_a_frozen_controller(fresh_lab: Lab, site: Site, template: Path) -> None:
    site.cli("list")
    ctld = fresh_lab.daemon("slurmctld")
    path = wrap_sbatch(site.home, 'echo $$ >"$HOME/pid"; real "$@"', site.env["PATH"])
    ctld.stop()
    dying = begin(site, template, "--job-name", "during", env={"PATH": path})
    until((site.home / "pid").exists, 30, lambda: "sbatch")
    time.sleep(1.0)  # the request is on its way
    dying.kill()
    dying.communicate(timeout=10)
    ctld.cont()
    ctld.wait_ready()
    (run,) = runs_of(site)
    state = until(lambda: next((s for s in site.json("list", "--all") if s["job_id"]), None), 30, lambda: "its job")
    assert state["run_id"] == run.name
    name = re.compile(r"during\.")
    assert [ids for held, ids in held_by_slurm(fresh_lab).items() if name.match(held)] == [[state["job_id"]]]


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_killed_at_any_moment(fresh_lab: Lab, site: Site, template: Path, rng: random.Random) -> None:
    began = time.monotonic()
    light(site, template)
    whole = time.monotonic() - began
    for number in range(20):
        dying = begin(site, template, "--job-name", f"kill,{number}")
        time.sleep(rng.uniform(0.3, 1.1) * whole)
        dying.kill()
        dying.communicate(timeout=10)
    time.sleep(2)  # an orphaned sbatch needs no longer
    states = [s for s in site.json("list", "--all") if s["name"].startswith("kill,")]
    cut = [s["run_id"] for s in states if s["job_id"] is None]
    for run_id in cut:
        site.cli("submit", "--recover", run_id)
    all_over(fresh_lab)
    states = [s for s in site.json("list", "--all") if s["name"].startswith("kill,")]
    slurms = {n.rpartition(".")[0]: ids for n, ids in held_by_slurm(fresh_lab).items() if n.startswith("kill,")}
    print(f"killed 20: {len(states)} left a record, {len(cut)} of them had not been sent, {len(slurms)} jobs")
    assert {s["name"]: [s["job_id"]] for s in states} == slurms
    assert {s["state"] for s in states} == {"COMPLETED"}


# -- the rest --------------------------------------------------------------------------------------------------------


def test_ctrl_c_waits_for_the_answer_and_leaves_the_job(fresh_lab: Lab, site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, 'kill -INT $PPID; sleep 0.5; kill -INT $PPID; real "$@"', site.env["PATH"])
    pressed = begin(site, template, NEVER, env={"PATH": path})
    said, _ = pressed.communicate(timeout=60)
    assert pressed.returncode == 130, said
    job = re.search(r"^Submitted job (\d+) ", said, re.MULTILINE)
    assert job and "Traceback" not in said, said
    assert fresh_lab.job(job[1])["JobState"] == "PENDING"
    assert site.state(job[1])["run_id"] == runs_of(site)[0].name


def test_ctrl_c_after_a_moment_leaves_a_submission_that_can_be_settled(site: Site, template: Path) -> None:
    path = wrap_sbatch(site.home, "kill -INT $PPID; sleep 3; kill -INT $PPID; sleep 30", site.env["PATH"])
    pressed = begin(site, template, NEVER, env={"PATH": path})
    said, _ = pressed.communicate(timeout=25)
    assert pressed.returncode == 130, said
    run_id = runs_of(site)[0].name
    assert f"clusterrun submit --recover {run_id}" in said and "Traceback" not in said, said
    site.cli("submit", "--recover", run_id)
    assert site.state(run_id)["state"] == "PENDING"


def test_asking_works_while_accounting_is_down(fresh_lab: Lab, site: Site, template: Path) -> None:
    lab = fresh_lab
    done, gone, waits = (light(site, template), light(site, template, NEVER), light(site, template, NEVER))
    site.wait_state(done, "COMPLETED")
    lab.daemon("slurmdbd").kill()
    new = light(site, template, NEVER)
    lab.run(["scancel", gone.id])
    listed = {state["job_id"]: state["state"] for state in site.json("list", "--all")}
    assert listed == {done.id: "COMPLETED", gone.id: "CANCELLED", waits.id: "PENDING", new.id: "PENDING"}
    assert [site.state(job)["state"] for job in (done, waits, new)] == ["COMPLETED", "PENDING", "PENDING"]
