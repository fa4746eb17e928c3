"""Whether the ranks are started again after a launch that failed, and the line that says why. Standard library only.

A launch is started again in the same allocation: ranks are lost to signals, networks and devices. It is not where a
new start would only fail again: a bad request, a missing package, the same error at the same step as before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..run_folder.files import read_json
from ..run_folder.rank_records import Records
from .end_records import LOST_CONNECTION, read_hang

NEVER_AGAIN = {
    2: "the program exited with status 2 (invalid arguments or settings)",
    93: 'the program exited with status 93, which means "do not restart"',
}
TERMINATED = 143
USERS_MISTAKE = re.compile(r"(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError)\b|exited\b")
LOST_PEER = re.compile(f"{LOST_CONNECTION}|NCCL error|DistBackendError")
WITHOUT_PROGRESS = 3  # launches
LONGEST_CAUSE = 160


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended: its status, a line of cause, and how far it came.

    `error` is that of the rank that failed first, empty if none reported one or its cause is a lost peer. `step` is
    rank 0's last known step, `checkpoint` the newest checkpoint's; None if there is none. `is_terminated` is True if
    SIGTERM ended the ranks: preemption sends it to them well before it reaches the supervisor. `progress` is rank 0's
    progress record.
    """

    status: int
    cause: str
    error: str = ""
    step: int | None = None
    checkpoint: int | None = None
    is_terminated: bool = False
    progress: dict[str, Any] = field(default_factory=dict, compare=False)


def read_launch(
    attempt_dir: Path, records: tuple[Records, Records], checkpoints: Path, status: int, ranks: int
) -> LaunchEnd:
    """Return the end of the launch in `attempt_dir`; what cannot be read counts as absent.

    `records` are the progress and the end records of its `ranks`.
    """
    hang = read_hang(attempt_dir).get("cause")
    first = {} if hang else read_json(attempt_dir / "first_failure.json") or {}  # of a rank that lost the killed ones
    progress, ends = records
    lost = [rank for rank in range(ranks) if rank not in ends]
    reported = str(first.get("error", ""))
    error = "" if LOST_PEER.search(reported) or reported.endswith("SIGKILL") else reported
    if hang:
        cause = str(hang)
    elif lost and not error:
        cause = f"{_name(lost)} ended without reporting a status (killed, or the node was lost)"
    elif reported:
        cause = f"rank {first.get('rank')} on {first.get('node')}: {reported}"
    elif status == TERMINATED:
        cause = "the ranks were ended by SIGTERM"
    else:
        cause = f"the step ended with status {status}"
    first_rank = progress.get(0, {})
    step = first_rank.get("step")
    return LaunchEnd(
        status,
        cause[:LONGEST_CAUSE],
        error,
        step if isinstance(step, int) else None,
        newest(checkpoints),
        is_terminated=status == TERMINATED and not lost and not reported,
        progress=first_rank,
    )


def why_not_again(launches: Sequence[LaunchEnd], most: int) -> str:
    """Return why the ranks are not started again after these launches; empty if they are."""
    last = launches[-1]
    if last.status in NEVER_AGAIN:
        return NEVER_AGAIN[last.status]
    if last.is_terminated:
        return "SIGTERM usually means that the job was cancelled or preempted"
    if USERS_MISTAKE.match(last.error):
        return "a restart cannot fix this error"
    if len(launches) > 1 and last.error and (last.error, last.step) == (launches[-2].error, launches[-2].step):
        return "the previous launch failed with the same error at the same step"
    if len(launches) > most:
        return f"the limit --max-restarts {most} has been reached"
    recent = {launch.checkpoint for launch in launches[-WITHOUT_PROGRESS:]}
    if len(launches) >= WITHOUT_PROGRESS and last.checkpoint is not None and len(recent) == 1:
        return f"no progress: {WITHOUT_PROGRESS} launches without a newer checkpoint"
    return ""


def newest(checkpoints: Path) -> int | None:
    """Return the step of the newest checkpoint in a folder, None if there is none."""
    steps = [int(path.name[5:]) for path in checkpoints.glob("step-*") if path.name[5:].isdigit()]
    return max(steps, default=None)


def _name(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:8]))}{' …' * (len(ranks) > 8)}"
