"""The live view on a real cluster: a real terminal, jobs that are held and released, and what it asks slurmctld."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.cluster import Cluster
from clusterrun.state.reconcile import RunState
from clusterrun.top.source import TopData
from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, Job, Site, until

NEVER = "--sbatch-arg=--begin=now+1hour"
ESCAPES = re.compile(r"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_=>]|\x1bP[^\x1b]*\x1b\\")


@pytest.fixture(scope="module")
def waiting(site: Site) -> Job:
    return site.rank("sleeps.sh", NEVER, "--job-name", "waits")


@pytest.fixture(scope="module")
def running(site: Site) -> Job:
    return site.rank("sleeps.sh", "--job-name", "runs")


class Terminal:
    """A real terminal of 100 × 30 with a program on it; `seen` is what it drew, without the escape sequences."""

    def __init__(self, site: Site, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            [*CLUSTERRUN, *words], cwd=site.project, env={**site.env, "TERM": "xterm-256color", "COLUMNS": "100"},
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.raw = b""

    @property
    def seen(self) -> str:
        while select.select([self._master], [], [], 0)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                break
            if not data:
                break
            self.raw += data
        return ESCAPES.sub("", self.raw.decode(errors="replace"))

    def wait_for(self, text: str, seconds: float = 30) -> None:
        until(lambda: text in self.seen, seconds, lambda: f"{text!r} in\n{self.seen[-3000:]}")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> int:
        until(lambda: self.seen and self.process.poll() is not None, 20, lambda: "it has not left")
        assert self.seen  # its last words
        os.close(self._master)
        return self.process.wait()


def mine(source: TopData, job: Job) -> RunState:
    return next(state for state in source.jobs().states if str(state.status.id) == job.id)


def test_a_waiting_job_is_held_released_and_cancelled_and_a_running_one_is_not_held(
    lab: Lab, site: Site, waiting: Job, running: Job
) -> None:
    source = TopData(Cluster(cwd=site.project, environ=site.env))
    assert source.hold(mine(source, waiting)) == f"held {waiting.id}"
    state = mine(source, waiting)
    assert "JobHeld" in state.status.reason
    assert source.hold(state) == f"released {waiting.id}"
    assert "JobHeld" not in mine(source, waiting).status.reason
    site.wait_state(running, "RUNNING")
    with pytest.raises(RequestError, match="only a pending job can be held"):
        source.hold(mine(source, running))
    assert "Held" not in lab.run(["squeue", "-h", "-j", running.id, "-o", "%r"]).stdout


def test_a_screen_with_everything_costs_one_squeue(site: Site, waiting: Job, running: Job) -> None:
    cluster = Cluster(cwd=site.project, environ=site.env)
    source = TopData(cluster)
    states = source.jobs().states
    for state in states:
        source.ranks(state)
    assert len(states) >= 2 and all(state.record is not None for state in states)
    assert cluster.scheduler("slurm").calls == {"squeue": 1}  # type: ignore[attr-defined]


def test_a_job_is_explained_as_why_does(site: Site, waiting: Job) -> None:
    source = TopData(Cluster(cwd=site.project, environ=site.env))

    def lines() -> str:
        return "\n".join(source.explain(mine(source, waiting)))

    # until Slurm has considered the job, squeue shows no reason
    until(lambda: "BeginTime" in lines(), 60, lines)
    assert "PENDING" in lines() and "means" in lines()


def test_top_on_a_terminal_shows_the_job_its_ranks_and_its_log_and_cancels_what_is_asked(
    site: Site, waiting: Job, running: Job
) -> None:
    site.wait_joined(running)
    terminal = Terminal(site, "top", running.id)
    try:
        for text in (f"{running.id} runs: ", "script", "Cancel"):
            terminal.wait_for(text)
        terminal.press("\x1b")
        terminal.wait_for("waits")
        terminal.press("c")
        terminal.wait_for("y/n")
        terminal.press("y")
        terminal.wait_for(f"cancelled {running.id}", 60)
        terminal.press("q")
        assert terminal.close() == 0
    finally:
        terminal.process.kill()
    assert site.wait_end(running)["status"] == 143
    assert site.state(waiting)["state"] == "PENDING"
    assert b"Traceback" not in terminal.raw


def test_top_leaves_the_terminal_and_the_jobs_alone_on_ctrl_c(site: Site, waiting: Job) -> None:
    terminal = Terminal(site, "top")
    try:
        terminal.wait_for("waits")
        terminal.press("\x03")
        assert terminal.close() == 130
    finally:
        terminal.process.kill()
    assert b"\x1b[?1049h" in terminal.raw and b"\x1b[?1049l" in terminal.raw  # its own screen, given back
    assert site.state(waiting)["state"] == "PENDING"
