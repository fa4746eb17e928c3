"""`why` names what ended a job: one job for each planted cause, all at once, each looked at when it is over.

The time limit is in test_ends.py, whose job waits for one anyway.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import SCRIPTS, Job, Site, until
from tests.support.patience import HUNG

SCRIPT = "fails_as.py"
SLEEPS = str(SCRIPTS / "sleeps.sh")
PORT = 29_511


class Planted:
    """The jobs, by the cause that was planted; the last node is cut off from the others."""

    def __init__(self, lab: Lab, site: Site) -> None:
        self.lab, self.site = lab, site
        self.cut = lab.node_names[3]
        self._two = ("--nodes", "2", "--gpus-per-node", "1", "--exclude", self.cut)
        one = ("--exclude", self.cut)
        self.holder = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{lab.node_names[0]}", sys.executable, "-c", HOLDS, str(PORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout and self.holder.stdout.readline()
        self.jobs = {
            "lost node": site.submit(
                "--nodes",
                "2",
                "--gpus-per-node",
                "1",
                "--nodelist",
                f"{lab.node_names[2]},{self.cut}",
                "--no-requeue",
                "--",
                SLEEPS,
            ),
            "scancel": site.rank("sleeps.sh", *one),
            "stopped": self._pair("stopped", "1", "--pg-timeout", "20"),
            "killed": self._pair("killed", "1"),
            "exception": self._pair("exception", "1"),
            "cuda memory": self._pair("cuda-memory", "1"),
            "host memory": site.rank(SCRIPT, *one, arguments=["host-memory"]),
            "crash": site.rank(SCRIPT, *one, arguments=["crash"]),
            "import": site.rank(SCRIPT, *one, arguments=["import"]),
            "disk": site.rank(SCRIPT, *one, arguments=["disk"]),
            "port": site.rank("says_hello.sh", "--nodelist", lab.node_names[0], "--master-port", str(PORT)),
            "setup": site.rank("says_hello.sh", *one, "--setup", "true", "--setup", "module_that_is_not load cuda"),
        }

    def _script(self, *arguments: str) -> list[str]:
        return [str(SCRIPTS / SCRIPT), *arguments]

    def _pair(self, way: str, rank: str, *options: str) -> Job:
        return self.site.submit(*self._two, *options, "--", *self._script(way, rank))

    def interrupt(self) -> None:
        """What somebody else does to the jobs once they are at work."""
        self.site.wait_joined(self.jobs["lost node"])
        self.lab.cut_link(self.cut)
        self.site.wait_joined(self.jobs["scancel"])
        self.lab.run(["scancel", self.jobs["scancel"].id])

    def why(self, name: str) -> dict[str, Any]:
        """What `why --json` says once the job is over."""
        job = self.jobs[name]
        over = ("FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "COMPLETED")

        def is_over() -> bool:  # Slurm says so, or has forgotten it
            return self.lab.job(job.id).get("JobState", "FAILED") in over

        until(is_over, 150, lambda: f"the end of {name}", pause=0.3)
        (told,) = self.site.json("why", job.id)
        assert told["kind"] == "ended", told
        print(self.site.cli("why", job.id).stdout)
        return dict(told["ended"])

    def close(self) -> None:
        assert self.holder.stdin
        self.holder.stdin.close()
        self.holder.wait(HUNG)
        self.lab.reset()


HOLDS = """
import socket, sys
held = socket.socket()
held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
held.bind(("0.0.0.0", int(sys.argv[1])))
held.listen()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def planted(lab: Lab, new_site: Callable[[Lab | None], Site]) -> Iterator[Planted]:
    made = Planted(lab, new_site(lab))
    made.interrupt()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "kind", "rank", "words"),
    [
        ("setup", "setup", None, "module_that_is_not load cuda"),
        ("port", "address-in-use", None, f"port {PORT}"),
        ("import", "import-error", 0, "no_such_module_anywhere"),
        ("disk", "disk-full", 0, "a disk is full"),
        ("crash", "crashed", 0, "Segmentation fault"),
        ("host memory", "host-memory", 0, "could not allocate host memory"),
        ("cuda memory", "cuda-memory", 1, "tried to allocate 2.00 GiB on GPU 0, with 1.01 GiB of 79.11 GiB free"),
        ("exception", "exception", 1, "the batch has 7 rows, not 8"),
        ("killed", "killed", 1, "SIGKILL"),
        ("stopped", "collective-timeout", 1, "rank 1 on"),
        ("scancel", "cancelled", None, "cancelled"),
    ],
)
def test_why_names_the_planted_cause(planted: Planted, name: str, kind: str, rank: int | None, words: str) -> None:
    told = planted.why(name)
    assert (told["kind"], told["rank"]) == (kind, rank), told
    assert words in told["cause"], told
    assert told["evidence"], "with the line that shows it"


def test_exception_is_named_with_file_and_line(planted: Planted) -> None:
    told = planted.why("exception")
    file, _, line = told["place"].rpartition(":")
    assert file.endswith(SCRIPT)
    with open(file) as source:
        assert "raise ValueError" in source.read().splitlines()[int(line) - 1]
    nodes = {rank["rank"]: rank["node"] for rank in (planted.jobs["exception"].start() or {})["ranks"]}
    assert told["node"] == nodes[1]


def test_lost_node_is_named(planted: Planted) -> None:
    told = planted.why("lost node")
    assert (told["kind"], told["node"]) == ("node-failure", planted.cut), told
    assert planted.cut in told["cause"]


def test_job_of_another_tool_is_explained_by_its_log(planted: Planted) -> None:
    site, lab = planted.site, planted.lab
    script = site.project / "theirs.sh"
    script.write_text("#!/bin/bash\nsrun --label python3 -c 'import no_such_module_anywhere'\n")
    job = lab.run(
        ["sbatch", "--parsable", "--exclude", planted.cut, "--ntasks=2", str(script)], cwd=site.project
    ).stdout.strip()
    lab.wait_job(job, "FAILED")
    (told,) = site.json("why", job)
    assert (told["run_id"], told["ended"]["kind"]) == (None, "import-error"), told
    assert told["ended"]["evidence"][0]["file"].endswith(f"slurm-{job}.out")


def test_why_works_on_a_folder_of_logs(planted: Planted) -> None:
    job = planted.jobs["exception"]
    planted.why("exception")
    folder = planted.site.home / "copied"
    folder.mkdir()
    for path in (job.out, job.err):
        (folder / path.name).write_bytes(path.read_bytes())
    (told,) = json.loads(planted.site.cli("why", "--json", "--logs", str(folder)).stdout)["data"]
    assert (told["ended"]["kind"], told["ended"]["rank"]) == ("exception", 1), told
