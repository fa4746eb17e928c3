"""Compare a run with what was requested, from the files that its ranks wrote. Another user's files may be damaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.decode import as_int, parse_fields
from clusterrun.base.errors import RequestError
from clusterrun.base.job import format_tasks
from clusterrun.base.units import plural
from clusterrun.compare.check_report import DIFFERS, OK, UNKNOWN, Finding
from clusterrun.records import progress, rank_records, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import files
from clusterrun.scheduler.slurm.hostlist import fold

VERSIONS = ("python", "torch", "nccl", "driver")
MOST_RANKS = 100_000
NEVER_MET = "the ranks never connected to each other"
_NEVER_MET = [Finding(UNKNOWN, check, NEVER_MET) for check in ("nodes", "devices", "backend")]
_OWN_SCRIPT = [
    Finding(UNKNOWN, check, "only clusterrun's built-in tasks record this")
    for check in ("precision", "samples", "steps per epoch")
]


class Training(NamedTuple):
    """``training.json`` of a task, written by the worker's ``training/facts.py``; None: not known."""

    precision: str = ""
    precision_requested: str = ""
    samples: int | None = None
    micro_batch_size: int | None = None
    grad_accum_steps: int | None = None
    steps_per_epoch: int | None = None
    shared_steps: int | None = None
    shared_samples: int | None = None
    seen_samples: int | None = None
    each_once: bool | None = None
    drop_last: bool | None = None


class _Row(NamedTuple):
    step: int | None = None
    epoch: float | None = None


def has_started(run: RunRecord) -> bool:
    """Return whether the ranks of the newest attempt met for their work, not only for a check."""
    folders = run_record.attempts(run)
    return bool(folders) and rank_records.load_start(folders[-1]) is not None


def check_run(run: RunRecord) -> list[Finding]:
    """Return one finding for each expectation of a run. Raises RequestError if no rank has written a record."""
    folders = run_record.attempts(run)
    attempt = folders[-1] if folders else None
    start = rank_records.load_start(attempt) if attempt else None
    heartbeats = progress.read_ranks(attempt) if attempt else []
    if attempt is None or (start is None and not heartbeats and not rank_records.load_ends(attempt)):
        job = run.job_id or run.run_id
        raise RequestError(f"job {job}: no rank has started yet", hint=f"clusterrun why {job}")
    spec = files.read_json(run.run_dir / "spec.json") or {}
    ranks: list[dict[str, Any]] = start["ranks"] if start else []
    data = files.read_json(attempt / "training.json") or {}
    flags = {name: data[name] for name in ("each_once", "drop_last") if isinstance(data.get(name), bool)}
    training = Training(**parse_fields(Training, data), **flags)
    return [
        _processes(run, ranks, {one.rank for one in heartbeats}),
        _group(run, attempt, start is not None),
        *(_placement(run, spec, start.get("backend"), ranks) if start and ranks else _NEVER_MET),
        *(_training(run, training) if training.precision else _OWN_SCRIPT),
        *_versions(ranks),
    ]


def _expect(check: str, good: bool, text: str, action: str = "") -> Finding:
    return Finding(OK, check, text) if good else Finding(DIFFERS, check, text, action)


def _processes(run: RunRecord, ranks: Sequence[Mapping[str, Any]], seen: set[int]) -> Finding:
    joined = {rank["rank"] for rank in ranks}
    # the record may be another user's, with any number
    absent = [rank for rank in range(min(run.world_size, MOST_RANKS)) if rank not in (joined or seen)]
    missing = f"; no record of rank{'s' if len(absent) > 1 else ''} {format_tasks(absent)}" if absent else ""
    good = len(joined) == run.world_size
    text = f"{run.world_size} expected, {len(joined)} joined{'' if good else missing}"
    return _expect("processes", good, text, f"clusterrun why {run.job_id or run.run_id}")


def _group(run: RunRecord, attempt: Path, started: bool) -> Finding:
    if rank_records.were_separate(run, attempt):
        text = f"the {run.world_size} ranks did not join a process group: each rank ran independently"
        action = "turn on the script's distributed mode (torch.distributed.init_process_group), or use --independent"
        return Finding(DIFFERS, "process group", text, action)
    if rank_records.load_any_joined_group(attempt):
        return Finding(OK, "process group", "all ranks joined the same process group")
    if run.world_size == 1:
        return Finding(OK, "process group", "a single rank needs no process group")
    return Finding(UNKNOWN, "process group", "recorded only at the end of the run" if started else NEVER_MET)


