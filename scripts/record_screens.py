"""Run real jobs on a lab, and record what `scripts/screens.py` draws and `top --demo` plays."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import random
import re
import select
import shutil
import struct
import subprocess
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from clusterrun.cluster import Cluster
from clusterrun.logs.files import clock_ticks
from clusterrun.records import progress, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import rank_records, training_progress
from clusterrun.run_folder.files import read_json
from clusterrun.state.reconcile import RunState
from clusterrun.top.demo import TAPE, TIMES
from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, Job, Site
from tests.support.patience import until

HOME = Path("/tmp/demo")  # appears in the screens: a neutral place
LEAD = 0.3  # part of the long job that is done when the demo begins
SHOWN = 0.45  # ... and when the commands are typed
EVERY = 0.5  # seconds between two looks
FOLLOWED = 12.0  # seconds of `logs -f`
REDRAWN = re.compile(r"\r(?:\x1b\[(\d+)A)?\x1b\[J")  # how lines below the output are replaced: `Ui.status_lines`
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-HJKhl]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")  # all but colours
TRAINER = """\
import time
for epoch in range(1, 4):
    for step in range(1, 201):
        time.sleep(0.55)
        if step % 10 == 0:
            print(f"epoch {epoch}/3 step {step}/200 loss {2.5 / (epoch + step / 200) ** 0.8:.4f}", flush=True)
"""
BROKEN = """\
import os
for step in range(1, 31):
    if step % 10 == 0 and os.environ["RANK"] == "0":
        print(f"step {step}/100 loss {2 / step:.3f}", flush=True)
if os.environ["RANK"] == "3":
    raise ValueError("the batch has 7 rows, not 8")
"""
#: Kinds of events that replace the one before, and how many of their values name what is replaced.
REPLACED = {"queue": 0, "progress": 1, "rank": 2}
KEPT = sorted(progress.SCREEN | {"tokens_per_second"})  # of a rank's record
_OF_JOB = ("state", "reason", "name", "user", "partition", "nodes", "node_count", "time_limit", "submitted", "started",
           "restarts", "tasks")  # fmt: skip


def record(commands: Path, width: int) -> None:
    """Write both files."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    with Lab(name="gpu") as lab:
        site = Site(HOME, lab)
        try:
            shown = record_failure(site, width)
            jobs = start_jobs(site)
            tape = Tape(site, jobs)
            metrics = jobs["long"].run_dir / "metrics.jsonl"
            until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 4, 200)
            with ThreadPoolExecutor(1) as typist:  # beside the looks, which the demo plays
                typing = None
                while not tape.is_over():
                    tape.look()
                    if typing is None and tape.progress() >= SHOWN:
                        typing = typist.submit(type_all, site, tape, jobs, width)
                    time.sleep(EVERY)
            assert typing is not None, "the long job was too short"
        finally:
            site.close()
    commands.parent.mkdir(exist_ok=True)
    commands.write_text(json.dumps(typing.result() | {"failure": shown}, indent=1, ensure_ascii=False) + "\n")
    TAPE.write_text(
        "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in tape.lines())
    )


def record_failure(site: Site, width: int) -> list[dict[str, str]]:
    """Return what is typed and shown from a submission that fails to its cause."""
    (site.project / "train.py").write_text(BROKEN)
    submitted = typed(site, ("submit", "--nodes", "2", "--gpus-per-node", "2", "--", "train.py"), width)
    job = submitted["output"].partition("Submitted job ")[2].split()[0]
    site.cli("wait", job, status=None)
    return [submitted, typed(site, ("logs", job, "-n", "8"), width), typed(site, ("why", job), width)]


