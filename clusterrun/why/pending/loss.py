"""Whether the loss that a running job prints is NaN or diverges, from both ends of its logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobStatus, log_paths
from clusterrun.logs.ends import read_ends
from clusterrun.logs.files import Stream
from clusterrun.records import launches, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.why.causes.model import Line
from clusterrun.why.causes.nan_series import find_divergence, find_nan_start

_READ = 64 * 1024, 512 * 1024  # bytes at both ends of each log


def loss_warning(logs: Iterable[Sequence[Line]]) -> str:
    """Return a line if the loss of the job's last launch became NaN or diverges, by its logs; empty if not."""
    for lines in logs:
        if found := find_nan_start(lines) or find_divergence(lines):
            return f"warning: {found[1]} ({lines[0].file})"
    return ""


def read_logs(run: RunRecord, job: JobStatus) -> Iterator[tuple[Line, ...]]:
    """Yield the lines at both ends of each log of the job's last launch, as far as they can be read."""
    source, folders = launches.log_source(run, job.id), run_record.attempts_of(run, job.id)
    begins = (launches.log_start(folders[-1]) if len(folders) > 1 else None) or source.begin
    for path, begin, stream in zip(log_paths(run.logs, job.id), begins, ("out", "err"), strict=True):
        try:
            ends = read_ends(
                path, cast("Stream", stream), world_size=run.world_size, begin=begin, owners=source.owners,
                sizes=_READ,
            )  # fmt: skip
        except (ClusterrunError, OSError):
            continue
        yield tuple(Line(path.name, number, line.rank, line.text) for number, line in ends.lines)
