"""The real command line as a user has it: a shell, a home and a project folder, on a lab or on this machine alone."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from tests.support.patience import PATIENCE, until
from tests.support.warm_programs import COMMANDS, WarmPrograms

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "data" / "scripts"
ALLREDUCE = ROOT / "tests" / "data" / "allreduce.py"
CLUSTERRUN = [str(Path(sys.executable).with_name("clusterrun"))]  # the console script of the environment under test
ONE_RANK = ("--gpus-per-node", "0", "--tasks-per-node", "1")

# What a shell keeps from us: no setting of the user who runs the tests, no variable of a job around them.
_OTHERS = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "CLUSTERRUN_", "XDG_")


@dataclass(frozen=True)
class Job:
    """A submitted job by what `submit --json` said of it."""

    id: str
    run_dir: Path
    out: Path
    err: Path

    def attempts(self) -> list[Path]:
        """The attempt folders, oldest first: they end with the numbers of the start and of the launch."""
        found = (self.run_dir / "attempts").glob("*")
        return sorted(found, key=lambda path: [(len(part), part) for part in path.name.split(".")])

    def start(self) -> dict[str, Any] | None:
        """What rank 0 of the newest attempt wrote once all ranks had joined; None until then."""
        folders = self.attempts()
        return read_json(folders[-1] / "start.json") if folders else None

    def end(self) -> dict[str, Any] | None:
        """The newest attempt's end record; None until it is there."""
        folders = self.attempts()
        return read_json(folders[-1] / "end.json") if folders else None

    def pid(self, rank: int) -> int:
        """The pid of a rank of the newest attempt, whose ranks have joined."""
        (pid,) = [entry["pid"] for entry in (self.start() or {"ranks": ()})["ranks"] if entry["rank"] == rank]
        return int(pid)

    def wait_change(self, seconds: float) -> None:
        """Wait until the job has begun an attempt or left an end record, but no longer than so many seconds."""
        deadline, before = time.monotonic() + seconds, (len(self.attempts()), self.end())
        while time.monotonic() < deadline and (len(self.attempts()), self.end()) == before:
            time.sleep(0.05)


@functools.cache
def warm_commands() -> WarmPrograms:
    """The process that is forked for each command; it ends with this one."""
    return WarmPrograms(*COMMANDS)


class Site:
    """One user: `cli` types a command, `submit` makes a job, `state` tells how one stands.

    A command is the console script in a process of its own. `start` gives it an interpreter of its own too; `cli` forks
    one that has imported clusterrun, which saves four fifths of a command's time.
    """

    def __init__(self, folder: Path, lab: Lab | None) -> None:
        self.lab = lab
        self.home = folder / "home"
        self.project = folder / "project"
        self.home.mkdir()
        self.project.mkdir()
        kept = {k: v for k, v in (lab.full_env() if lab else os.environ).items() if not k.startswith(_OTHERS)}
        self.env = kept | {"HOME": str(self.home), "CLUSTERRUN_STATE": str(folder / "state")}
        if lab is not None:
            self.env["SLURM_CONF"] = lab.env["SLURM_CONF"]

    @property
    def scheduler(self) -> tuple[str, str]:
        return "--scheduler", "slurm" if self.lab else "local"

    def start(
        self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Type a command and go on; its two streams come back together."""
        return subprocess.Popen(
            [*CLUSTERRUN, *words],
            cwd=cwd or self.project,
            env={**self.env, **(env or {})},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def cli(
        self, *words: str, status: int | None = 0, cwd: Path | None = None, env: Mapping[str, str] | None = None,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Type a command and wait for it; fails where it does not exit with `status` (None: any)."""
        environ = {**self.env, **(env or {})}
        process = warm_commands().start(Path(CLUSTERRUN[0]), *words, cwd=cwd or self.project, env=environ)
        try:
            out, err = process.communicate(timeout=PATIENCE * timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said = f"{words} exited with {process.returncode}\n{out}\n{err}"
        assert status is None or process.returncode == status, said
        return subprocess.CompletedProcess([*CLUSTERRUN, *words], process.returncode, out, err)

    def json(self, *words: str, **kwargs: Any) -> Any:
        """The data of a command's `--json` envelope."""
        return json.loads(self.cli(words[0], "--json", *words[1:], **kwargs).stdout)["data"]

    def listed(self, *words: str, **kwargs: Any) -> list[dict[str, Any]]:
        """The runs of this project that `list` shows; other tests' jobs may be in the same queue."""
        mine = str(self.project)
        return [row for row in self.json("list", *words, **kwargs) if (row["run_dir"] or "").startswith(mine)]

    def submit(self, *words: str, **kwargs: Any) -> Job:
        """Submit and return the job; options first, then `--` and the script."""
        data = self.json("submit", *self.scheduler, *words, **kwargs)
        out, err = data["logs"]
        return Job(data["job_id"], Path(data["run_dir"]), Path(out), Path(err))

    def rank(self, script: str, *options: str, arguments: Sequence[str] = (), **kwargs: Any) -> Job:
        """Submit one rank without a GPU of a script in tests/data/scripts."""
        return self.submit(*ONE_RANK, *options, "--", str(SCRIPTS / script), *arguments, **kwargs)

    def state(self, job: Job | str, **kwargs: Any) -> dict[str, Any]:
        """How a job stands, as `status --json` has it."""
        (state,) = self.json("status", str(job.id if isinstance(job, Job) else job), **kwargs)
        return dict(state)

    def wait_state(self, job: Job | str, *states: str, timeout: float = 60) -> dict[str, Any]:
        """The job's state once it is one of these."""
        last: dict[str, Any] = {}

        def there() -> bool:
            last.update(self.state(job, status=None))
            if last["state"] in states:
                return True
            if isinstance(job, Job):
                job.wait_change(0.2 if job.end() else 1.5)
            return False

        until(there, timeout, lambda: f"{job}: {last.get('state')} is none of {states}", pause=0.1)
        return last

    def wait_joined(self, job: Job, timeout: float = 120) -> None:
        """Wait until all ranks of the job's newest attempt are together and at their work."""
        until(job.start, timeout, lambda: f"the ranks of {job} did not join:\n{_text(job.err)}")

    def wait_end(self, job: Job, timeout: float = 120) -> dict[str, Any]:
        """The end record of the job's newest attempt, once it is there; asks no scheduler."""
        return dict(until(job.end, timeout, lambda: f"{job} left no end record:\n{_text(job.err)}"))

    def close(self) -> None:
        """Cancel what still runs of this project; other tests' jobs may be in the same queue."""
        found = json.loads(self.cli("list", "--json", status=None).stdout)["data"] or []
        mine = [row for row in found if (row["run_dir"] or "").startswith(str(self.project))]
        if mine:
            self.cli("cancel", *(row["job_id"] or row["run_id"] for row in mine), status=None)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, None while the file is not there."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return data


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-3000:]
    except OSError as error:
        return str(error)
