"""launch.json in an attempt's folder: when a launch began and ended, why it failed, and how far its training came.

The launch's nodes are in ``nodes``, why the job was requeued after it in ``requeue.json``. Of a launch that still runs
launch.json has only ``began``; rank 0's heartbeat has the rest. What is damaged or has the wrong type is left out.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..base.decode import as_int, as_text, parse_fields
from . import safe_files, training_progress
from .ends import SAVED, Failure, parse_values
from .files import read_json, write_record

LAUNCH, REQUEUE, NODES = "launch.json", "requeue.json", "nodes"
#: Limits of a process that end jobs far from their cause: open files, processor seconds, bytes in a file, processes,
#: and bytes of address space.
LIMITS = ("NOFILE", "CPU", "FSIZE", "NPROC", "AS")
#: Keys of rank 0's progress record: the first and the last step of the launch, and seconds of a step.
STEPS = ("first_step", "first_step_at", "step", "stepped", "step_s")


#: What Slurm told the first launch of its job: see `find_queue_times`.
QUEUE_TIMES = ("submitted", "eligible", "started")


#: The cause of a launch whose ranks SIGTERM ended: only Slurm, or a requeue, knows why it came.
BY_SIGTERM = "the ranks were ended by SIGTERM"


class Launch(NamedTuple):
    """One launch. Times are in seconds since 1970; ``step`` is its last known step, done at ``stepped``.

    ``first_step`` is the first step that the launch reported. If the script prints every tenth step, it began earlier.

    ``cause`` is why it failed or was requeued, empty otherwise. ``step_s`` is the median time of its last steps, in
    seconds. None: not known.
    """

    folder: Path
    status: int | None = None
    cause: str = ""
    began: float | None = None
    ended: float | None = None
    first_step: int | None = None
    first_step_at: float | None = None
    step: int | None = None
    stepped: float | None = None
    step_s: float | None = None

    @property
    def start(self) -> str:
        """What the launches of one start of the job share: token and restart."""
        return self.folder.name.rpartition(".")[0]

    @property
    def token(self) -> str:
        """The token of its submission."""
        return re.split("[._]", self.folder.name)[0]

    @property
    def attempt(self) -> str:
        """Its name in logs: restart and launch, as ``0.1``."""
        return ".".join(self.folder.name.split(".")[-2:])

    def nodes(self) -> list[str]:
        """Return the names of its nodes; none if they are not known."""
        return nodes_of(self.folder)


class LaunchRecord:
    """The record of one launch, which began at `began` (seconds since 1970). A failure to write it changes nothing.

    `log_start` has the bytes in both logs of the job then; None if they are no files.
    """

    def __init__(self, folder: Path, began: float) -> None:
        self._path = folder / LAUNCH
        self.log_start = _log_sizes()
        self._document: dict[str, Any] = {"began": began, "log_start": self.log_start}
        self._document["limits"] = _finite_limits()
        self._write()

    def note_queue(self, times: Mapping[str, int]) -> None:
        """Keep when the job was submitted, eligible and started; the record of the launch's end has it."""
        self._document["queue"] = times

    def end(
        self, status: int, cause: str, kind: str, values: Mapping[str, object], progress: Mapping[str, Any]
    ) -> None:
        """Record how the launch ended, and how far rank 0 came; it has no cause unless it failed."""
        failed = status not in (0, SAVED)
        self._document |= {
            "ended": time.time(),
            "status": status,
            "cause": cause[:1_000] * failed,
            "kind": kind * failed,
            "values": values if failed else {},
            **{key: progress.get(key) for key in STEPS},
        }
        self._write()

    def _write(self) -> None:
        with suppress(OSError):
            write_record(self._path, self._document)


def folder_of(run_dir: Path, key: str, restart: int, launch: int) -> Path:
    """Return the folder of a launch; ``key`` names the submission and the task (``SubmissionRecord.key``)."""
    return run_dir / "attempts" / f"{key}.{restart}.{launch}"


