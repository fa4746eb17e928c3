"""What a launch saw of its nodes, kept in the user's state folder for the next `submit` (ADR 40).

Only Slurm, the driver, `check` and the watchdog can accuse a node, and only one of the launch's own: what a program
reports of itself counts for nothing. All of this is an extra: it may fail or hang without an effect on the job.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from ...base.decode import as_int, as_number, as_objects, as_text, as_texts
from ...run_folder import ends, launches, node_failures, rank_records
from ...run_folder.check_findings import BROKEN, DIFFERS
from ...run_folder.ends import SAVED
from ...run_folder.files import read_json, state_folder
from ...run_folder.node_failures import BUS, CHECK, LAUNCH, LOST, MEMORY, SLOW, WELL, XID, NodeFailure
from ..node import batch_host
from ..node.log import say
from . import requeue
from .job import Job

PATIENCE_S = 10.0  # for the home folder, which may be on a file system of its own
TAIL = 262_144  # bytes of each log
#: Xids of a GPU, or its links, that fails; 13, 31, 43 and 45 are a program's, and others say too little.
XIDS = frozenset((b"48", b"63", b"64", b"74", b"79", b"92", b"94", b"95", b"119"))
_RANKS_LINE = re.compile(
    rb" *(?P<rank>[0-9]{1,7}): .{0,2000}?(?:NVRM: Xid \([^)]{1,60}\): (?P<xid>[0-9]{1,4})\b|(?P<bus>GPU has fallen off)"
    rb"|(?P<memory>[Uu]ncorrectable (?:ECC|NVLink) error(?! *s?:)))"
)
_SLURMS_LINE = re.compile(
    rb"srun: error: (?:Node failure on (?P<lost>[^\s:,]+)|Task launch for \S+ failed on node (?P<unlaunched>[^\s:]+): "
    rb"(?:Communication connection failure|Socket timed out|Zero Bytes|Unable to contact|Job prolog failed"
    rb"|Invalid (?:job )?(?:credential|authentication)))"
)
#: What accuses a node that `check` has measured, by check and status; cores of a CPU may be shared.
FINDINGS = frozenset((("devices", BROKEN), *product(("gemm", "links"), (BROKEN, DIFFERS))))

Seen = Iterator[tuple[str, str, str]]
"""Nodes, each with the kind of its failure and a detail."""


def note_launch(job: Job, status: int) -> None:
    """Keep which nodes failed in the launch that ended with `status`, or that it ran well on nodes that failed."""
    _try(job, lambda: _note(job, [*_of_launch(job, status)]))


def note_lost_host(job: Job) -> None:
    """Keep that the first node of the job's previous start was lost, if its supervisor left no word and Slurm none."""
    if job.identity.restart:
        _try(job, lambda: _note(job, [*_of_previous_start(job)]))


