"""`clusterrun list` with 10,000 array tasks in the queue, and what 10,000 ended runs cost `list`, `status` and `clean`.

On a lab of its own: `python -m benchmarks.list [queue|ended]`. Medians of interleaved rounds, beside `--help` in the
same rounds; the memory is the most of any round. Seconds of a processor differ least on a busy machine. `ended`
measures each command with the page cache and, as root, after it was dropped (cold), each also without the files that
clusterrun derives from the runs (no index).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks import ended_runs
from benchmarks.ended_runs import Model, Place
from clusterrun.records.store import find_base
from lab.cluster import Lab

TASKS, ENDED, ROUNDS, COLD_ROUNDS = 10_000, 10_000, 9, 3
ASKED = 123  # the number of the run that `status JOBID` shows
STRANGER = 1  # the uid of who owns the shared project
CLUSTERRUN = [sys.executable, "-m", "clusterrun"]
HELP = "clusterrun --help"
COMMANDS = {
    HELP: [*CLUSTERRUN, "--help"],
    "squeue --me": ["squeue", "--me", "--noheader"],
    "squeue --me --array": ["squeue", "--me", "--noheader", "--array"],
    "clusterrun list": [*CLUSTERRUN, "list"],
    "clusterrun list --expand": [*CLUSTERRUN, "list", "--expand"],
    "clusterrun list --expand --json": [*CLUSTERRUN, "list", "--expand", "--json"],
}
OF_ENDED = {
    HELP: [*CLUSTERRUN, "--help"],
    "clusterrun list": [*CLUSTERRUN, "list"],
    "clusterrun status last": [*CLUSTERRUN, "status", "last"],
    "clusterrun status NAME": [*CLUSTERRUN, "status", ended_runs.NAMES[7]],
    "clusterrun list --all": [*CLUSTERRUN, "list", "--all"],
    "clusterrun clean --dry-run": [*CLUSTERRUN, "clean", "--dry-run", "--older-than", "1d"],
}


def main() -> None:
    """Print seconds, the difference to `--help`, and the memory."""
    what = sys.argv[1:] or ["queue", "ended"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(
            name=f"list{os.getpid()}", accounting=False, settings={"MaxArraySize": "20001", "MaxJobCount": "50000"}
        ) as lab,
    ):
        env = {**lab.full_env(), "CLUSTERRUN_STATE": f"{folder}/state", "HOME": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # who uses a program has its byte code
        if "queue" in what:
            held = ["sbatch", "--hold", f"--array=0-{TASKS - 1}", "--output=/dev/null", "--wrap=true"]
            assert lab.run(held).returncode == 0
            report(f"{TASKS:,} held array tasks in the queue", measured(COMMANDS, env, folder))
            lab.run(["scancel", "--me"])
        if "ended" in what:
            measure_ended(Path(folder), env, lab.cluster_name)


class Figure(NamedTuple):
    """What one call cost: seconds, seconds of a processor, and MiB of memory; and the lines it printed."""

    seconds: float
    processor: float
    memory: float
    lines: int


Figures = dict[str, list[Figure]]
"""By command: each call."""


def measure_ended(folder: Path, env: Mapping[str, str], cluster: str) -> None:
    """Measure a project with 10,000 ended runs, then one of another user in which two users have 10,000 each."""
    state = folder / "state"
    model = ended_runs.load_model(folder / "model", env)
    project = folder / "project"
    fill_own(model, project, state, cluster)
    measure_places(f"{ENDED:,} ended runs, nine of ten in this project", env, project, [project], state, ASKED)
    if os.geteuid() != 0:
        print("\nnot measured: a project of another user, and the page cache dropped: only root can")
        return
    shared = folder / "shared"
    fill_shared(model, shared, state, cluster)
    own, _ = find_base(shared, state)
    measure_places(
        f"{ENDED:,} ended runs in a project of another user, {ENDED:,} of theirs beside, {ENDED:,} in other projects",
        env, shared, [project, own], state, ENDED + ASKED,
    )  # fmt: skip


def fill_own(model: Model, project: Path, state: Path, cluster: str) -> None:
    """Write the user's runs: nine of ten in one project, the others in four projects."""
    first_at, here = ended_runs.month_ago(ENDED), ENDED * 9 // 10
    ended_runs.add_runs(model, Place(project, state / "index"), cluster, range(here), first_at)
    for number in range(4):
        size = (ENDED - here) // 4
        numbers = range(here + number * size, here + (number + 1) * size)
        other = Place(project.with_name(f"other{number}"), state / "index")
        ended_runs.add_runs(model, other, cluster, numbers, first_at)


