"""Compare a run with what was requested, from the files that its ranks wrote. Another user's files may be damaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.base.decode import as_int, as_number, build
from clusterrun.base.errors import RequestError
from clusterrun.base.job import format_tasks
from clusterrun.base.units import plural
from clusterrun.compare.environment import VERSIONS, nodes_by_version
from clusterrun.records import end_records, progress, run_record
from clusterrun.records.progress import RankProgress
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder import ends, files
from clusterrun.run_folder.check_findings import DIFFERS, OK, UNKNOWN, Finding
from clusterrun.scheduler.slurm.hostlist import fold

MOST_RANKS = 100_000
NEVER_MET = "the ranks never connected to each other"
_NEVER_MET = [Finding(UNKNOWN, check, NEVER_MET) for check in ("nodes", "devices", "backend")]
_OWN_SCRIPT = [
    Finding(UNKNOWN, check, "only clusterrun's built-in tasks record this")
    for check in ("precision", "samples", "steps per epoch")
]

Ranks = Sequence[Mapping[str, Any]]
"""The entries of ``ranks`` in start.json; each has a ``rank`` and a ``node``."""


@dataclass(frozen=True)
class Training:
    """``training.json`` of a task, written by the worker's ``training/facts.py``; None, 0 or empty: not known."""

    precision: str = ""
    precision_requested: str = ""
    samples: int = 0
    micro_batch_size: int = 0
    grad_accum_steps: int = 0
    steps_per_epoch: int | None = None
    shared_steps: int | None = None
    shared_samples: int | None = None
    seen_samples: int | None = None
    each_once: bool = False
    drop_last: bool = False


def has_started(run: RunRecord) -> bool:
    """Return whether the ranks of the newest attempt met for their work, not only for a check."""
    attempt = run_record.newest_attempt(run)
    return attempt is not None and ends.load_start(attempt) is not None


def check_run(run: RunRecord) -> list[Finding]:
    """Return one finding for each expectation of a run. Raises RequestError if no rank has written a record."""
    attempt = run_record.newest_attempt(run)
    if attempt is None:
        raise _not_started(run)
    start = ends.load_start(attempt)
    heartbeats = progress.read_ranks(attempt)
    if start is None and not heartbeats and not ends.load_ends(attempt):
        raise _not_started(run)
    document = start or {"ranks": []}
    ranks = document["ranks"]
    findings = [_check_processes(run, ranks, heartbeats), _check_group(run, attempt, start is not None)]
    findings += _check_placement(run, ranks, document.get("backend")) if ranks else _NEVER_MET
    training = _load_training(attempt)
    findings += _check_training(run, training) if training.precision else _OWN_SCRIPT
    return findings + _check_versions(ranks)


def _not_started(run: RunRecord) -> RequestError:
    job = run.job_id or run.run_id
    return RequestError(f"job {job}: no rank has started yet", hint=f"clusterrun why {job}")


def _load_training(attempt: Path) -> Training:
    document = ends.load_training(attempt)
    return build(Training, document, lenient=document)  # what is damaged is not known


def _expect(check: str, is_met: bool, text: str, action: str = "") -> Finding:
    return Finding(OK, check, text) if is_met else Finding(DIFFERS, check, text, action)


# -- ranks, nodes and devices ------------------------------------------------------------------------------------------


def _check_processes(run: RunRecord, ranks: Ranks, heartbeats: Sequence[RankProgress]) -> Finding:
    joined = {rank["rank"] for rank in ranks}
    text = f"{run.world_size} expected, {len(joined)} joined"
    if len(joined) == run.world_size:
        return Finding(OK, "processes", text)
    recorded = joined or {heartbeat.rank for heartbeat in heartbeats}
    expected = range(min(run.world_size, MOST_RANKS))  # the record may be another user's, with any number
    absent = set(expected) - recorded
    if absent:
        text += f"; no record of rank{'s' * (len(absent) > 1)} {format_tasks(absent)}"
    return Finding(DIFFERS, "processes", text, f"clusterrun why {run.job_id or run.run_id}")


def _check_group(run: RunRecord, attempt: Path, started: bool) -> Finding:
    if end_records.were_separate(run, attempt):
        text = f"the {run.world_size} ranks did not join a process group: each rank ran independently"
        action = "turn on the script's distributed mode (torch.distributed.init_process_group), or use --independent"
        return Finding(DIFFERS, "process group", text, action)
    if ends.load_any_joined_group(attempt):
        return Finding(OK, "process group", "all ranks joined the same process group")
    if run.world_size == 1:
        return Finding(OK, "process group", "a single rank needs no process group")
    return Finding(UNKNOWN, "process group", "recorded only at the end of the run" if started else NEVER_MET)


def _check_placement(run: RunRecord, ranks: Ranks, backend: object) -> list[Finding]:
    """Compare nodes, devices and backend."""
    spec = files.read_json(run.run_dir / "spec.json") or {}
    gpus_per_node = as_int(spec.get("gpus_per_node"))
    return [_check_nodes(run, ranks), _check_devices(run, ranks, gpus_per_node), _check_backend(backend, gpus_per_node)]