def start_jobs(site: Site) -> dict[str, Job]:
    """Start the jobs; two of them run and the others wait, for different reasons."""
    (site.project / "broken.py").write_text("import torchvison\n")
    (site.project / "train.py").write_text(TRAINER)
    shape = ("--nodes", "2", "--gpus-per-node", "4", "--time", "2:00:00", "--progress-interval", "5")
    train = ("lm", "--set", "steps=800", "--set", "eval_every=0", "--set", "save_every=400")
    jobs = {"failed": site.submit("--nodes", "2", "--gpus-per-node", "4", "--job-name", "typo", "--", "broken.py")}
    site.wait_end(jobs["failed"])
    jobs["own"] = site.submit("--nodes", "1", "--gpus-per-node", "1", "--job-name", "resnet", "--", "train.py")
    jobs["long"] = site.submit(*shape, "--job-name", "pretrain", *train)
    site.wait_joined(jobs["long"])
    after = f"--sbatch-arg=--dependency=afterok:{jobs['long'].id}"
    jobs["waiting"] = site.submit(*shape, "--job-name", "finetune", after, *train)
    jobs["large"] = site.submit("--nodes", "4", "--gpus-per-node", "4", "--job-name", "scale-up", *train)
    jobs["small"] = site.submit("--nodes", "3", "--gpus-per-node", "4", "--job-name", "ablation", *train)
    jobs["held"] = site.submit(*shape, "--job-name", "later", "--sbatch-arg=--hold", *train)
    jobs["night"] = site.submit(*shape, "--job-name", "nightly", "--sbatch-arg=--begin=now+9hours", *train)
    site_env = {**site.env, "TMPDIR": "/tmp"}
    wrap = ["sbatch", "--job-name", "jupyter", "--gres", "gpu:1", "--output", "/dev/null", "--wrap", "sleep 1200"]
    subprocess.run(wrap, cwd=site.project, env=site_env, check=True, capture_output=True)
    return jobs


def screens(jobs: dict[str, Job]) -> dict[str, tuple[str, ...]]:
    """Return the commands to record."""
    return {
        "list": ("list",),
        "status": ("status", jobs["long"].id),
        "why-waiting": ("why", jobs["waiting"].id),
        "why-failed": ("why", jobs["failed"].id),
        "free": ("free",),
    }


def type_all(site: Site, tape: Tape, jobs: dict[str, Job], width: int) -> dict[str, dict[str, str]]:
    """Return what is typed and shown while the long job runs."""
    shown = {name: typed(site, words, width) for name, words in screens(jobs).items()}
    shown["logs-follow"] = typed(site, ("logs", "-f", "-n", "12", jobs["long"].id), width, FOLLOWED)
    tape.explain()
    return shown


