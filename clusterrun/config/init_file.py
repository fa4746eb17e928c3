"""The commented ``clusterrun.toml`` that ``clusterrun init`` writes, from what was seen of the cluster.

Prose lines begin with ``# ``. What is only a suggestion is a setting behind a bare ``#``: taking that one character
away makes it count. What stands without is what the cluster itself said.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable

from clusterrun.config.survey import Survey
from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import parse_time_limit
from clusterrun.scheduler.slurm.sinfo import PartitionSummary

_MOST_PROFILES = 12  # a site with more partitions than that is read with sinfo, not in a profile
_MOST_ROWS = 40
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def config_text(facts: Survey) -> str:
    """The whole file; it parses with our own loader as it is, and with any one suggestion taken up."""
    lines = [
        *_say(
            "Settings of this project, written by `clusterrun init`. Each name is that of a flag: a flag and a job "
            "file win over this file, and it wins over ~/.config/clusterrun/config.toml. "
            "To use a line that begins with #, take the # away."
        ),
        "",
    ]
    lines += _slurm(facts) if facts.slurm == "yes" else _local(facts)
    lines += [
        "",
        *_say("What runs when nothing else is named: a file of jobs/ or a job that comes with clusterrun."),
        '#job = "lm"',
        "",
        *_say("Shell lines that run once on the first node before the ranks start, and variables of the job."),
        '#setup = ["module load cuda"]',
        '#env.NCCL_DEBUG = "WARN"',
    ]
    if facts.slurm == "yes":
        lines += _other_partitions(facts)
    return "\n".join(lines) + "\n"


def choose_partition(facts: Survey) -> PartitionSummary | None:
    """Slurm's default partition if it has GPUs, else the open one with the most; without GPUs the default."""
    with_gpus = [p for p in facts.partitions if p.up and p.gpu_total]
    if with_gpus:
        return next((p for p in with_gpus if p.default), max(with_gpus, key=lambda p: p.gpu_total))
    usable = [p for p in facts.partitions if p.up and p.node_count]
    return next((p for p in usable if p.default), max(usable, key=lambda p: p.node_count, default=None))


def _slurm(facts: Survey) -> list[str]:
    name = f" {facts.cluster}" if facts.cluster else ""
    chosen = choose_partition(facts)
    lines = [
        *_say(f"Slurm{name} answered. With auto, a moment without an answer would mean this machine."),
        'scheduler = "slurm"',
        "",
        *_partition_table(facts.partitions),
    ]
    if chosen is None:
        return [*lines, *_say("No partition is open to you now."), '#partition = "NAME"', *_accounts(facts, None)]
    typical = chosen.typical
    lines.append(f"partition = {toml_text(chosen.name)}")
    if not chosen.default:
        lines[-1:] = [*_say("Slurm's own default has no GPUs, so this is the one with the most:"), lines[-1]]
    gpus = typical.gpu_count if typical else 0
    if typical:
        lines += ["", *_say(_node_words(chosen)), f"gpus-per-node = {gpus}"]
    if kinds := sorted({kind for n in chosen.nodes for kind, _ in n.gpus if kind}):
        number = max(n for node in chosen.nodes for kind, n in node.gpus if kind == kinds[0])
        many = "Types" if len(kinds) > 1 else "Type"
        lines += [*_say(f"{many}: {', '.join(kinds)}. To insist on one, instead of gpus-per-node:")]
        lines += [f"#gres = {toml_text(f'gpu:{kinds[0]}:{number}')}"]
    lines += ["#nodes = 2"]
    if typical and typical.cpus:
        lines += [*_say("CPU cores for each rank: a node's cores shared among its GPUs; Slurm gives one otherwise.")]
        lines += [f"#cpus-per-task = {max(1, typical.cpus // max(1, gpus))}"]
    if typical and typical.memory:
        lines += [*_say(f"Memory per node (a node has {typical.memory} MB).")]
        lines += [f"#mem = {toml_text(f'{typical.memory * 9 // 10}M')}"]
    lines += ["", *_say(_time_words(chosen))]
    lines += [f"#time = {toml_text(_time(chosen.time_limit))}"]
    return lines + _accounts(facts, chosen)


