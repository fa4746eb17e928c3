"""Read the progress of running ranks: the newest metrics of the training, and each rank's heartbeat.

The worker writes ``metrics.jsonl`` (rank 0, a line at every logged step) and the heartbeats (every rank, every few
seconds; ``rank_records.py``). They may be missing, cut off or late; values of a wrong type are left out. A newer
version may add keys, ignored here.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.decode import as_number, parse_fields, parse_rows
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, rank_records, safe_files, training_progress
from clusterrun.run_folder.training_progress import TrainingProgress

_TAIL = 16 * 1024  # bytes: longer than any line of metrics
_LOSSES = 256 * 1024  # bytes of metrics that a curve of losses reads
_LAUNCHES = 16  # the last ones, whose printed losses are a curve
_METRICS = 4 * 1024 * 1024  # bytes of metrics that a table or a report of a ladder reads
USUAL_INTERVAL = 10.0
"""Seconds between two heartbeats of a rank, if its record does not say."""
SUMMARY = frozenset({"node", "time", "interval", "phase", "step", "steps", "data_s", "compute_s", "own_world"})
"""The fields that the lines of a job need of each rank."""
SCREEN = SUMMARY | {"stepped", "memory_gib", "gpu_record"}
"""The fields that a screen with a row for each rank needs."""
USED = frozenset({"node", "time", "memory_peak_gib", "node_memory_peak_gib", "gpu_record"})
"""The fields that say what a rank has used."""
STEP = "step"
"""What a curve is drawn over, if it is known."""
SCORES = ("accuracy_", "exact_", "f1_", "r2_", "mae_")
"""How the names of a task's own scores begin."""
_MOST_SCORES = 6
NAN = "nan"
"""How a value that is no number is written into metrics, and shown."""
MISSED = 3
"""A rank is silent after this many intervals without a heartbeat."""


class Metrics(NamedTuple):
    """The newest metrics of a training; ``time`` is in epoch seconds. None: not known.

    It has ``steps`` in all, and does ``steps_per_second`` on average. ``trained_s`` is how many seconds the steps took
    that led to this one; steps that a restart repeated count once. ``scores`` are a task's own, by name. ``nan_losses``
    is how many losses were NaN, in a row up to the last one; then ``loss`` is None.
    """

    step: int
    time: float | None = None
    loss: float | None = None
    val_loss: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    trained_s: float | None = None
    steps: int | None = None
    steps_per_second: float | None = None
    scores: dict[str, float] | None = None
    nan_losses: int | None = None

    @property
    def is_nan(self) -> bool:
        """Whether the last loss was NaN."""
        return self.loss is None and bool(self.nan_losses)


class Gpu(NamedTuple):
    """One rank's GPU, from NVML: use in percent, memory in GiB, temperature in °C.

    ``mean_use`` is the mean of all ``samples`` of a launch, ``peak_gib`` the most memory of them.
    """

    name: str = ""
    use: float | None = None
    memory_gib: float | None = None
    memory_total_gib: float | None = None
    temperature: float | None = None
    mean_use: float | None = None
    samples: int | None = None
    peak_gib: float | None = None


