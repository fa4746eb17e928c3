"""Write the commented ``clusterrun.toml`` of ``clusterrun init`` from a survey of the cluster.

Comments begin with ``# ``. Suggestions are settings behind a bare ``#``: remove it to enable them. Settings without it
come from the cluster.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, islice

from clusterrun.base.errors import RequestError
from clusterrun.base.units import clause, parse_time_limit, plural
from clusterrun.config.survey import Survey
from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.scheduler.slurm.sinfo import PartitionSummary

_MOST_PROFILES = 12  # for more partitions, sinfo is the better view
_MOST_ROWS = 40
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def config_text(facts: Survey) -> str:
    """Return the text of the file for Slurm or a machine without it; it is valid as it is and with any suggestion."""
    on_slurm = facts.slurm == "yes"
    lines = [
        *_comment(
            "Settings for this project, written by `clusterrun init`. Each setting is named after its flag. "
            "Flags and job files override this file; this file overrides ~/.config/clusterrun/config.toml. "
            "To enable a setting, remove the # in front of it.",
            "",
        ),
        *(_slurm(facts) if on_slurm else _local(facts)),
        "",
        *_comment("The default job: a file in jobs/ or a job shipped with clusterrun.", '#job = "lm"', ""),
        *_comment(
            "Shell lines to run once on the first node before the ranks start, and environment variables for the job."
        ),
        '#setup = ["module load cuda"]',
        '#env.NCCL_DEBUG = "WARN"',
        *(_other_partitions(facts) if on_slurm else ()),
    ]
    return "\n".join(lines) + "\n"


def choose_partition(facts: Survey) -> PartitionSummary | None:
    """Return the default partition if it has GPUs, else the one with the most GPUs; without GPUs the default."""
    usable = [partition for partition in facts.partitions if partition.up and partition.node_count]
    return max(usable, key=_preference, default=None)


def _preference(partition: PartitionSummary) -> tuple[bool, bool, int]:
    has_gpus = partition.gpu_total > 0
    return has_gpus, partition.default, partition.gpu_total if has_gpus else partition.node_count


def _slurm(facts: Survey) -> list[str]:
    name = clause(facts.cluster, " (cluster {})")
    lines = [
        *_comment(
            f'Found Slurm{name}. Set scheduler to "auto" to run jobs on this machine when Slurm is down.',
            'scheduler = "slurm"',
            "",
        ),
        *_partition_table(facts.partitions),
    ]
    chosen = choose_partition(facts)
    if chosen is None:
        return [*lines, *_comment("No partition is available to you.", '#partition = "NAME"'), *_accounts(facts, None)]
    if not chosen.default:
        most = "GPUs" if chosen.gpu_total else "nodes"
        lines += _comment(f"The available partition with the most {most} (not Slurm's default):")
    lines += [f"partition = {toml_text(chosen.name)}", *_gpu_lines(chosen), "#nodes = 2", *_share_lines(chosen)]
    lines += ["", *_comment(_time_text(chosen), f"#time = {toml_text(_time(chosen.time_limit))}")]
    return lines + _accounts(facts, chosen)


def _gpu_lines(partition: PartitionSummary) -> list[str]:
    """Return the settings that request a typical node's GPUs."""
    lines = []
    if partition.typical is not None:
        lines += ["", *_comment(_gpu_text(partition), f"gpus-per-node = {partition.typical.gpu_count}")]
    most = dict(sorted(chain.from_iterable(node.gpus for node in partition.nodes)))  # GPUs of each type on one node
    kinds = list(filter(None, most))
    if kinds:
        gres = toml_text(f"gpu:{kinds[0]}:{most[kinds[0]]}")
        names = "GPU types" if len(kinds) > 1 else "GPU type"
        lines += _comment(
            f"{names}: {', '.join(kinds)}. To request a specific type, replace gpus-per-node with:", f"#gres = {gres}"
        )
    return lines


def _share_lines(partition: PartitionSummary) -> list[str]:
    """Return the settings that request a typical node's cores and memory."""
    node = partition.typical
    if node is None:
        return []
    lines = []
    if node.cpus:
        share = "a node's cores divided by its GPUs" if node.gpu_count else "all cores of a node"
        lines += _comment(f"CPU cores per rank: {share}. Slurm's default is one.")
        lines += [f"#cpus-per-task = {max(1, node.cpus // max(1, node.gpu_count))}"]
    if node.memory:
        text = f"Memory per node (a node has {node.memory} MB)."
        lines += _comment(text, f"#mem = {toml_text(f'{node.memory * 9 // 10}M')}")
    return lines