class Tape:
    """What happened, as lines of the demo's file."""

    def __init__(self, site: Site, jobs: dict[str, Job]) -> None:
        self._cluster = Cluster(cwd=site.project, environ=site.env)
        self._runs = {job.id: self._cluster.find(job.id).run for job in jobs.values()}
        self._jobs, self._site = jobs, site
        self._events: list[list[Any]] = []
        self._seen: dict[tuple[Any, ...], Any] = {}
        self._states: list[RunState] = []
        self._begin = 0.0
        self._why: dict[str, list[str]] = {}

    def is_over(self) -> bool:
        """Return whether the long job has ended."""
        return any(str(s.status.id) == self._jobs["long"].id and s.status.is_over for s in self._states)

    def progress(self) -> float:
        """Return which part of the long job is done."""
        run = self._runs[self._jobs["long"].id]
        figures = progress.last_metrics(run) if run is not None else None
        return figures.step / figures.steps if figures and figures.steps else 0.0

    def look(self) -> None:
        """Record what is new."""
        if not self._begin and self.progress() >= LEAD:
            self._begin = time.time()
        active = self._cluster.listing().states
        ended = [s for s in self._states if str(s.status.id) not in {str(a.status.id) for a in active}]
        self._states = [*self._cluster.states([s.run for s in ended if s.record]), *active]
        rows = [self._row(state) for state in self._states]
        self._put("queue", [row | {"elapsed": None} for row in rows], shown=rows)
        for job, run in self._runs.items():
            if run is not None and job != self._jobs["failed"].id:
                self._look_at(job, run)

    def _row(self, state: RunState) -> dict[str, Any]:
        job = state.status
        row = {
            "id": str(job.id),
            **{name: value for name in _OF_JOB if (value := getattr(job, name)) not in ("", None)},
        }
        return row if job.state == "RUNNING" else row | {"elapsed": job.elapsed}

    def _look_at(self, job: str, run: RunRecord) -> None:
        for row in progress.read_metrics(run):
            self._put("metrics", job, row, key=row["step"])
        attempt = run_record.newest_attempt(run)
        if attempt is not None:
            if document := read_json(attempt / training_progress.FILE):
                self._put("progress", job, document)
            for tick in clock_ticks([attempt]):
                self._put("clock", job, {"time": tick.time}, tick.out, tick.err, key=tick)
            for rank, document in rank_records.read(attempt)[0].items():
                kept = {key: document[key] for key in KEPT if key in document}
                self._put("rank", job, rank, rank % 4, kept, key=rank)
        for stream, path in zip(
            ("out", "err"), (run.logs / f"train_{job}.out", run.logs / f"train_{job}.err"), strict=True
        ):
            text = path.read_text() if path.exists() else ""
            whole = text[: text.rfind("\n") + 1]
            known = self._seen.get(("log", job, stream), "")
            if whole != known:
                self._seen["log", job, stream] = whole
                self._events.append([time.time(), "log", job, stream, whole[len(known) :]])

    def _put(self, kind: str, *values: Any, key: Any = None, shown: Any = None) -> None:
        where = (kind, values[0] if kind != "queue" else "", key)
        if self._seen.get(where) != values:
            self._seen[where] = values
            self._events.append([time.time(), kind, *(values if shown is None else (shown,))])

    def explain(self) -> None:
        """Record what `why` says of each job."""
        for state in self._states:
            job = str(state.status.id)
            self._why[job] = self._site.cli("why", job, status=None).stdout.splitlines()

    def lines(self) -> list[Any]:
        """Return the header and the events, in seconds since the demo's beginning."""
        runs = [
            {"job": job, "run_id": run.run_id, "name": run.name, "what": run.what,
             "submitted": round(run.at - self._begin), "nodes": run.nodes, "workers_per_node": run.workers_per_node}
            for job, run in self._runs.items() if run is not None
        ]  # fmt: skip
        events = [self._relative(*event) for event in self._events]
        last: dict[str, int] = {}  # of what is replaced, the place of the last event before the beginning
        for place, (at, kind, *values) in enumerate(events):
            if at < 0 and kind in REPLACED:
                last[json.dumps([kind, *values[: REPLACED[kind]]])] = place
        kept = set(last.values())
        shown = [
            event for place, event in enumerate(events) if event[0] >= 0 or event[1] not in REPLACED or place in kept
        ]
        return [{"runs": runs, "why": self._why}, *shown]

    def _relative(self, at: float, kind: str, *values: Any) -> list[Any]:
        if kind == "rank" and values[0] == self._jobs["long"].id:
            values = (*values[:-1], values[-1] | {"gpu": invented_gpu(values[1], at)})
        return [round(at - self._begin, 1), kind, *self._shifted(values)]

    def _shifted(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: round(item - self._begin, 2)
                if key in TIMES and isinstance(item, int | float)
                else self._shifted(item)
                for key, item in value.items()
            }
        return list(map(self._shifted, value)) if isinstance(value, list | tuple) else value


def invented_gpu(rank: int, at: float) -> dict[str, Any]:
    """Return the figures of a GPU that the lab does not have; the demo says so."""
    dice = random.Random(f"{rank} {int(at / 5)}")
    return {
        "name": "made up", "use": dice.randint(88, 99), "memory_gib": round(61.5 + 0.3 * (rank % 4), 1),
        "memory_total_gib": 80.0, "temperature": 58 + rank % 4 * 2 + dice.randint(0, 3),
    }  # fmt: skip


def typed(site: Site, words: tuple[str, ...], width: int, seconds: float = math.inf) -> dict[str, str]:
    """Return a command line and what is on a terminal of that width when it ends or after that many seconds."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    process = subprocess.Popen(
        [*CLUSTERRUN, *words],
        cwd=site.project,
        env={**site.env, "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    raw = read_terminal(master, time.monotonic() + seconds)
    process.terminate()  # what it says of that is not shown
    process.wait()
    os.close(master)
    output = ESCAPES.sub("", on_screen(raw.decode(errors="replace").replace("\r\n", "\n")))
    return {"command": f"clusterrun {' '.join(words)}", "output": output.rstrip("\n")}


def read_terminal(master: int, deadline: float) -> bytes:
    """Return what was written to a terminal until all writers closed it, or until then."""
    raw = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([master], [], [], min(left, 1.0))[0]:
            continue
        try:
            raw += os.read(master, 65536)
        except OSError:  # how Linux reports that all writers are closed
            break
    return raw


def on_screen(text: str) -> str:
    """Return what is left after all lines that were redrawn."""
    shown, at = "", 0
    for redrawn in REDRAWN.finditer(text):
        shown += text[at : redrawn.start()]
        rows = shown.split("\n")
        shown = "".join(f"{row}\n" for row in rows[: -1 - int(redrawn[1] or 0)])
        at = redrawn.end()
    return shown + text[at:]
