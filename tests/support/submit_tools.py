"""Means to test submitting: a light job, a clock that runs fast, another sbatch in front of Slurm's own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from clusterrun.submit.protocol import Clock
from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, ROOT, Job, Site, until

SHIPPED = ROOT / "clusterrun" / "templates" / "sbatch.j2"
WORKER_LINE = "CR_WORKER={{ worker | sh }}\n"
LIGHT = ROOT / "tests" / "support" / "light_supervisor.py"
MANY = ROOT / "tests" / "data" / "submits_many.py"
NEVER = "--sbatch-arg=--begin=now+1hour"


def light_template(folder: Path, body: str = 'echo "$CLUSTERRUN_JOB_ID" >>"$CLUSTERRUN_RUN_DIR/ran"') -> Path:
    """The shipped template without its ranks: the same identity, claim and end record; `ran` counts the real runs."""
    text = SHIPPED.read_text()
    assert text.count(WORKER_LINE) == 1, "the template has no one line that names the worker"
    path = folder / "light.j2"
    quoted = shlex.quote(body)
    # the newline after a block is dropped
    light = f"CR_WORKER={shlex.quote(str(LIGHT))}\nexport LIGHT_BODY={{% raw %}}{quoted}{{% endraw %}}\n\n"
    path.write_text(text.replace(WORKER_LINE, light))
    return path


def fast(factor: float) -> Clock:
    """A clock on which limits and pauses pass `factor` times as fast."""
    return Clock(now=lambda: time.monotonic() * factor, sleep=lambda seconds: time.sleep(seconds / factor))


def wrap_sbatch(folder: Path, body: str, path: str, *, estimates: bool = False) -> str:
    """Return a PATH that begins with a fake sbatch, a shell script in which `real` is Slurm's own.

    Estimates (`--test-only`) are Slurm's own too, unless `estimates` says that the body answers them.
    """
    bin = folder / "bin"
    bin.mkdir(exist_ok=True)
    wrapper = bin / "sbatch"
    passed = "" if estimates else '[ "$1" != --test-only ] || { real "$@"; exit; }'
    wrapper.write_text(f'#!/bin/bash\nreal() {{ PATH={path} command sbatch "$@"; }}\n{passed}\n{body}\n')
    wrapper.chmod(0o755)
    return f"{bin}:{path}"


def runs_of(site: Site) -> list[Path]:
    """The run folders of a site's project."""
    return sorted((site.project / ".clusterrun" / "runs").glob("*"))


def held_by_slurm(lab: Lab, since: str = "") -> dict[str, list[str]]:
    """Slurm's own account: job name -> ids, by squeue and, where there is accounting, by sacct."""
    found: dict[str, set[str]] = {}
    # no name here holds a |
    commands = [["squeue", "--noheader", "--states=all", "--format=%A|%j"]]
    if lab.accounting:
        commands.append(["sacct", "--allocations", "--duplicates", "--noheader", "--parsable2", "--allusers",
                      f"--starttime={since or 'now-1hour'}", "--format=JobIDRaw,JobName"])  # fmt: skip
    for argv in commands:
        done = lab.run(argv, errors="surrogateescape")  # a lab that tests share may hold any name
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            job, _, name = line.partition("|")
            if job.isdigit():  # else the rest of a name that holds a line separator
                found.setdefault(name, set()).add(job)
    return {name: sorted(ids, key=int) for name, ids in found.items()}


def light(site: Site, template: Path, *options: str, **kwargs: Any) -> Job:
    """Submit one light job, without checks before: Slurm's estimate would use up a job id."""
    return site.submit("--no-check", *ONE_RANK, "--template", str(template), *options, "--", "true", **kwargs)


def begin(site: Site, template: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    words = (*site.scheduler, *ONE_RANK, "--template", str(template), *options, "--", "true")
    return site.start("submit", *words, env=env)


def all_over(lab: Lab, seconds: float = 90) -> None:
    until(lambda: not lab.run(["squeue", "-h"]).stdout.strip(), seconds, lambda: lab.run(["squeue"]).stdout, pause=0.3)


def age(run_dir: Path, seconds: int) -> None:
    """Let a submission be that much older."""
    (file,) = (run_dir / "submissions").glob("*.json")
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"at": data["at"] - seconds}))


class Fleet:
    """Several processes of one user that submit at once; `results` has a dict for each submission."""

    def __init__(self, site: Site, template: Path, names: dict[str, int], *sbatch_args: str) -> None:
        self.results: list[dict[str, Any]] = []
        self.begun = 0
        self.errors: list[str] = []
        self._lock = threading.Lock()
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(MANY), name, str(count), str(template), *sbatch_args],
                cwd=site.project, env=site.env | {"PYTHONPATH": str(ROOT)}, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for name, count in names.items()
        ]  # fmt: skip
        streams = [(p.stdout, self._record) for p in self._processes] + [
            (p.stderr, self._note) for p in self._processes
        ]
        self._threads = [threading.Thread(target=self._read, args=each, daemon=True) for each in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, take: Any) -> None:
        for line in stream:
            take(line)

    def _record(self, line: str) -> None:
        row = json.loads(line)
        with self._lock:
            if "begun" in row:
                self.begun += 1
            else:
                self.results.append(row)

    def _note(self, line: str) -> None:
        with self._lock:
            self.errors.append(line.rstrip())

    @property
    def busy(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def kill_sbatch(self) -> bool:
        """Kill the sbatch of a submission that waits for it; return whether there was one."""
        for process in self._processes:
            for path in Path(f"/proc/{process.pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):  # it has ended
                    for pid in path.read_text().split():
                        if Path(f"/proc/{pid}/comm").read_text().strip() == "sbatch":
                            os.kill(int(pid), signal.SIGKILL)
                            return True
        return False

    def join(self, timeout: float) -> list[dict[str, Any]]:
        """Wait for the last submission and return the results, in no order."""
        end = time.monotonic() + timeout
        for process in self._processes:
            process.wait(max(1.0, end - time.monotonic()))
        for thread in self._threads:
            thread.join(10)
        assert not any(p.returncode for p in self._processes), self.errors
        return self.results

    def notices(self) -> dict[str, int]:
        """Return the notices of the submitters, counted."""
        return dict(Counter(self.errors))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