class RankProgress(NamedTuple):
    """The heartbeat of one rank: its phase and step at ``time``. Times are in epoch seconds.

    ``phase`` is one of starting, checking, joining, loading, compiling, training, evaluating, saving, script, ending;
    it began at ``since``, and a user's script at ``script_since``. The rank writes every ``interval`` seconds.
    ``stepped`` is when its step last changed, ``advanced`` when its phase, its step or its number of collectives did.
    ``first_step`` is the first step of its launch, done at ``first_step_at``. ``step_s``, ``data_s`` and ``compute_s``
    are medians over its last steps, in seconds: the whole step, waiting for its data, and its own forward and backward
    passes; the rest is mostly waiting for other ranks. ``tokens_per_second`` is that of all ranks together; only rank 0
    has it. ``own_world`` is the world of its own that the rank has started, in words.
    """

    rank: int
    node: str
    time: float
    interval: float | None = None
    phase: str = ""
    since: float | None = None
    script_since: float | None = None
    local_rank: int | None = None
    pid: int | None = None
    step: int | None = None
    steps: int | None = None
    stepped: float | None = None
    advanced: float | None = None
    first_step: int | None = None
    first_step_at: float | None = None
    step_s: float | None = None
    data_s: float | None = None
    compute_s: float | None = None
    tokens_per_second: float | None = None
    memory_gib: float | None = None  # resident memory on the host
    memory_peak_gib: float | None = None  # the most that it and the processes that it started held for themselves
    node_memory_peak_gib: float | None = None  # the most that the whole job held on its node
    own_world: str = ""
    gpu_record: Mapping[str, Any] | None = None  # as read, so unchecked

    @property
    def gpu(self) -> Gpu | None:
        """The rank's GPU, None without one; parsed only now, because few callers need it of 80,000 ranks."""
        return None if self.gpu_record is None else Gpu(**parse_fields(Gpu, self.gpu_record))

    def is_silent(self, now: float) -> bool:
        """Return whether heartbeats are missing: the rank is stopped or has ended, or cannot write to its folder."""
        return now - self.time > MISSED * (self.interval or USUAL_INTERVAL)


def last_metrics(run: RunRecord) -> Metrics | None:
    """Return the newest known step of a run, with the newest value of each metric; None if there is none."""
    newest: dict[str, Any] = {}
    for row in metric_rows(run):
        newest |= {name: value for name, value in parse_fields(Metrics, row).items() if value is not None}
        newest["scores"] = newest.get("scores", {}) | row
        _count_nan(newest, row)
    logged, attempt = as_metrics(newest), run_record.newest_attempt(run)
    current = training_progress.load(attempt) if attempt is not None else None
    return logged if current is None else _join(logged, current)


def _count_nan(newest: dict[str, Any], row: Mapping[str, Any]) -> None:
    """Count the losses that were NaN in a row; the last number before them is not the newest loss."""
    if row.get("loss") == NAN:
        newest |= {"loss": None, "nan_losses": (newest.get("nan_losses") or 0) + 1}
    elif is_number(row.get("loss")):
        newest["nan_losses"] = None


def losses(run: RunRecord) -> list[float]:
    """Return the last losses that a run logged, oldest first, else a few of those that its launches printed."""
    return [loss for _, loss in loss_curve(run)[0]]


def loss_curve(run: RunRecord) -> tuple[list[tuple[float, float]], str]:
    """Return ``losses`` as points, and what they are over: the step, or their order where the step is not known."""
    rows = metric_rows(run, _LOSSES)
    points = [(row["step"], row["loss"]) for row in rows if is_number(row.get("loss")) and is_number(row.get("step"))]
    if points:
        return points, STEP
    return _printed_curve([training_progress.load_losses(one) for one in run_record.all_attempts(run)[-_LAUNCHES:]])


def _printed_curve(launches: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[tuple[float, float]], str]:
    """Return what launches printed as one curve; a later launch replaces the steps that it repeats."""
    if not all(one[0] <= after[0] for launch in launches for one, after in pairwise(launch)):
        printed = [loss for launch in launches for _, loss in launch]  # a counter that starts again in each epoch
        return list(enumerate(printed, 1)), "printed loss"
    points: list[tuple[float, float]] = []
    for launch in filter(None, launches):
        points = [point for point in points if point[0] < launch[0][0]]
        points += launch
    return points, STEP


def _join(logged: Metrics | None, current: TrainingProgress) -> Metrics:
    """Return the last logged metrics, brought forward to the step that the newest launch has reached."""
    pace = current.steps_per_second
    if logged is None:
        return Metrics(
            current.step, current.stepped, current.loss, steps=current.steps, steps_per_second=pace,
            nan_losses=current.nan_losses,
        )  # fmt: skip
    joined = logged._replace(steps=current.steps, steps_per_second=pace)
    if current.step <= logged.step:
        return joined
    trained_s = logged.trained_s
    if trained_s is not None and pace is not None:
        trained_s += (current.step - logged.step) / pace
    return joined._replace(step=current.step, time=current.stepped, trained_s=trained_s)