def _try(job: Job, keep: Callable[[], None]) -> None:
    """Do it in a thread of its own, for a limited time."""
    if job.options.local:
        return

    def run() -> None:
        try:
            keep()
        except Exception as error:  # a bug here must not end the run
            say(f"cannot remember how the nodes did: {type(error).__name__}: {error}")

    thread = threading.Thread(target=run, name="clusterrun-nodes", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


def _note(job: Job, seen: Sequence[NodeFailure]) -> None:
    if seen:
        node_failures.note(state_folder(os.environ), job.identity.cluster, seen, time.time())


def _of_launch(job: Job, status: int) -> Iterator[NodeFailure]:
    nodes = launches.nodes_of(job.attempt_dir)  # none if the launch failed before it had some
    lost = [*_lost(job, nodes)]
    is_well = status in (0, SAVED) and not lost and ends.find_hang(job.attempt_dir) is None
    more = _slow(job, nodes) if is_well else _in_logs(job, nodes)
    found: dict[str, NodeFailure] = {}
    for node, kind, detail in (*lost, *_in_check(job.attempt_dir, nodes), *more):
        if node in nodes and node not in found:
            found[node] = _failure(job, node, kind, detail, time.time())
    yield from found.values()
    if is_well:
        yield from _cleared(job, {*nodes} - {*found})


def _cleared(job: Job, nodes: set[str]) -> Iterator[NodeFailure]:
    """Yield WELL for those of the nodes that failed before."""
    failed = node_failures.load(state_folder(os.environ), job.identity.cluster, time.time())
    began = launches.load_own(job.attempt_dir).began or 0.0
    for node in nodes.intersection(failed):
        yield _failure(job, node, WELL, "", began)


def _failure(job: Job, node: str, kind: str, detail: str, at: float) -> NodeFailure:
    return NodeFailure(node, int(at), kind, detail, job.name, job.attempt_dir.name)


def _lost(job: Job, nodes: Sequence[str]) -> Seen:
    """Yield the nodes of the launch that did not respond to the watchdog, or after its end."""
    hang = ends.find_hang(job.attempt_dir)
    for node in job.lost_nodes.union(hang.lost_nodes if hang is not None else ()).intersection(nodes):
        yield node, LOST, ""


def _in_check(folder: Path, nodes: Sequence[str]) -> Seen:
    """Yield the nodes with broken or slow GPUs or links, if most others have none: else the request may be wrong."""
    report, found = read_json(folder / "check.json") or {}, dict[str, str]()
    for finding in as_objects(report.get("findings")) if as_int(report.get("gpus_per_node")) else ():
        where, check = as_texts(finding.get("where")), as_text(finding.get("check"))
        if len(where) == 1 and (check, as_text(finding.get("status"))) in FINDINGS:
            found.setdefault(where[0], check)
    if 2 * len(found) <= len(nodes):
        yield from ((node, CHECK, check) for node, check in found.items())


def _slow(job: Job, nodes: Sequence[str]) -> Seen:
    """Yield the nodes of slow ranks (ADR 24)."""
    busy: dict[int, float] = {}
    for rank, record in job.records[rank_records.PROGRESS].items():
        data_s, compute_s = as_number(record.get("data_s")), as_number(record.get("compute_s"))
        if data_s is not None and compute_s is not None:
            busy[rank] = data_s + compute_s
    for rank, speed in rank_records.find_slow(busy).items():
        yield _node_of(job, nodes, rank), SLOW, f"{speed:.2f}"


def _in_logs(job: Job, nodes: Sequence[str]) -> Seen:
    """Yield the nodes that Slurm or the driver accuses in the launch's part of the logs."""
    for line in _lines(job):
        if match := _SLURMS_LINE.match(line):
            yield (match["lost"] or match["unlaunched"]).decode(errors="replace"), LOST if match["lost"] else LAUNCH, ""
        elif match := _RANKS_LINE.match(line):
            yield from _of_driver(match, _node_of(job, nodes, int(match["rank"])))


def _of_driver(match: re.Match[bytes], node: str) -> Seen:
    """Yield the node if the driver's words in a line of its rank are about hardware."""
    if match["xid"] is None:
        yield node, BUS if match["bus"] else MEMORY, ""
    elif match["xid"] in XIDS:
        yield node, XID, match["xid"].decode()


def _lines(job: Job) -> Iterator[bytes]:
    """Yield the last lines of the launch in both logs, the errors first."""
    starts = job.record.log_start if job.record is not None else None
    for number, start in zip((2, 1), reversed(starts or ()), strict=False):
        yield from batch_host.log_tail(number, TAIL, start).split(b"\n")


def _node_of(job: Job, nodes: Sequence[str], rank: int) -> str:
    """Return the node of a rank; empty for a number that is none."""
    place = rank // job.options.workers_per_node
    return nodes[place] if place < len(nodes) else ""


def _of_previous_start(job: Job) -> Iterator[NodeFailure]:
    """Yield the first node of the previous start, if only the loss of it explains that Slurm requeued the job."""
    start = f"{job.key}.{job.identity.restart - 1}."
    before = [folder for folder in launches.folders(job.run_dir, job.key) if folder.name.startswith(start)]
    if not before or ends.load_job_end(before[-1]) is not None or launches.why_requeued(before[-1]):
        return
    log_end = int(job.options.log_start.split()[-1])
    if batch_host.CANCELLED.search(batch_host.log_tail(2, batch_host.LOG_TAIL, 0, log_end)):
        return  # a preemption or a requeue, after which the supervisor was killed before its record
    launch = launches.load_own(before[-1])
    with suppress(IndexError):
        lost = launch.nodes()[0]
        at = requeue.last_sign(launch, launch.began or time.time())
        yield NodeFailure(lost, int(at), LOST, "", job.name, launch.folder.name)
