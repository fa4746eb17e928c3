"""Survey the cluster for `clusterrun init`: Slurm's partitions, limits and accounts, or this machine's GPUs.

A command that fails leaves its values empty. Parsers skip unknown lines: some sites print banners.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterrun.base.errors import CommandError
from clusterrun.scheduler.slurm.sacct import Presence, accounting_argv, parse_accounting
from clusterrun.scheduler.slurm.sacctmgr import Association, associations_argv, parse_associations
from clusterrun.scheduler.slurm.scontrol import parse_config, show_argv
from clusterrun.scheduler.slurm.sinfo import PartitionSummary, parse_sinfo, sinfo_argv
from clusterrun.scheduler.slurm.values import short
from clusterrun.system.shell import Completed

Run = Callable[[Sequence[str]], Completed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The properties of a cluster. ``slurm`` and ``accounting`` are ``silent`` if installed but not responding.

    ``detail`` is Slurm's message if it did not respond.
    """

    slurm: Presence
    detail: str = ""
    cluster: str = ""
    partitions: tuple[PartitionSummary, ...] = ()
    accounting: Presence = "none"
    enforce: tuple[str, ...] = ()
    associations: tuple[Association, ...] = ()
    local_gpus: int = 0


def parse_local_gpus(text: str) -> int:
    """Return the number of GPUs in the output of `nvidia-smi -L`, without MIG slices."""
    return len(re.findall(r"^GPU [0-9]+:", text, re.MULTILINE))


def run_survey(run: Run, user: str) -> Survey:
    """Survey the cluster, or this machine if there is none."""
    sinfo = _try(run, sinfo_argv())
    if sinfo.status != 0:
        return _survey_machine(run, sinfo)
    config = parse_config(_try(run, show_argv("config")).stdout)
    cluster = config.get("ClusterName", "")
    accounting = _find_accounting(run, config)
    enforced = re.findall(r"[^,\s]+", config.get("AccountingStorageEnforce", ""))
    return Survey(
        slurm="yes",
        cluster=cluster,
        partitions=parse_sinfo(sinfo.stdout),
        accounting=accounting,
        enforce=tuple(word for word in enforced if word != "none"),
        associations=_find_associations(run, user, cluster) if accounting == "yes" else (),
    )


def _survey_machine(run: Run, sinfo: Completed) -> Survey:
    """Survey this machine; sinfo's answer says whether Slurm is absent or does not respond."""
    is_absent = sinfo.status == _NOT_STARTED or "configuration source" in sinfo.stderr
    gpus = _try(run, ["nvidia-smi", "-L"])
    return Survey(
        slurm="none" if is_absent else "silent",
        detail=_last_line(sinfo.stderr or sinfo.stdout),
        local_gpus=parse_local_gpus(gpus.stdout) if gpus.status == 0 else 0,
    )


def _find_accounting(run: Run, config: Mapping[str, str]) -> Presence:
    storage = config.get("AccountingStorageType")
    if storage is not None and storage.removeprefix("accounting_storage/") in ("", "none"):
        return "none"
    return parse_accounting(_try(run, accounting_argv()))


def _find_associations(run: Run, user: str, cluster: str) -> tuple[Association, ...]:
    answer = _try(run, associations_argv(user, cluster))
    return parse_associations(answer.stdout) if answer.status == 0 else ()


_NOT_STARTED = -1


def _try(run: Run, argv: Sequence[str]) -> Completed:
    try:
        return run(argv)
    except CommandError as error:
        status = _NOT_STARTED if error.status is None else error.status
        if error.timed_out:
            status = 1
        return Completed(status, error.stdout, error.stderr or error.message)


def _last_line(text: str) -> str:
    """Return the last line with text: Slurm prints the reason below the steps that led to it."""
    return short(text.strip().rpartition("\n")[2].strip())
