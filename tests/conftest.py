"""For every test: a state folder of its own, nothing of a Slurm session around it, and the lab for who asks."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from clusterrun.preflight import checks
from lab.cluster import Lab
from tests.support.command_desk import Desk
from tests.support.installed_command import Site
from tests.support.lm_runs import undisturbed_weights
from tests.support.patience import HUNG

pytest_plugins = ["lab.fixtures", "tests.support.faults_table"]

# CI runs the same examples every time; new random examples are for people at work. No example has a deadline: a busy
# machine is slow.
hypothesis.settings.register_profile("work", deadline=None)
hypothesis.settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None)
usual = "ci" if os.environ.get("CI") == "true" else "work"
hypothesis.settings.load_profile(usual)
# `make check` and `make test` try a seventh of the examples, `make faults` all; a test that wants more says how many
# times as many.
hypothesis.settings.register_profile("check", hypothesis.settings.get_profile(usual), max_examples=15)

# A script's background commands ignore Ctrl-C, and so would every program that a test means to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers and ranks that compute side by side, each with a thread per core, wait for each other in loops: a training of
# a second takes ten. Read when torch is imported, and by the jobs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Folders whose files stay together in one worker, as they share processes that take seconds to start.
TOGETHER = ("tests/integration", "tests/security")
#: What takes a minute in one worker: begun first, so that no worker is alone with it at the end. What waits and what
#: computes take turns.
LONG = (
    "slurm/test_lost_nodes.py", "security", "integration", "conformance/test_launchers.py", "slurm/test_ends.py",
    "lab/test_faults.py", "conformance/test_restarts.py", "process/test_script.py",
    "slurm/test_check.py", "conformance/test_launched_scripts.py", "slurm/test_chains.py", "worker/test_watchdog.py",
    "conformance/test_resume.py", "slurm/test_list.py",
    "local/test_separate_ranks.py", "slurm/test_why_ended.py", "lab/test_life.py", "process/test_shared_answers.py",
    "slurm/test_lost_supervisor.py", "slurm/test_training.py", "slurm/test_tutorial.py",
    "local/test_training.py", "slurm/test_submit_killed.py", "local/test_plan_measure.py", "slurm/test_stage_env.py",
)  # fmt: skip
TESTS = Path(__file__).parent


FOUND_S = 120.0  # that the other workers wait for the first


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """The first worker finds the tests before the others do: it compiles them, which each would do otherwise."""
    worker = getattr(session.config, "workerinput", {"workerid": "", "testrunuid": ""})
    found = Path(tempfile.gettempdir(), f"clusterrun-tests-found-{worker['testrunuid']}")
    deadline = time.monotonic() + FOUND_S
    while worker["workerid"] not in ("", "gw0") and not found.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        return (yield)
    finally:
        if worker["workerid"] == "gw0":
            found.touch()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if uid := getattr(session.config, "workerinput", {}).get("testrunuid"):
        Path(tempfile.gettempdir(), f"clusterrun-tests-found-{uid}").unlink(missing_ok=True)


gc.disable()  # the tests' modules stay: collecting garbage meanwhile is a fifth of the time of finding them


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000)  # the default of 700 is a twentieth of the unit tests' time
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {TESTS / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: min(place.get(path, len(LONG)) for path in (item.path, item.path.parent)))


class ByFile(LoadFileScheduling):
    """The tests of a file go to one worker, and so do those of a folder of TOGETHER."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(f"{folder}/")), super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile | None:
    return ByFile(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the records of the user who runs it, or believes that it runs inside a job."""
    for name in os.environ:
        if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "CLUSTERRUN_")) and name not in OF_THE_LAB:
            monkeypatch.delenv(name)
    # a folder below one of the session: pytest's own numbering reads all names given before
    states = tmp_path_factory.getbasetemp() / "states"
    states.mkdir(exist_ok=True)
    monkeypatch.setenv("CLUSTERRUN_STATE", tempfile.mkdtemp(dir=states))


OF_THE_LAB = ("CLUSTERRUN_LAB_REUSE", "CLUSTERRUN_LAB_SLURM")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Desk:
    """A project folder, stand-ins for Slurm's commands, which a busy machine runs slowly, and the command line."""
    monkeypatch.setattr(checks, "LIMIT", HUNG)
    return Desk(tmp_path, monkeypatch, capfd)


@pytest.fixture(scope="module")
def new_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Lab | None], Site]]:
    """Make a user with an empty project, on a lab or (None) this machine; what runs at the end is cancelled."""
    made: list[Site] = []

    def make(lab: Lab | None) -> Site:
        folder: Path = tmp_path_factory.mktemp("site")
        made.append(Site(folder, lab))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture(scope="module")
def undisturbed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of `lm_runs.lm` after STEPS, trained once per session: the scheduler changes no bit of them."""
    own = tmp_path_factory.getbasetemp()
    return undisturbed_weights(site, own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)
