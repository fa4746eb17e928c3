"""How fast logs are read, filtered and followed: `python -m benchmarks.logs [PART …]`.

Ratios to cat, grep and `--help` in the same run, all into a pipe, as to /dev/null grep stops at the first match and cat
moves nothing. The ratio in processor time, the start of Python left out, holds on a machine with other work too. The
sizes that are aimed at by default (7 GB of disk); `--scale 0.1` is a tenth of them.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from clusterrun.base.job import JobId
from clusterrun.logs.files import Source
from clusterrun.logs.request import DisplayFormat, LogRequest
from clusterrun.logs.show import show
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.submissions import SubmissionRecord

JOB, WORLD = "101", 16
OURS = f"'{sys.executable}' -m clusterrun"
HELP = f"{OURS} --help | cat >/dev/null"
#: the follower without the scheduler's part: it ends when a file appears
FOLLOWER = """
import os, sys
from pathlib import Path
import clusterrun.cli.logs
from clusterrun.logs.files import Source
from clusterrun.logs.follow import Notice
from clusterrun.logs.request import LogRequest
from clusterrun.logs.show import show_following
from clusterrun.terminal.ui import Ui
out, over, ranks = Path(sys.argv[1]), Path(sys.argv[2]), frozenset(map(int, sys.argv[3:])) or None
ui = Ui("logs")
source = Source(out, out.with_suffix(".err"), world_size=16, ranks=ranks, owners=frozenset({os.getuid()}))
for piece in show_following([source], LogRequest(), stop=over.exists):
    ui.note(piece.text) if isinstance(piece, Notice) else ui.log_bytes(piece)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0], file=sys.stderr)
"""
CHOSEN = re.compile(rb"^ 3: line (\d+) at (\d+\.\d+) ", re.MULTILINE)


def main() -> None:
    """Run the parts that are asked for, all by default."""
    parts: dict[str, Callable[[Path, float, int], None]] = {
        "read": read, "rank": rank, "errors": errors, "tail": tail, "follow": follow, "fold": fold,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *parts], help="which figures (all)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes and times")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="where the files are written (the folder for temporary files)")
    options = parser.parse_args()
    for name in options.parts or parts:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            parts[name](Path(folder), options.scale, options.rounds)


def read(folder: Path, scale: float, rounds: int) -> None:
    """All of a log of 1 GB, unfiltered."""
    for kind in ("plain", "UTF-8"):
        log = project(folder)
        size = fill(log, scale * 1e9, utf8=kind == "UTF-8")
        commands = f"cat {log} | cat >/dev/null", f"{OURS} logs {JOB} | cat >/dev/null", HELP
        cat, ours, start = medians(folder, rounds, *commands)
        print(
            f"read {size / 1e9:.2f} GB of {kind} text: {cat.wall / ours.wall:.2f} x cat's speed"
            f" (cat {cat.wall:.2f} s, {ours.wall:.2f} s), in processor time {cat.cpu / (ours.cpu - start.cpu):.2f} x"
            f" ({cat.cpu:.2f} s, {ours.cpu - start.cpu:.2f} s)"
        )


def rank(folder: Path, scale: float, rounds: int) -> None:
    """One rank's lines of a log of 1 GB."""
    log = project(folder)
    size = fill(log, scale * 1e9)
    grep, ours, start = medians(
        folder, rounds, f"grep '^ *3: ' {log} | cat >/dev/null", f"{OURS} logs {JOB} --rank 3 | cat >/dev/null", HELP
    )
    print(
        f"--rank 3 of {size / 1e9:.2f} GB: {ours.wall / grep.wall:.2f} x grep's time (grep {grep.wall:.2f} s, ours"
        f" {ours.wall:.2f} s), in processor time {(ours.cpu - start.cpu) / grep.cpu:.2f} x"
    )


def errors(folder: Path, scale: float, rounds: int) -> None:
    """Print the time of `logs --errors` on 5 GB, the last line of which names one."""
    log = project(folder)
    size = fill(log, scale * 5e9)
    with log.open("ab") as file:
        file.write(b" 3: ValueError: no data\n")
    cat, ours, start = medians(
        folder, rounds, f"cat {log} | cat >/dev/null", f"{OURS} logs {JOB} --errors | cat >/dev/null", HELP
    )
    print(
        f"--errors of {size / 1e9:.2f} GB: {ours.wall:.2f} s (cat {cat.wall:.2f} s), in processor time"
        f" {ours.cpu - start.cpu:.2f} s (cat {cat.cpu:.2f} s)"
    )


def tail(folder: Path, scale: float, rounds: int) -> None:
    """Print the time of `logs -n 50` on 5 GB."""
    log = project(folder)
    size = fill(log, scale * 5e9)
    nothing, ours = medians(folder, rounds, HELP, f"{OURS} logs {JOB} -n 50 | cat >/dev/null")
    print(
        f"-n 50 of {size / 1e9:.2f} GB: {ours.wall - nothing.wall:+.3f} s against --help ({nothing.wall:.3f} s, ours"
        f" {ours.wall:.3f} s), in processor time {ours.cpu - nothing.cpu:+.3f} s"
    )