def _accounts(facts: Survey, chosen: PartitionSummary | None) -> list[str]:
    associations = [a for a in facts.associations if _is_usable_in(a, chosen)] or facts.associations
    accounts = list(dict.fromkeys(association.account for association in associations))
    qualities = list(dict.fromkeys(chain.from_iterable(association.qos for association in associations)))
    lines = [""]
    if accounts:
        text = f"Your accounts: {', '.join(accounts)}. Without this setting, Slurm uses your default account."
        lines += _comment(text, f"#account = {toml_text(accounts[0])}")
    else:
        lines += _comment(_why_no_account(facts), '#account = "NAME"')
    if qualities:
        lines += _comment(f"Your QOS: {', '.join(qualities)}.", f"#qos = {toml_text(qualities[0])}")
    return lines


def _is_usable_in(association: Association, chosen: PartitionSummary | None) -> bool:
    return not association.partition or chosen is None or association.partition == chosen.name


def _why_no_account(facts: Survey) -> str:
    if facts.accounting == "yes" and "associations" in facts.enforce:
        return "You have no Slurm account, but this cluster requires one; ask your site's support team for one."
    why = {
        "none": "Slurm has no accounting",
        "silent": "Slurm accounting did not respond",
        "yes": "No account was found",
    }
    return f"{why[facts.accounting]}; set an account only if your site requires one."


def _other_partitions(facts: Survey) -> list[str]:
    chosen = choose_partition(facts)
    others = [p for p in facts.partitions if p.up and p.gpu_total and p is not chosen][:_MOST_PROFILES]
    if not others:
        return []
    lines = [
        "",
        *_comment(
            "Other partitions with GPUs; use one with `clusterrun submit --profile NAME`. "
            "The settings above still apply."
        ),
    ]
    for partition in others:
        quoted = toml_text(partition.name)
        name = partition.name if re.fullmatch(r"[A-Za-z0-9_-]+", partition.name) else quoted
        gpus = partition.typical.gpu_count if partition.typical else 0
        lines += ["", f"[profile.{name}]", f"partition = {quoted}", f"gpus-per-node = {gpus}"]
    return lines


def _local(facts: Survey) -> list[str]:
    detail = clause(facts.detail, " ({})")
    lines = _comment(f"Slurm not found{detail}; jobs run on this machine.", 'scheduler = "local"', "")
    if facts.local_gpus:
        return lines + _comment("One rank per GPU on this machine.", f"gpus-per-node = {facts.local_gpus}")
    return lines + _comment("No GPU found on this machine: the ranks run on the CPU (gloo).", "#tasks-per-node = 2")


def _partition_table(partitions: Iterable[PartitionSummary]) -> list[str]:
    rows = [("PARTITION", "NODES", "USABLE", "GPUS/NODE", "CPUS/NODE", "TIME LIMIT")]
    rows += map(_cells, islice(partitions, _MOST_ROWS))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = _comment(
        "Partitions when this file was written (* marks the default; GPU and CPU counts are for a typical node):"
    )
    for row in rows:
        line = "  ".join(map(str.ljust, row, widths))
        lines.append(f"#   {_UNSAFE.sub('?', line)}".rstrip())
    return lines


def _cells(partition: PartitionSummary) -> tuple[str, str, str, str, str, str]:
    name = f"{partition.name}*" if partition.default else partition.name
    usable = sum(node.count for node in partition.nodes if node.usable) if partition.up else 0
    gpus, cpus = "0", 0
    if partition.typical is not None:
        cpus = partition.typical.cpus
        gpus = "+".join(f"{count} {kind}".strip() for kind, count in partition.typical.gpus) or "0"
    return name, str(partition.node_count), str(usable), gpus, str(cpus), partition.time_limit


def _gpu_text(partition: PartitionSummary) -> str:
    if not partition.gpu_total:
        return "This partition has no GPUs: the ranks run on the CPU (gloo)."
    counts: dict[int, int] = {}
    for node in partition.nodes:
        counts[node.gpu_count] = counts.get(node.gpu_count, 0) + node.count
    parts = [
        f"{plural(nodes, 'node')} with {plural(gpus, 'GPU')}" for gpus, nodes in sorted(counts.items(), reverse=True)
    ]
    return f"GPUs per node, one rank per GPU. This partition has {', '.join(parts)}."


def _time_text(partition: PartitionSummary) -> str:
    limit, default = partition.time_limit, partition.default_time
    most = "" if limit.lower() in ("infinite", "unlimited") else f"maximum {limit}, "
    return f"Time limit: {most}default {limit if default.lower() in ('', 'n/a', 'none') else default}."


def _time(limit: str) -> str:
    """Return the partition's time limit if it has one, else a day."""
    with suppress(RequestError):
        if parse_time_limit(limit):
            return limit
    return "1-00:00:00"


def toml_text(text: str) -> str:
    """Return a TOML string of one line, with invalid characters as ``?``."""
    clean = re.sub("[\ud800-\udfff]", "?", text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda m: f"\\u{ord(m[0]):04x}", clean) + '"'


def _comment(text: str, *settings: str) -> list[str]:
    """Return text as comment lines, without control characters, and the settings below them."""
    lines = textwrap.wrap(_UNSAFE.sub("?", text), 100, break_long_words=False) or [""]
    return [*(f"# {line}" for line in lines), *settings]
