"""`logs` on a real cluster: every job is followed to a true end, and told the right sentence.

All jobs are submitted and followed at once, before the first test.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, ONE_RANK, Job, Site, until
from tests.support.submit_tools import age

MakeSite = Callable[[Lab | None], Site]
HOLD = "--sbatch-arg=--hold"


@dataclass
class Followed:
    """`logs -f` of a job, its two streams in files."""

    job: str
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def shows(self, text: str, seconds: float = 60) -> None:
        """Wait until a text has been shown."""
        until(lambda: text in self.out.read_text() + self.err.read_text(), seconds, lambda: f"{text!r}: {self.told}")

    @property
    def told(self) -> str:
        return f"{self.out.read_text()}\n--\n{self.err.read_text()}"

    def ends(self, status: int) -> str:
        """Wait until it exits with this status; what it said beside the log."""
        until(lambda: self.process.poll() is not None, 150, lambda: f"it follows on: {self.told}")
        assert self.process.returncode == status, self.told
        return self.err.read_text()


def follow(site: Site, job: str, *words: str) -> Followed:
    name = f"{job}-{len(list(site.home.iterdir()))}"
    out, err = site.home / f"{name}.out", site.home / f"{name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [*CLUSTERRUN, "logs", job, "-f", *words], cwd=site.project, env=site.env,
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        )  # fmt: skip
    return Followed(job, process, out, err)


def sbatch(site: Site, *words: str) -> str:
    """A job of another tool."""
    done = subprocess.run(
        ["sbatch", "--parsable", *words], cwd=site.project, env=site.env, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def script(site: Site, text: str) -> str:
    path = site.project / "work.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def lost(site: Site, like: Job) -> str:
    """A run that a scheduler took once and that nobody knows any more."""
    run_dir = like.run_dir.with_name(f"{like.run_dir.name[:-6]}zzzzzz")
    shutil.copytree(like.run_dir, run_dir)
    record = json.loads((run_dir / "record.json").read_text())
    (run_dir / "record.json").write_text(json.dumps(record | {"run_id": run_dir.name}))
    (file,) = (run_dir / "submissions").glob("*.json")
    data = json.loads(file.read_text())
    file.unlink()
    token = "z" * len(data["token"])
    (run_dir / "submissions" / f"{token}.json").write_text(json.dumps(data | {"token": token, "job_id": "999999"}))
    age(run_dir, 3600)
    return run_dir.name


class Scene:
    """The jobs, by what becomes of them, and those who follow them."""

    def __init__(self, lab: Lab, new_site: MakeSite) -> None:
        self.lab, self.site, self.bare, self.unwritable = lab, new_site(lab), new_site(lab), new_site(lab)
        self.by: dict[str, Followed] = {}
        self.jobs: dict[str, Job] = {}
        held = self.jobs["held"] = self.site.submit(*ONE_RANK, HOLD, "--", "true")
        self.by["lost"] = follow(self.site, lost(self.site, held))
        self.by["held"] = follow(self.site, held.id)
        no_folder = self.unwritable.submit(*ONE_RANK, HOLD, "--", "true")
        shutil.rmtree(self.unwritable.project / "logs")
        # newer versions make a folder that is missing: this name is taken, and leads nowhere
        (self.unwritable.project / "logs").symlink_to(self.unwritable.home / "gone" / "logs")
        lab.run(["scontrol", "release", no_folder.id])
        self.by["launch"] = follow(self.unwritable, no_folder.id)
        each = 'for i in 1 2 3; do echo "step $i"; sleep 0.2; done; exit $((SLURM_ARRAY_TASK_ID == 7))'
        self.by["array"] = follow(self.site, sbatch(self.site, "--array=0-19", "-o", "a-%A_%a.log", "--wrap", each))
        wrap = "echo hello; echo beware >&2; sleep 1; echo bye"
        theirs = sbatch(self.site, "--output=o-%x-%j.log", "--error=e-%N.log", "--job-name=t", "--wrap", wrap)
        self.by["theirs"] = follow(self.site, theirs)
        work = script(self.bare, "echo one; while [ ! -e go ]; do sleep 0.1; done; echo two")
        self.jobs["removed"] = self.bare.submit(*ONE_RANK, "--", work)
        self.by["removed"] = follow(self.bare, self.jobs["removed"].id)
        first = 'echo "start $SLURM_RESTART_COUNT"; [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || exec sleep 600'
        self.jobs["requeued"] = self.site.submit(*ONE_RANK, "--requeue", "--", script(self.site, first))
        self.by["requeued"] = follow(self.site, self.jobs["requeued"].id)


@pytest.fixture(scope="module")
def scene(lab: Lab, new_site: MakeSite) -> Iterator[Scene]:
    made = Scene(lab, new_site)
    yield made
    for one in made.by.values():
        one.process.kill()
        one.process.wait()


def test_following_is_interrupted_and_the_job_is_left_alone(scene: Scene) -> None:
    job = scene.jobs["requeued"]
    scene.by["requeued"].shows("start")
    mine = follow(scene.site, job.id)
    mine.shows("start")
    mine.process.send_signal(signal.SIGINT)
    assert f"job {job.id} was not cancelled" in mine.ends(130)
    assert scene.site.state(job)["state"] == "RUNNING"


def test_a_requeued_job_is_followed_through_its_second_start(scene: Scene) -> None:
    job, one = scene.jobs["requeued"], scene.by["requeued"]
    scene.site.wait_joined(job)
    assert scene.lab.run(["scontrol", "requeue", job.id]).returncode == 0
    told = one.ends(0)
    lines = one.out.read_text().splitlines()
    starts = [line for line in lines if re.fullmatch(r"0: start \d*", line)]
    assert len(starts) == 2 and starts[-1] == "0: start 1"
    assert len(re.findall(r"attempt 1 \(requeued at \d\d:\d\d:\d\d\)", told)) == 1
    assert told.rstrip().splitlines()[-1].endswith("COMPLETED")


def test_a_log_whose_folder_is_removed_is_followed_to_the_jobs_end(scene: Scene) -> None:
    one = scene.by["removed"]
    one.shows("0: one")
    shutil.rmtree(scene.bare.project / "logs")
    one.shows("was removed")
    (scene.bare.project / "go").touch()
    told = one.ends(0)
    assert "the log was removed" in told and "COMPLETED" in told


def test_another_tools_job_is_followed_in_both_its_files(scene: Scene) -> None:
    one = scene.by["theirs"]
    one.ends(0)
    assert sorted(one.out.read_text().splitlines()) == ["! beware", "bye", "hello"]


def test_an_array_is_followed_to_the_end_of_every_task(scene: Scene) -> None:
    one = scene.by["array"]
    told = one.ends(1)
    lines = one.out.read_text().splitlines()
    for task in range(20):
        mine = [line for line in lines if line.startswith(f"{one.job}_{task} ")]
        assert mine == [f"{one.job}_{task} step {i}" for i in (1, 2, 3)]
    assert len(lines) == 60 and "19 COMPLETED, 1 FAILED" in told


def test_a_task_of_an_array_is_read_alone(scene: Scene) -> None:
    array = scene.by["array"]
    array.ends(1)
    shown = scene.site.cli("logs", f"{array.job}_7").stdout
    assert shown == "step 1\nstep 2\nstep 3\n"


def test_a_job_that_never_starts_is_followed_to_its_cancel(scene: Scene) -> None:
    one = scene.by["held"]
    one.shows("PENDING JobHeldUser: ")
    scene.site.cli("cancel", one.job)
    told = one.ends(1)
    assert "never started, so it has no log" in told and "CANCELLED" in told
    assert Counter(line for line in told.splitlines() if "PENDING" in line).most_common(1)[0][1] == 1


def test_a_job_that_could_not_open_its_logs_is_told_so(scene: Scene) -> None:
    told = scene.by["launch"].ends(1)
    # Slurm forgets the exit code 0:53 after MinJobAge; its reason in the queue remains
    assert "failed before its script began: Slurm could not" in told and "missing, full or not writable" in told
    assert "0:53" in told or "JobLaunchFailure" in told


def test_a_lost_job_is_not_known_to_have_ended(scene: Scene) -> None:
    assert "lost" in scene.by["lost"].ends(75)


def test_a_reader_that_leaves_early_is_no_error(scene: Scene) -> None:
    array = scene.by["array"]
    array.ends(1)
    command = f"{CLUSTERRUN[0]} logs {array.job} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=scene.site.project, env=scene.site.env,
                          text=True, capture_output=True)  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


def test_the_clock_beside_the_job_tells_since_when(scene: Scene) -> None:
    job = scene.jobs["requeued"]
    scene.by["requeued"].ends(0)
    clocks = [(folder / "log-clock").read_text() for folder in job.attempts()]
    assert len(clocks) == 2 and all(clocks)
    last = clocks[-1].split()[-2:]
    assert int(last[0]) <= job.out.stat().st_size and 0 < int(last[1]) <= job.err.stat().st_size
    assert "start 1" in scene.site.cli("logs", job.id, "--since", "10m").stdout
    assert scene.site.cli("logs", job.id, "--since", "2100-01-01").stdout == ""


def test_it_can_be_read_when_the_controller_has_forgotten_it(scene: Scene) -> None:
    job = scene.by["theirs"].job
    scene.by["theirs"].ends(0)
    scene.lab.forget_ended()
    assert not scene.lab.job(job)
    assert scene.site.cli("logs", job, "--stream", "out").stdout == "hello\nbye\n"