def as_metrics(data: object) -> Metrics | None:
    """Return metrics from a mapping of their names, None for anything else."""
    if not isinstance(data, Mapping):
        return None
    found = parse_fields(Metrics, data)
    return Metrics(**found, scores=as_scores(data.get("scores"))) if found["step"] is not None else None


def as_scores(values: object) -> dict[str, float] | None:
    """Return the first scores among values that may be damaged, by name; None if there are none."""
    if not isinstance(values, Mapping):
        return None
    scores = {name: value for name, value in values.items() if name.startswith(SCORES) and is_number(value)}
    return dict(islice(scores.items(), _MOST_SCORES)) or None


def ranks(run: RunRecord, task: int | None = None, only: frozenset[str] | None = None) -> list[RankProgress]:
    """Return the heartbeats of a run's newest attempt, by rank; empty if its worker writes none. See ``read_ranks``."""
    attempt = run_record.newest_attempt(run, task)
    return read_ranks(attempt, only) if attempt else []


def started_ranks(attempt: Path) -> list[dict[str, Any]]:
    """Return the ranks that joined a launch, as start.json has them; empty if they have not all joined."""
    start = ends.load_start(attempt)
    return start["ranks"] if start is not None else []


def read_ranks(attempt: Path, only: frozenset[str] | None = None) -> list[RankProgress]:
    """Return the heartbeats in an attempt's folder, by rank.

    With ``only`` (SUMMARY, SCREEN) the other fields stay at their defaults, except those of rank 0, which saves time.
    """
    with _without_collector():
        found = (
            _rank(rank, data, only if rank else None)
            for rank, data in rank_records.load(attempt, rank_records.PROGRESS)
        )
        return sorted((one for one in found if one is not None), key=attrgetter("rank"))


def _rank(rank: int, data: Mapping[str, Any], only: frozenset[str] | None) -> RankProgress | None:
    found = parse_fields(RankProgress, data, only)
    if found["time"] is None:
        return None
    found["rank"] = rank
    if (only is None or "gpu_record" in only) and isinstance(gpu := data.get("gpu"), dict):
        found["gpu_record"] = gpu
    return RankProgress(**found)


def separate_worlds(run: RunRecord, ranks: Sequence[RankProgress], *, ended: bool = False) -> str:
    """Return that several ranks have each started a world of their own; empty if none has, or that is intended.

    The world of one rank may be that of all.
    """
    own = [one.own_world for one in ranks if one.own_world]
    if len(own) < 2 or run.is_independent:
        return ""
    did, had = ("did", "had") if ended else ("do", "have")
    return f"the ranks {did} not train together: {len(own)} of {run.world_size} ranks {had} started {own[0]}"


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the garbage collector: 80,000 new records are no garbage, and looking at them again and again is slow."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def last_rows(path: Path, most: int = _TAIL, *, first: bool = False) -> list[dict[str, Any]]:
    """Return the complete rows in the last (or first) ``most`` bytes of a file of JSON lines, oldest first."""
    try:
        with safe_files.open_file(path) as file:
            size = os.fstat(file).st_size
            data = os.pread(file, most, 0 if first else max(0, size - most))
    except OSError:
        return []
    lines = data.split(b"\n")[:-1]  # the last line may be incomplete
    return parse_rows(lines if first or size <= most else lines[1:])


def read_metrics(run: RunRecord, *, first: bool = False) -> list[dict[str, Any]]:
    """Return the last rows of a run's metrics, or the first."""
    return metric_rows(run, _METRICS, first=first)


def metric_rows(run: RunRecord, most: int = _TAIL, *, first: bool = False) -> list[dict[str, Any]]:
    """Return the rows in the last (or first) ``most`` bytes of a run's metrics, without those of jobs after this one.

    Of an earlier job at least 4 MB are read: the rows of later jobs follow its own.
    """
    path, until = run.run_dir / "metrics.jsonl", run.continued_at
    if until is None:
        return last_rows(path, most, first=first)
    return [row for row in last_rows(path, max(most, _METRICS), first=first) if _was_before(row, until)]


def _was_before(row: Mapping[str, Any], until: int) -> bool:
    at = as_number(row.get("time"))
    return at is None or at < until


def is_number(value: object) -> bool:
    """Return whether a value in a file is a finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]