def _accounts(facts: Survey, chosen: PartitionSummary | None) -> list[str]:
    lines = [""]
    mine = [a for a in facts.associations if not a.partition or chosen is None or a.partition == chosen.name]
    accounts = list(dict.fromkeys(a.account for a in mine or facts.associations))
    qualities = list(dict.fromkeys(q for a in mine or facts.associations for q in a.qos))
    if accounts:
        lines += _say(f"Accounts of yours: {', '.join(accounts)}. Slurm takes your default one where none is given.")
        lines += [f"#account = {toml_text(accounts[0])}"]
    elif facts.accounting == "yes" and "associations" in facts.enforce:
        lines += _say("Slurm has no account for you here and asks for one: the site's support adds you.")
        lines += ['#account = "NAME"']
    else:
        why = {"none": "This cluster keeps no accounts", "silent": "Accounting did not answer", "yes": "None was found"}
        lines += [*_say(f"{why[facts.accounting]}: leave it out unless the site asks for one."), '#account = "NAME"']
    if qualities:
        lines += [*_say(f"Qualities of service: {', '.join(qualities)}."), f"#qos = {toml_text(qualities[0])}"]
    return lines


def _other_partitions(facts: Survey) -> list[str]:
    chosen = choose_partition(facts)
    others = [p for p in facts.partitions if p.up and p.gpu_total and p is not chosen][:_MOST_PROFILES]
    lines = (
        [
            "",
            *_say("The other partitions with GPUs: submit --profile NAME. What is meant for every run stands above."),
        ]
        if others
        else []
    )
    for p in others:
        name = p.name if re.fullmatch(r"[A-Za-z0-9_-]+", p.name) else toml_text(p.name)
        gpus = p.typical.gpu_count if p.typical else 0
        lines += ["", f"[profile.{name}]", f"partition = {toml_text(p.name)}", f"gpus-per-node = {gpus}"]
    return lines


def _local(facts: Survey) -> list[str]:
    said = f" ({facts.said})" if facts.said else ""
    if facts.slurm == "silent":
        return [
            *_say(f"Slurm is set up here but did not answer{said}: run `clusterrun init` again when it does."),
            '#scheduler = "slurm"',
            '#partition = "NAME"',
            '#account = "NAME"',
            '#time = "1-00:00:00"',
            "#gpus-per-node = 4",
        ]
    lines = [*_say(f"There is no Slurm here{said}, so jobs run on this machine."), 'scheduler = "local"', ""]
    if facts.local_gpus:
        return [*lines, *_say("One rank for each GPU of this machine."), f"gpus-per-node = {facts.local_gpus}"]
    return [
        *lines,
        *_say("This machine has no GPU that answers: ranks are CPU processes (gloo)."),
        "#tasks-per-node = 2",
    ]


def _partition_table(partitions: Iterable[PartitionSummary]) -> list[str]:
    rows = [("PARTITION", "NODES", "USABLE", "GPUS/NODE", "CPUS/NODE", "TIME LIMIT")]
    for p in list(partitions)[:_MOST_ROWS]:
        t = p.typical
        usable = sum(n.count for n in p.nodes if n.usable) if p.up else 0
        kinds = "+".join(f"{n} {kind}".strip() for kind, n in t.gpus) if t and t.gpus else "0"
        cpus = str(t.cpus) if t else "0"
        rows.append((f"{p.name}{'*' if p.default else ''}", str(p.node_count), str(usable), kinds, cpus, p.time_limit))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    head = _say("The partitions, as they were then (* is the default, GPUs and CPUs those of most of its nodes):")
    return head + [
        f"#   {_plain('  '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)))}".rstrip() for row in rows
    ]


def _node_words(partition: PartitionSummary) -> str:
    counts: dict[int, int] = {}
    for n in partition.nodes:
        counts[n.gpu_count] = counts.get(n.gpu_count, 0) + n.count
    parts = [f"{c} node{'s' * (c != 1)} with {g}" for g, c in sorted(counts.items(), reverse=True)]
    return f"GPUs on each node, one rank each: this partition has {', '.join(parts)}."


def _time_words(partition: PartitionSummary) -> str:
    most = "" if partition.time_limit.lower() in ("infinite", "unlimited") else f"at most {partition.time_limit}, "
    default = "the most" if partition.default_time.lower() in ("", "n/a", "none") else partition.default_time
    return f"Time limit: {most}{default} where none is given."


def _time(limit: str) -> str:
    """A time limit that submits: the partition's where it has one, else a day."""
    try:
        return limit if parse_time_limit(limit) else "1-00:00:00"
    except RequestError:
        return "1-00:00:00"


def toml_text(text: str) -> str:
    """A TOML text of one line; what TOML cannot hold in one is escaped or, where it is no character, a ``?``."""
    clean = re.sub("[\ud800-\udfff]", "?", text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda m: f"\\u{ord(m[0]):04x}", clean) + '"'


def _say(text: str) -> list[str]:
    """Prose as comment lines; Slurm's words in it cannot end the comment or move the cursor."""
    return [f"# {line}" for line in textwrap.wrap(_plain(text), 100, break_long_words=False) or [""]]


def _plain(text: str) -> str:
    return _UNSAFE.sub("?", text)