def follow(folder: Path, scale: float, rounds: int) -> None:
    """16 ranks at 20,000 lines a second for a minute: rank 3's lines, asked for alone and among all."""
    del rounds
    for ranks in (["3"], []):
        out, over = folder / "train_1.out", folder / "over"
        for path in (out, over):
            path.unlink(missing_ok=True)
        out.write_text(" 3: ready\n")
        ours = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(out), str(over), *ranks],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert ours.stdout is not None and os.read(ours.stdout.fileno(), 100) == b" 3: ready\n"
        writer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ranks", str(out), str(60 * scale)], stdout=subprocess.PIPE, text=True
        )
        numbers, waits, moved = watch(ours, writer, over)
        assert writer.stdout is not None and ours.stderr is not None
        wrote, size, took = writer.stdout.read().split()
        memory = int(ours.stderr.read().split()[-1]) / 1024
        once = "every line once and in order" if numbers == list(range(int(wrote))) else "LINES ARE MISSING OR DOUBLED"
        waits.sort()
        print(
            f"follow {'rank 3' if ranks else 'all ranks'}: {int(size) / 1e6 / float(took):.0f} MB/s for {took} s,"
            f" {len(numbers)} of {wrote} lines of rank 3 seen, {once};"
            f" visible after {waits[len(waits) // 2]:.3f} s, p99 {waits[int(len(waits) * 0.99)]:.3f} s,"
            f" at most {waits[-1]:.3f} s; {memory:.0f} MiB; {moved / 1e6:.0f} MB shown"
        )


def watch(
    ours: subprocess.Popen[bytes], writer: subprocess.Popen[str], over: Path
) -> tuple[list[int], list[float], int]:
    """Read what the follower prints until it ends: numbers of the chosen rank's lines, and how long each took."""
    assert ours.stdout is not None
    numbers, waits, rest, moved = [], [], b"", 0
    while True:
        if not select.select([ours.stdout], [], [], 0.1)[0]:
            if writer.poll() is not None:
                over.touch()
            continue
        data = os.read(ours.stdout.fileno(), 1 << 20)
        if not data:
            break
        now = time.monotonic()
        moved += len(data)
        text = rest + data
        end = text.rfind(b"\n") + 1
        for found in CHOSEN.finditer(text, 0, end):
            numbers.append(int(found[1]))
            waits.append(now - float(found[2]))
        rest = text[end:]
    ours.wait()
    return numbers, waits, moved


def fold(folder: Path, scale: float, rounds: int) -> None:
    """Lines per second made ready for a terminal, folded and not, where all ranks say the same and where none do."""
    del rounds
    log = folder / "log"
    for same in (True, False):
        with log.open("wb") as file:
            for i in range(int(scale * 60_000)):
                file.writelines(
                    b"%2d: step %d: loss 2.%06d, 123456 tokens/s\n" % (rank, i, i if same else i * WORLD + rank)
                    for rank in range(WORLD)
                )
        rates = []
        for folds in (True, False):
            began = time.process_time()
            request = LogRequest(display=DisplayFormat(terminal=True, colour=True, fold=folds))
            shown = sum(chunk.count(b"\n") for chunk in show([Source(log, world_size=WORLD)], request))
            rates.append(int(scale * 60_000) * WORLD / (time.process_time() - began))
            print(f"{'folded' if folds else 'not folded'}: {rates[-1]:,.0f} lines/s, {shown:,} shown", end="; ")
        print(f"folding {rates[0] / rates[1]:.2f} x as fast ({'all ranks say the same' if same else 'none do'})")


def project(folder: Path) -> Path:
    """Make a project with the record of one job, and return its log."""
    token = "k3v7qaabcdefghij"
    store = Store(folder, folder / "state")
    log = folder / "logs" / f"train_{JOB}.out"
    if log.parent.exists():
        return log
    (folder / "clusterrun.toml").touch()
    (folder / "logs").mkdir()
    run = RunRecord(
        run_id="20261121-000001-k3v7qa", run_dir=store.runs / "20261121-000001-k3v7qa", root=folder, name="bench",
        what="train.py", scheduler="slurm", cluster="bench", user="bench", at=1, nodes=2, workers_per_node=WORLD // 2,
        shared=False, sources={}, submissions=(SubmissionRecord(token=token, at=1),),
    )  # fmt: skip
    store.stage(run, {"version": 1}, "#!/bin/bash\n")
    store.commit(run, JobId.parse(JOB))
    return log


def fill(log: Path, size: float, *, utf8: bool = False) -> int:
    """Write lines of 16 ranks, as training prints them, until the log has this many bytes."""
    draw = random.Random(1)
    form = "{:2}: Schritt {:6} – Größe {:.4f}  45%|████▌     | 123456 µs\n" if utf8 else (
        "{:2}: step {:6} loss {:.4f} lr 3.0e-04 tokens/s 123456 gpu mem 33.1 GiB time 17\n"
    )  # fmt: skip
    data = "".join(form.format(i % WORLD, i, draw.random()) for i in range(200_000)).encode()
    with log.open("wb") as file:
        for _ in range(max(1, int(size / len(data)))):
            file.write(data)
    return log.stat().st_size


class Cost(NamedTuple):
    """Seconds by the clock, and of processor time of all processes of a command line."""

    wall: float
    cpu: float


def medians(folder: Path, rounds: int, *commands: str) -> list[Cost]:
    """Return what each command line takes, in turns; the first turn does not count."""
    env = os.environ | {"CLUSTERRUN_STATE": str(folder / "state"), "PYTHONPATH": str(Path(__file__).parents[1])}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # who uses a program has its byte code
    taken: list[list[Cost]] = [[] for _ in commands]
    for turn in range(rounds + 1):
        for costs, command in zip(taken, commands, strict=True):
            began, used = time.perf_counter(), processor_time()
            done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=folder, env=env, check=False)
            if done.returncode:
                sys.exit(f"{command}: exit status {done.returncode}")
            if turn:
                costs.append(Cost(time.perf_counter() - began, processor_time() - used))
    return [Cost(*(statistics.median(column) for column in zip(*costs, strict=True))) for costs in taken]


def processor_time() -> float:
    """Return the seconds that all ended child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
