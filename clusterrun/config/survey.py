"""What there is to run on: Slurm's partitions, limits and accounts, or this machine; and the profile made of it.

Each command is a pair of pure functions, argv out and text in; ``look`` runs them through an injected door and
takes any of them failing as an answer too. Parsers pass over lines they do not know: sites print banners.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from clusterrun.errors import CommandError
from clusterrun.scheduler.slurm.sacct import Presence, accounting_argv, parse_accounting
from clusterrun.scheduler.slurm.sacctmgr import Association, associations_argv, parse_associations
from clusterrun.scheduler.slurm.scontrol import config_argv, parse_config
from clusterrun.scheduler.slurm.sinfo import PartitionSummary, parse_sinfo, sinfo_argv
from clusterrun.system.shell import Completed

Run = Callable[[Sequence[str]], Completed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was seen. ``slurm`` is ``silent`` where it is set up but did not answer; ``said`` holds its words then.

    ``accounting`` is ``yes``, ``silent`` or ``none`` likewise; ``message_timeout`` and ``min_job_age`` are seconds.
    """

    slurm: Presence
    said: str = ""
    cluster: str = ""
    partitions: tuple[PartitionSummary, ...] = ()
    accounting: Presence = "none"
    enforce: tuple[str, ...] = ()
    message_timeout: int | None = None
    min_job_age: int | None = None
    associations: tuple[Association, ...] = ()
    local_gpus: int = 0


def gpus_argv() -> list[str]:
    """Ask this machine for its GPUs."""
    return ["nvidia-smi", "-L"]


def parse_local_gpus(text: str) -> int:
    """The number of GPUs of this machine; slices of one (MIG) do not count."""
    return len(re.findall(r"^GPU [0-9]+:", text, re.MULTILINE))


def run_survey(run: Run, user: str) -> Survey:
    """Look at the cluster, or at this machine where there is none; a command that fails leaves its facts empty."""
    seen = _try(run, sinfo_argv())
    if seen.status != 0:
        said = _first_line(seen.stderr or seen.stdout)
        absent = seen.status == _NOT_STARTED or "configuration source" in seen.stderr
        gpus = _try(run, gpus_argv())
        count = parse_local_gpus(gpus.stdout) if gpus.status == 0 else 0
        return Survey(slurm="none" if absent else "silent", said=said, local_gpus=count)
    config = parse_config(_try(run, config_argv()).stdout)
    cluster = config.get("ClusterName", "")
    storage = config.get("AccountingStorageType")
    off = storage is not None and not storage.removeprefix("accounting_storage/").replace("none", "")
    accounting: Presence = "none" if off else parse_accounting(_try(run, accounting_argv()))
    mine = _try(run, associations_argv(user, cluster)) if accounting == "yes" else Completed(1, "", "")
    return Survey(
        slurm="yes",
        cluster=cluster,
        partitions=parse_sinfo(seen.stdout),
        accounting=accounting,
        enforce=tuple(
            w for w in re.split(r"[,\s]+", config.get("AccountingStorageEnforce", "")) if w not in ("", "none")
        ),
        message_timeout=_seconds(config.get("MessageTimeout", "")),
        min_job_age=_seconds(config.get("MinJobAge", "")),
        associations=parse_associations(mine.stdout) if mine.status == 0 else (),
    )


_NOT_STARTED = -1


def _try(run: Run, argv: Sequence[str]) -> Completed:
    try:
        return run(argv)
    except CommandError as error:
        status = 1 if error.timed_out else _NOT_STARTED if error.status is None else error.status
        return Completed(status, error.stdout, error.stderr or error.message)


def _seconds(text: str) -> int | None:
    match = re.match(r"[0-9]{1,9}", text)
    return int(match[0]) if match else None


def _first_line(text: str) -> str:
    return next((line.strip() for line in _lines_backwards(text)), "")


def _lines_backwards(text: str) -> Iterable[str]:
    """The last line first: Slurm's own reason stands below the steps that led to it."""
    return (line for line in reversed(text.split("\n")) if line.strip())
