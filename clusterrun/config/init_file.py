"""Write the commented ``clusterrun.toml`` of ``clusterrun init`` from a survey of the cluster.

Comments begin with ``# ``. Suggestions are settings behind a bare ``#``: remove it to enable them. Settings without it
come from the cluster.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from clusterrun.base.errors import RequestError
from clusterrun.base.units import parse_time_limit, plural
from clusterrun.config.survey import Survey
from clusterrun.scheduler.slurm.sinfo import PartitionSummary

_MOST_PROFILES = 12  # for more partitions, sinfo is the better view
_MOST_ROWS = 40
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def config_text(facts: Survey) -> str:
    """Return the text of the file; it is valid as it is and with any suggestion enabled."""
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
    with_gpus = [p for p in facts.partitions if p.up and p.gpu_total]
    if with_gpus:
        return next((p for p in with_gpus if p.default), max(with_gpus, key=lambda p: p.gpu_total))
    usable = [p for p in facts.partitions if p.up and p.node_count]
    return next((p for p in usable if p.default), max(usable, key=lambda p: p.node_count, default=None))


def _slurm(facts: Survey) -> list[str]:
    name = f" (cluster {facts.cluster})" if facts.cluster else ""
    chosen = choose_partition(facts)
    lines = [
        *_comment(
            f'Found Slurm{name}. Set scheduler to "auto" to run jobs on this machine when Slurm is down.',
            'scheduler = "slurm"',
            "",
        ),
        *_partition_table(facts.partitions),
    ]
    if chosen is None:
        return [*lines, *_comment("No partition is available to you.", '#partition = "NAME"'), *_accounts(facts, None)]
    typical = chosen.typical
    if not chosen.default:
        most = "GPUs" if chosen.gpu_total else "nodes"
        lines += _comment(f"The available partition with the most {most} (not Slurm's default):")
    lines.append(f"partition = {toml_text(chosen.name)}")
    gpus = typical.gpu_count if typical else 0
    if typical:
        lines += ["", *_comment(_gpu_text(chosen), f"gpus-per-node = {gpus}")]
    if kinds := sorted({kind for n in chosen.nodes for kind, _ in n.gpus if kind}):
        number = max(n for node in chosen.nodes for kind, n in node.gpus if kind == kinds[0])
        many = "GPU types" if len(kinds) > 1 else "GPU type"
        lines += _comment(
            f"{many}: {', '.join(kinds)}. To request a specific type, replace gpus-per-node with:",
            f"#gres = {toml_text(f'gpu:{kinds[0]}:{number}')}",
        )
    lines += ["#nodes = 2"]
    if typical and typical.cpus:
        share = "a node's cores divided by its GPUs" if gpus else "all cores of a node"
        lines += _comment(f"CPU cores per rank: {share}. Slurm's default is one.")
        lines += [f"#cpus-per-task = {max(1, typical.cpus // max(1, gpus))}"]
    if typical and typical.memory:
        text = f"Memory per node (a node has {typical.memory} MB)."
        lines += _comment(text, f"#mem = {toml_text(f'{typical.memory * 9 // 10}M')}")
    lines += ["", *_comment(_time_text(chosen), f"#time = {toml_text(_time(chosen.time_limit))}")]
    return lines + _accounts(facts, chosen)


def _accounts(facts: Survey, chosen: PartitionSummary | None) -> list[str]:
    lines = [""]
    mine = [a for a in facts.associations if not a.partition or chosen is None or a.partition == chosen.name]
    accounts = list(dict.fromkeys(a.account for a in mine or facts.associations))
    qualities = list(dict.fromkeys(q for a in mine or facts.associations for q in a.qos))
    if accounts:
        text = f"Your accounts: {', '.join(accounts)}. Without this setting, Slurm uses your default account."
        lines += _comment(text, f"#account = {toml_text(accounts[0])}")
    elif facts.accounting == "yes" and "associations" in facts.enforce:
        text = "You have no Slurm account, but this cluster requires one; ask your site's support team for one."
        lines += _comment(text, '#account = "NAME"')
    else:
        why = {
            "none": "Slurm has no accounting",
            "silent": "Slurm accounting did not respond",
            "yes": "No account was found",
        }
        lines += _comment(
            f"{why[facts.accounting]}; set an account only if your site requires one.", '#account = "NAME"'
        )
    if qualities:
        lines += _comment(f"Your QOS: {', '.join(qualities)}.", f"#qos = {toml_text(qualities[0])}")
    return lines


def _other_partitions(facts: Survey) -> list[str]:
    chosen = choose_partition(facts)
    others = [p for p in facts.partitions if p.up and p.gpu_total and p is not chosen][:_MOST_PROFILES]
    text = (
        "Other partitions with GPUs; use one with `clusterrun submit --profile NAME`. The settings above still apply."
    )
    lines = ["", *_comment(text)] if others else []
    for p in others:
        name = p.name if re.fullmatch(r"[A-Za-z0-9_-]+", p.name) else toml_text(p.name)
        gpus = p.typical.gpu_count if p.typical else 0
        lines += ["", f"[profile.{name}]", f"partition = {toml_text(p.name)}", f"gpus-per-node = {gpus}"]
    return lines


def _local(facts: Survey) -> list[str]:
    detail = f" ({facts.detail})" if facts.detail else ""
    if facts.slurm == "silent":
        return _comment(
            f"Slurm is installed but did not respond{detail}; run `clusterrun init` again later.",
            '#scheduler = "slurm"', '#partition = "NAME"', '#account = "NAME"', '#time = "1-00:00:00"',
            "#gpus-per-node = 4",
        )  # fmt: skip
    lines = _comment(f"Slurm not found{detail}; jobs run on this machine.", 'scheduler = "local"', "")
    if facts.local_gpus:
        return lines + _comment("One rank per GPU on this machine.", f"gpus-per-node = {facts.local_gpus}")
    return lines + _comment("No GPU found on this machine: the ranks run on the CPU (gloo).", "#tasks-per-node = 2")


def _partition_table(partitions: Iterable[PartitionSummary]) -> list[str]:
    rows = [("PARTITION", "NODES", "USABLE", "GPUS/NODE", "CPUS/NODE", "TIME LIMIT")]
    for p in list(partitions)[:_MOST_ROWS]:
        t = p.typical
        usable = sum(n.count for n in p.nodes if n.usable) if p.up else 0
        kinds = "+".join(f"{n} {kind}".strip() for kind, n in t.gpus) if t and t.gpus else "0"
        cpus = str(t.cpus) if t else "0"
        rows.append((f"{p.name}{'*' if p.default else ''}", str(p.node_count), str(usable), kinds, cpus, p.time_limit))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    head = _comment(
        "Partitions when this file was written (* marks the default; GPU and CPU counts are for a typical node):"
    )
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return head + [f"#   {_UNSAFE.sub('?', line)}".rstrip() for line in lines]


def _gpu_text(partition: PartitionSummary) -> str:
    if not partition.gpu_total:
        return "This partition has no GPUs: the ranks run on the CPU (gloo)."
    counts: dict[int, int] = {}
    for n in partition.nodes:
        counts[n.gpu_count] = counts.get(n.gpu_count, 0) + n.count
    parts = [f"{plural(c, 'node')} with {plural(g, 'GPU')}" for g, c in sorted(counts.items(), reverse=True)]
    return f"GPUs per node, one rank per GPU. This partition has {', '.join(parts)}."


def _time_text(partition: PartitionSummary) -> str:
    limit, default = partition.time_limit, partition.default_time
    most = "" if limit.lower() in ("infinite", "unlimited") else f"maximum {limit}, "
    return f"Time limit: {most}default {limit if default.lower() in ('', 'n/a', 'none') else default}."


def _time(limit: str) -> str:
    """Return the partition's time limit if it has one, else a day."""
    try:
        return limit if parse_time_limit(limit) else "1-00:00:00"
    except RequestError:
        return "1-00:00:00"


def toml_text(text: str) -> str:
    """Return a TOML string of one line, with invalid characters as ``?``."""
    clean = re.sub("[\ud800-\udfff]", "?", text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda m: f"\\u{ord(m[0]):04x}", clean) + '"'


def _comment(text: str, *settings: str) -> list[str]:
    """Return text as comment lines, without control characters, and the settings below them."""
    lines = textwrap.wrap(_UNSAFE.sub("?", text), 100, break_long_words=False) or [""]
    return [*(f"# {line}" for line in lines), *settings]