def _placement(
    run: RunRecord, spec: Mapping[str, Any], backend: object, ranks: Sequence[Mapping[str, Any]]
) -> Iterator[Finding]:
    """Compare nodes, devices and backend."""
    each = Counter(rank["node"] for rank in ranks)
    text = f"{run.nodes} expected, {len(each)} used; {plural(run.tasks_per_node, 'rank')} expected on each node"
    uneven = [f", {count} found on {node}" for node, count in each.items() if count != run.tasks_per_node]
    yield _expect("nodes", len(each) == run.nodes and not uneven, text + "".join(uneven))
    used = {(rank["node"], str(rank["device"])) for rank in ranks if str(rank.get("device", "")).startswith("cuda")}
    gpus = as_int(spec.get("gpus_per_node"))
    gpus = run.tasks_per_node if gpus is None else gpus  # --gres gives one rank to each
    text = f"{plural(gpus * run.nodes, 'GPU')} expected, {len(used)} used by {plural(len(ranks), 'rank')}"
    action = "see the note at the top of the log, and test the nodes with: clusterrun check --nodelist NODES"
    yield _expect("devices", not gpus or len(used) >= min(gpus, run.tasks_per_node) * run.nodes, text, action)
    expected = "gloo" if spec.get("gpus_per_node") == 0 else "nccl"
    action = "every rank needs its own GPU and a CUDA build of torch"
    yield _expect("backend", backend == expected, f"{expected} expected, {str(backend)[:40]} used", action)


def _training(run: RunRecord, training: Training) -> Iterator[Finding]:
    """Compare precision, samples and steps of a task."""
    requested = training.precision_requested or "auto"
    text = f"{requested} requested, {training.precision} used"
    yield _expect("precision", requested in ("auto", training.precision), text)
    whole = training.shared_steps == training.steps_per_epoch
    first = "epoch" if whole else "step" if training.shared_steps == 1 else f"{training.shared_steps} steps"
    text = f"{training.shared_samples} in the first {first}"
    good = bool(training.each_once) and training.shared_samples == training.seen_samples
    used = f"; the ranks used {training.seen_samples}: some samples are missing or repeated"
    text += ", each on exactly one rank" if good else used
    yield _expect("samples", good, text, "all ranks must load the same data: compare the files on the nodes")
    micro, accum, samples = training.micro_batch_size, training.grad_accum_steps, training.samples
    batch = (micro or 0) * (accum or 0) * run.world_size
    if batch <= 0 or not samples:
        yield Finding(UNKNOWN, "steps per epoch", "training.json is damaged")
        return
    expected = samples // batch if training.drop_last else math.ceil(samples / batch)
    rows = [_Row(**parse_fields(_Row, row)) for row in progress.last_rows(run.run_dir / "metrics.jsonl")]
    counts = [round(row.step / row.epoch) for row in rows if row.step and row.epoch and row.epoch > 1e-12]
    actual = counts[-1] if counts else training.steps_per_epoch
    ranks, steps = plural(run.world_size, "rank"), plural(accum or 0, "accumulation step")
    text = f"{expected} expected, {actual} counted"
    text += f"; expected = {samples} samples / (micro batch {micro} x {ranks} x {steps})"
    yield _expect("steps per epoch", expected == actual == training.steps_per_epoch, text)


def _versions(ranks: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return a finding for each version that differs between nodes, or one for all."""
    found, same = [], []
    for name in VERSIONS:
        nodes: dict[str, dict[str, None]] = {}
        for rank in ranks:
            if isinstance(rank.get(name), str):
                nodes.setdefault(rank[name], {})[rank["node"]] = None
        groups = sorted(nodes.items(), key=lambda group: -len(group[1]))
        same += [f"{name} {version}" for version in nodes if version]
        if len(groups) > 1:
            text = ", ".join(f"{version or 'none'} on {fold(names)}" for version, names in groups)
            action = "use the same Python environment and driver on all nodes"
            action += " (set --python to a Python on a shared file system)"
            where = tuple(node for _, names in groups[1:] for node in names)
            found.append(Finding(DIFFERS, f"{name} version", text, action, where))
    if not same:
        return [Finding(UNKNOWN, "versions", "this run recorded no versions")]
    return found or [Finding(OK, "versions", f"{', '.join(same)} on all nodes")]
