"""Whether the ranks are started again after a launch that failed, and the line that says why. Standard library only.

A launch is started again in the same allocation: ranks are lost to signals, networks and devices. It is not where a
new start would only fail again: a bad request, a missing package, the same error at the same step as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...base.decode import as_int
from ...run_folder import ends
from ...run_folder.files import read_json
from ...run_folder.launches import BY_SIGTERM
from ...run_folder.rank_records import Records
from ..node.local_launcher import EXIT
from ..rank.failures import LOST_PEER

NEVER_AGAIN = {
    2: "the program exited with status 2 (invalid arguments or settings)",
    93: 'the program exited with status 93, which means "do not restart"',
}
TERMINATED = 143
USERS_MISTAKES = ("code-error", "exited")  # kinds of failures that come again at each start
OF_A_LOST_RANK = (*LOST_PEER, "collective-error", "command-killed")  # kinds that follow from the loss of a rank
BY_SIGNAL = {137: "killed", **dict.fromkeys((131, 132, 134, 135, 136, 138, 139), "crashed")}
WITHOUT_PROGRESS = 3  # launches
LONGEST_CAUSE = 160


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended: its status, a line of cause, and how far it came.

    `kind` and `values` are the cause as data (see WorkerError). `error` is that of the rank that failed first, empty if
    none reported one or it follows from a lost rank. `step` is rank 0's last known step, `checkpoint` the newest
    checkpoint's; None if there is none. `progress` is rank 0's progress record.
    """

    status: int
    cause: str
    error: str = ""
    step: int | None = None
    checkpoint: int | None = None
    kind: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict, compare=False)


def read_launch(
    attempt_dir: Path, records: tuple[Records, Records], checkpoints: Path, status: int, ranks: int
) -> LaunchEnd:
    """Return the end of the launch in `attempt_dir`; what cannot be read counts as absent.

    `records` are the progress and the end records of its `ranks`.
    """
    progress, ends = records
    end = _find_cause(attempt_dir, status, [rank for rank in range(ranks) if rank not in ends])
    first_rank = progress.get(0, {})
    return replace(
        end,
        cause=end.cause[:LONGEST_CAUSE],
        step=as_int(first_rank.get("step")),
        checkpoint=newest(checkpoints),
        progress=first_rank,
    )


def _find_cause(attempt_dir: Path, status: int, lost: Sequence[int]) -> LaunchEnd:
    """Return the cause of a launch; `lost` are the ranks without an end record."""
    hang, first = ends.find_hang(attempt_dir), ends.find_failure(attempt_dir)
    if hang is not None:  # the first failure is then of a rank that lost the killed ones
        return LaunchEnd(status, hang.cause, kind="hang")
    is_root = first is not None and first.kind not in OF_A_LOST_RANK
    if lost and not is_root:
        return _lost_ranks(attempt_dir, status, lost)
    if first is not None:
        cause = f"rank {first.rank} on {first.node}: {first.error}"
        return LaunchEnd(status, cause, first.error * is_root, kind=first.kind, values=first.values)
    if status == TERMINATED:
        return LaunchEnd(status, BY_SIGTERM, kind="terminated")
    return LaunchEnd(status, f"the step ended with status {status}", kind="step-ended")


def _lost_ranks(attempt_dir: Path, status: int, lost: Sequence[int]) -> LaunchEnd:
    """Return the end of a launch that lost ranks; the local scheduler's launcher knows how the first one ended."""
    cause = f"{_name(lost)} ended without reporting a status (killed, or the node was lost)"
    seen = read_json(attempt_dir / EXIT)
    if seen is not None:
        kind = BY_SIGNAL.get(as_int(seen.get("status")) or 0, "task-ended")
        return LaunchEnd(status, cause, kind=kind, values=seen)
    return LaunchEnd(status, cause, kind="ranks-lost", values={"ranks": list(lost[:8])})


def why_not_again(launches: Sequence[LaunchEnd], most: int) -> str:
    """Return why the ranks are not started again after these launches; empty if they are."""
    last = launches[-1]
    if last.status in NEVER_AGAIN:
        return NEVER_AGAIN[last.status]
    if last.kind == "terminated":
        return "SIGTERM usually means that the job was cancelled or preempted"
    if last.kind in USERS_MISTAKES:
        return "a restart cannot fix this error"
    if len(launches) > 1 and last.error and _failed_alike(last, launches[-2]):
        return "the previous launch failed with the same error at the same step"
    if len(launches) > most:
        return f"the limit --max-restarts {most} has been reached"
    if _made_no_progress(launches[-WITHOUT_PROGRESS:]):
        return f"no progress: {WITHOUT_PROGRESS} launches without a newer checkpoint"
    return ""


def _failed_alike(last: LaunchEnd, before: LaunchEnd) -> bool:
    return (last.error, last.step) == (before.error, before.step)


def _made_no_progress(recent: Sequence[LaunchEnd]) -> bool:
    newest_checkpoints = {launch.checkpoint for launch in recent}
    return len(recent) == WITHOUT_PROGRESS and len(newest_checkpoints) == 1 and None not in newest_checkpoints


def newest(checkpoints: Path) -> int | None:
    """Return the step of the newest checkpoint in a folder, None if there is none."""
    steps = [int(path.name[5:]) for path in checkpoints.glob("step-*") if path.name[5:].isdigit()]
    return max(steps, default=None)


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}{' …' * (len(ranks) > 8)}"