def folders(run_dir: Path, key: str) -> list[Path]:
    """Return the folders of a job's launches, oldest first (by restart, then launch); none if they cannot be listed."""
    numbered = re.compile(re.escape(key) + r"\.([0-9]{1,9})\.([0-9]{1,9})")
    try:
        names = safe_files.list_names(run_dir / "attempts")
    except OSError:
        return []
    found = [match for match in map(numbered.fullmatch, names) if match]
    found.sort(key=lambda match: (int(match[1]), int(match[2])))
    return [run_dir / "attempts" / match[0] for match in found]


def nodes_of(folder: Path) -> list[str]:
    """Return the names of a launch's nodes, in the order of the ranks; none if they are not known.

    They are in a file, as the kernel limits the length of a variable to 128 KiB.
    """
    try:
        return safe_files.read_bytes(folder / NODES).decode(errors="replace").split()
    except OSError:
        return []


def find_limits(folder: Path) -> dict[str, int]:
    """Return the limits of the processes of a launch by their names in launch.json; none if they are not known."""
    limits = (read_json(folder / LAUNCH) or {}).get("limits")
    return {name: value for name, value in limits.items() if type(value) is int} if isinstance(limits, dict) else {}


def find_queue_times(folder: Path) -> dict[str, int]:
    """Return when the job of a launch was ``submitted``, ``eligible`` and ``started``, in seconds since 1970.

    Times that Slurm did not tell the launch are missing.
    """
    times = (read_json(folder / LAUNCH) or {}).get("queue")
    known = {name: as_int(times.get(name)) for name in QUEUE_TIMES} if isinstance(times, dict) else {}
    return {name: at for name, at in known.items() if at is not None}


def find_failure(folder: Path) -> Failure | None:
    """Return why a launch failed by the supervisor's record, None if it did not or that is not known."""
    document = read_json(folder / LAUNCH) or {}
    kind = as_text(document.get("kind"))
    if not kind:
        return None
    error, values = as_text(document.get("cause")), parse_values(document)
    return Failure(error=error, file=str(folder / LAUNCH), kind=kind, values=values)


def load(folder: Path) -> Launch:
    """Return the launch that these records describe; after a requeue, its cause is the reason for the requeue."""
    launch = _with_printed_steps(load_own(folder))
    why = why_requeued(folder) if launch.cause in ("", BY_SIGTERM) else ""
    return launch._replace(cause=why) if why else launch


def _with_printed_steps(launch: Launch) -> Launch:
    """Return a launch with the steps of progress.json where its ranks reported none, as those of a user's script."""
    progress = training_progress.load(launch.folder) if launch.step is None else None
    if progress is None:
        return launch
    steps = {name: getattr(progress, name) for name in ("first_step", "first_step_at", "step", "stepped")}
    pace = progress.steps_per_second
    return launch._replace(**steps, step_s=1 / pace if pace else None)


def load_own(folder: Path) -> Launch:
    """Return what launch.json alone says of a launch."""
    return Launch(**{**parse_fields(Launch, read_json(folder / LAUNCH) or {}), "folder": folder})


def why_requeued(folder: Path) -> str:
    """Return why the job was requeued after a launch, empty if it was not or that is not known."""
    return as_text((read_json(folder / REQUEUE) or {}).get("why"))


def _finite_limits() -> dict[str, int]:
    """Return the limits of this process that its ranks inherit (srun passes them on), without those that are none."""
    import resource  # only a job reads its limits

    found = {name.lower(): resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in LIMITS}
    return {name: value for name, value in found.items() if value != resource.RLIM_INFINITY}


def _log_sizes() -> list[int] | None:
    """Return the bytes in both logs of the job, which are this program's stdout and stderr; None if they are none."""
    with suppress(OSError):
        found = [os.fstat(descriptor) for descriptor in (1, 2)]
        if all(stat.S_ISREG(one.st_mode) for one in found):
            return [one.st_size for one in found]
    return None