def _check_nodes(run: RunRecord, ranks: Ranks) -> Finding:
    ranks_of_node = Counter(rank["node"] for rank in ranks)
    uneven = [item for item in ranks_of_node.items() if item[1] != run.workers_per_node]
    text = f"{run.nodes} expected, {len(ranks_of_node)} used"
    text += f"; {plural(run.workers_per_node, 'rank')} expected on each node"
    text += "".join(f", {count} found on {node}" for node, count in uneven)
    return _expect("nodes", len(ranks_of_node) == run.nodes and not uneven, text)


def _check_devices(run: RunRecord, ranks: Ranks, gpus_per_node: int | None) -> Finding:
    gpus = run.workers_per_node if gpus_per_node is None else gpus_per_node  # --gres gives one rank to each
    used = {(rank["node"], str(rank["device"])) for rank in ranks if _uses_gpu(rank)}
    text = f"{plural(gpus * run.nodes, 'GPU')} expected, {len(used)} used by {plural(len(ranks), 'rank')}"
    action = "see the note at the top of the log, and test the nodes with: clusterrun check --nodelist NODES"
    return _expect("devices", len(used) >= min(gpus, run.workers_per_node) * run.nodes, text, action)


def _uses_gpu(rank: Mapping[str, Any]) -> bool:
    return str(rank.get("device", "")).startswith("cuda")


def _check_backend(backend: object, gpus_per_node: int | None) -> Finding:
    expected = "gloo" if gpus_per_node == 0 else "nccl"
    action = "every rank needs its own GPU and a CUDA build of torch"
    return _expect("backend", backend == expected, f"{expected} expected, {str(backend)[:40]} used", action)


# -- the training of a task --------------------------------------------------------------------------------------------


def _check_training(run: RunRecord, training: Training) -> list[Finding]:
    """Compare precision, samples and steps of a task."""
    return [_check_precision(training), _check_samples(training), _check_steps(run, training)]


def _check_precision(training: Training) -> Finding:
    requested = training.precision_requested or "auto"
    text = f"{requested} requested, {training.precision} used"
    return _expect("precision", requested in ("auto", training.precision), text)


def _check_samples(training: Training) -> Finding:
    text = f"{training.shared_samples} in the first {_shared_steps(training)}"
    if training.each_once and training.shared_samples == training.seen_samples:
        return Finding(OK, "samples", f"{text}, each on exactly one rank")
    text += f"; the ranks used {training.seen_samples}: some samples are missing or repeated"
    return Finding(DIFFERS, "samples", text, "all ranks must load the same data: compare the files on the nodes")


def _shared_steps(training: Training) -> str:
    """Return the steps whose samples the ranks have compared, in words."""
    if training.shared_steps == training.steps_per_epoch:
        return "epoch"
    return "step" if training.shared_steps == 1 else f"{training.shared_steps} steps"


def _check_steps(run: RunRecord, training: Training) -> Finding:
    batch = training.micro_batch_size * training.grad_accum_steps * run.world_size
    if batch == 0 or training.samples == 0:
        return Finding(UNKNOWN, "steps per epoch", "training.json is damaged")
    expected = training.samples // batch if training.drop_last else math.ceil(training.samples / batch)
    counted = _steps_per_epoch(run.run_dir / "metrics.jsonl") or training.steps_per_epoch
    ranks, steps = plural(run.world_size, "rank"), plural(training.grad_accum_steps, "accumulation step")
    text = f"{expected} expected, {counted} counted"
    text += f"; expected = {training.samples} samples / (micro batch {training.micro_batch_size} x {ranks} x {steps})"
    return _expect("steps per epoch", expected == counted == training.steps_per_epoch, text)


def _steps_per_epoch(metrics: Path) -> int | None:
    """Return the steps per epoch by the newest metrics that have a step and an epoch, None if none have."""
    for row in reversed(progress.last_rows(metrics)):
        step, epoch = as_number(row.get("step")), as_number(row.get("epoch"))
        if step and epoch and epoch > 1e-12:
            return round(step / epoch)
    return None


# -- versions ----------------------------------------------------------------------------------------------------------


def _check_versions(ranks: Ranks) -> list[Finding]:
    """Return a finding for each version that differs between nodes, or one for all."""
    findings, recorded = [], []
    for name in VERSIONS:
        nodes = nodes_by_version(ranks, name)
        recorded += [f"{name} {version}" for version in nodes if version]
        if len(nodes) > 1:
            findings.append(_differing_version(name, nodes))
    if not recorded:
        return [Finding(UNKNOWN, "versions", "this run recorded no versions")]
    return findings or [Finding(OK, "versions", f"{', '.join(recorded)} on all nodes")]


def _differing_version(name: str, nodes_of_version: Mapping[str, Sequence[str]]) -> Finding:
    groups = sorted(nodes_of_version.items(), key=lambda group: -len(group[1]))
    text = ", ".join(f"{version or 'none'} on {fold(nodes)}" for version, nodes in groups)
    action = "use the same Python environment and driver on all nodes"
    action += " (set --python to a Python on a shared file system)"
    others = tuple(node for _, nodes in groups[1:] for node in nodes)
    return Finding(DIFFERS, f"{name} version", text, action, others)
