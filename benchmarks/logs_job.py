"""`clusterrun logs -f` of a job of 16 ranks that log for a minute, on a lab: `python -m benchmarks.logs_job`.

Rank 3's lines are counted and timed, once where they alone are followed and once among all. `--rate` is that of all
ranks together, in lines a second; where srun does not carry it, what it carried is told. A line waits in srun and in
ours: both are told, as its rank knows when it was printed and the log's size when it was there.
"""

from __future__ import annotations

import argparse
import bisect
import json
import mmap
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from lab.cluster import Lab

NODES, PER_NODE = 4, 4
RANK = Path(__file__).with_name("rank.py")
CLUSTERRUN = [sys.executable, "-m", "clusterrun"]
SEEN = re.compile(rb"^ 3: line (\d+) at (\d+\.\d+) ([^\n]*)", re.MULTILINE)
PIECE = re.compile(rb"^ 3: ((?:line (\d+) at |end )?)[^\n]*\n", re.MULTILINE)
END = re.compile(rb"^ ?(\d+): end (\d+) (\d+) (\d+\.\d+)$", re.MULTILINE)
LONG = "ä€".encode() * 20_000
LOOK = 0.01  # seconds between looks at the log's size


def main() -> None:
    """Run one job per follower on its own lab, and print what each measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=20_000)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(name=f"logs{os.getpid()}", nodes=NODES, gpus=PER_NODE, accounting=False) as lab,
    ):
        env = lab.full_env() | {"CLUSTERRUN_STATE": f"{folder}/state", "HOME": folder}
        env["PYTHONPATH"] = str(Path(__file__).parents[1])
        (Path(folder) / "clusterrun.toml").touch()
        for ranks in (["--rank", "3"], []):
            run(Path(folder), env, ranks, options.seconds, options.rate)


def run(folder: Path, env: dict[str, str], ranks: list[str], seconds: float, rate: float) -> None:
    """Submit a job, follow it to its end, tell what was seen."""
    shape = ["--nodes", str(NODES), "--gpus-per-node", str(PER_NODE)]
    submit = [*CLUSTERRUN, "submit", "--json", *shape, "--", str(RANK), str(seconds), str(rate / (NODES * PER_NODE))]
    said = subprocess.run(submit, check=False, cwd=folder, env=env, capture_output=True, text=True)
    if said.returncode:
        sys.exit(f"submit: exit status {said.returncode}: {said.stderr} {said.stdout}")
    job = json.loads(said.stdout)["data"]["job_id"]
    log = folder / f"logs/train_{job}.out"
    follow = [*CLUSTERRUN, "logs", "-f", job, *ranks]
    with Growth(log) as growth, tempfile.TemporaryFile() as told:
        ours = subprocess.Popen(follow, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=told)
        shown, memory, whole = watch(ours)
        told.seek(0)
        last = told.read().decode().strip().rpartition("\n")[2]
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        there = [growth.when(end) for end in line_ends(data)]
        ends = [tuple(map(float, end)) for end in END.findall(data)]
    lines, size, took = (sum(end[i] for end in ends) for i in (1, 2, 3))
    took /= max(1, len(ends))
    wrote = next((int(end[1]) for end in ends if end[0] == 3), -1)
    once = "each once and in order" if [line[0] for line in shown] == list(range(wrote)) else "MISSING OR DOUBLED"
    late = [seen - at for (_, _, seen), at in zip(shown, there, strict=False)]
    print(
        f"{' '.join(ranks) or 'all ranks'}: {last} (exit status {ours.wait()})\n"
        f"  {len(ends)} ranks printed {lines / took:,.0f} lines/s, {size / took / 1e6:.0f} MB/s for {took:.1f} s;"
        f" {len(shown)} of {wrote} lines of rank 3 seen, {once}, the one of 100 kB {'' if whole else 'NOT '}whole\n"
        f"  seen after it was in the log: {spread(late)};"
        f" after it was printed: {spread([seen - at for _, at, seen in shown])}; {memory:.0f} MiB"
    )


def watch(ours: subprocess.Popen[bytes]) -> tuple[list[tuple[int, float, float]], float, bool]:
    """Read the follower to its end: rank 3's lines (number, printed at, seen at), MiB, was the long one whole."""
    assert ours.stdout is not None
    shown: list[tuple[int, float, float]] = []
    rest, memory, looked, whole = b"", 0.0, 0.0, False
    while True:
        if time.monotonic() - looked > 0.5:
            memory, looked = max(memory, peak(ours.pid)), time.monotonic()
        if not select.select([ours.stdout], [], [], 0.5)[0]:
            continue
        data = os.read(ours.stdout.fileno(), 1 << 20)
        if not data:
            return shown, memory, whole
        now = time.monotonic()
        text = rest + data
        end = text.rfind(b"\n") + 1
        for line in SEEN.finditer(text, 0, end):
            shown.append((int(line[1]), float(line[2]), now))
            whole = whole or line[3] == LONG
        rest = text[end:]


class Growth:
    """When a file had which size, looked at every ``LOOK`` seconds."""

    def __init__(self, path: Path) -> None:
        self._path, self._sizes, self._times = path, [0], [time.monotonic()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._thread.join()

    def when(self, size: int) -> float:
        """Return when the log was first this long, by the monotonic clock."""
        return self._times[min(bisect.bisect_left(self._sizes, size), len(self._times) - 1)]

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            size = self._path.stat().st_size if self._path.exists() else 0
            if size > self._sizes[-1]:
                self._sizes.append(size)
                self._times.append(time.monotonic())


def line_ends(data: mmap.mmap) -> Iterator[int]:
    """Where the last piece of each of rank 3's lines ends."""
    end = -1
    for piece in PIECE.finditer(data):
        if piece[1] and end >= 0:
            yield end
            end = -1
        if piece[2] is not None or (end >= 0 and not piece[1]):
            end = piece.end()


def spread(seconds: list[float]) -> str:
    """Median, 99th percentile and most."""
    seconds = sorted(seconds)
    return (
        f"{seconds[len(seconds) // 2]:.3f} s, p99 {seconds[int(len(seconds) * 0.99)]:.3f} s, most {seconds[-1]:.3f} s"
    )


def peak(pid: int) -> float:
    """Return the peak memory of a process, in MiB; 0 once it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    main()