def fill_shared(model: Model, shared: Path, state: Path, cluster: str) -> None:
    """Write a project of another user with that user's runs, and this user's runs of it in the state folder."""
    first_at = ended_runs.month_ago(ENDED)
    ended_runs.add_runs(model, Place(shared, None), cluster, range(2 * ENDED, 3 * ENDED), first_at, STRANGER)
    for path in (shared, shared / ".clusterrun", shared / ".clusterrun" / "runs", shared / "logs"):
        os.chown(path, STRANGER, -1)
        path.chmod(0o755)
    own, _ = find_base(shared, state)
    assert own != shared
    ended_runs.add_runs(model, Place(own, state / "index"), cluster, range(ENDED, 2 * ENDED), first_at)


def measure_places(title: str, env: Mapping[str, str], cwd: Path, places: list[Path], state: Path, number: int) -> None:
    """Measure the commands over ended runs warm and cold, with and without the index of the runs.

    ``number`` is a run of the project in ``cwd``: without the index, no other project's job is found by its id.
    """
    job_id = ended_runs.job_id_of(number)
    commands = {**OF_ENDED, "clusterrun status JOBID": [*CLUSTERRUN, "status", job_id]}

    def remove_index() -> None:
        for name in ("index", "over"):
            (state / name).unlink(missing_ok=True)
        for place in places:
            shutil.rmtree(place / ".clusterrun" / "over", ignore_errors=True)

    def nothing() -> None:
        pass

    def drop_and_remove() -> None:
        remove_index()
        drop_page_cache()

    kept = (state / "index").read_bytes()
    report(f"{title}: warm", measured(commands, env, str(cwd), nothing))
    if os.geteuid() == 0:
        report(f"{title}: cold", measured(commands, env, str(cwd), drop_page_cache, COLD_ROUNDS))
        report(f"{title}: cold, no index", measured(commands, env, str(cwd), drop_and_remove, 1))
    report(f"{title}: warm, no index", measured(commands, env, str(cwd), remove_index, 1))
    (state / "index").write_bytes(kept)


def drop_page_cache() -> None:
    """Make the next command read everything from the disk."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def measured(
    commands: Mapping[str, list[str]], env: Mapping[str, str], cwd: str, before: Callable[[], None] | None = None,
    rounds: int = ROUNDS,
) -> Figures:  # fmt: skip
    """Return the figures of each command, which runs after ``before`` in each round."""
    found: Figures = {}
    for number in range(0 if rounds > 1 else 1, rounds + 1):
        for name, argv in commands.items():
            if before is not None:
                before()
            began = time.perf_counter()
            process = subprocess.Popen(argv, env=dict(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert process.stdout is not None
            lines = process.stdout.read().count(b"\n")
            _, status, usage = os.wait4(process.pid, 0)
            took = time.perf_counter() - began
            process.returncode = status
            assert status == 0, name
            if number:  # the first warms the caches
                figure = Figure(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, lines)
                found.setdefault(name, []).append(figure)
    return found


def report(title: str, found: Figures) -> None:
    """Print one line per command."""
    base = statistics.median(one.seconds for one in found[HELP])
    print(f"\n{title} (load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {len(found[HELP])} rounds)")
    for name, calls in found.items():
        median, processor = (statistics.median(column) for column in list(zip(*calls, strict=True))[:2])
        memory = max(one.memory for one in calls)
        print(f"{name:28} {median:6.3f} s  {median - base:+6.3f} s  {median / base:5.1f} x --help  "
              f"{processor:6.3f} s of a processor  {memory:4.0f} MiB  {calls[-1].lines:6} lines",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
