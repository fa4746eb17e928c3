"""Find what a job's partitions do not allow, and which partition, account or QOS would. Pure."""

from __future__ import annotations

from clusterrun.scheduler.slurm.sacctmgr import Association
from clusterrun.scheduler.slurm.squeue import parse_tres
from clusterrun.scheduler.slurm.values import parse_duration, parse_int
from clusterrun.terminal.units import first_few, format_duration, plural
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.targets import blocking_limit


def broken_rules(facts: PendingFacts) -> Finding:
    """Return the rules of the job's partitions that it breaks, and the partitions that allow it."""
    if facts.partitions is None:
        return Finding(unseen=("the partition's limits",))
    found = Finding()
    for partition in facts.own_partitions:
        found += _broken(facts, partition) + _not_allowed(facts, partition)
    if found.here and (others := [p["PartitionName"] for p in facts.partitions if _would_take(facts, p)]):
        found += Finding(
            (f"allowed in {first_few(others)}",), (f"scontrol update JobId={facts.id} Partition={others[0]}",)
        )
    return found


def _broken(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    name, here, do = partition["PartitionName"], [], []
    if partition.get("State", "UP") != "UP":
        here.append(f"partition {name} is {partition['State']}")
    asked, most = parse_duration(facts.job.get("TimeLimit", "")), parse_duration(partition.get("MaxTime", ""))
    if most is not None and (asked is None or asked > most):
        wants = format_duration(asked) if asked is not None else facts.job.get("TimeLimit", "no time limit")
        here.append(f"partition {name} allows {format_duration(most)}; this job requests {wants}")
        do.append(f"scontrol update JobId={facts.id} TimeLimit={format_duration(most)}")
    low, high = facts.requested_nodes
    least, limit = parse_int(partition.get("MinNodes", "")) or 0, parse_int(partition.get("MaxNodes", ""))
    total = parse_int(partition.get("TotalNodes", ""))
    if limit is not None and low > limit:
        here.append(f"partition {name} allows {plural(limit, 'node')} per job; this job requests {low}")
        do.append(change_nodes_command(facts, limit))
    elif total is not None and low > total:
        here.append(f"partition {name} has {plural(total, 'node')}; this job requests {low}")
        do.append(change_nodes_command(facts, total))
    if high and high < least:
        here.append(f"partition {name} takes jobs of at least {least} nodes; this job requests {high}")
        do.append(change_nodes_command(facts, least))
    found = Finding(tuple(here), tuple(do))
    for per, asked_key, noun in (("MaxMemPerNode", "MinMemoryNode", "node"), ("MaxMemPerCPU", "MinMemoryCPU", "CPU")):
        asks, allows = _megabytes(facts.job.get(asked_key, "")), _megabytes(partition.get(per, ""))
        if allows and asks is not None and asks > allows:
            line = f"partition {name} allows {allows:g}M of memory on each {noun} ({per}); this job requests {asks:g}M"
            found += Finding((line,), (f"scontrol update JobId={facts.id} {asked_key}={allows:g}",))
    return found


def change_nodes_command(facts: PendingFacts, count: int) -> str:
    """Return how to change the number of nodes: Slurm keeps the tasks and holds a job whose tasks no longer fit."""
    tasks = parse_int(facts.job.get("NumTasks", "")) or 0
    if tasks > (facts.requested_nodes[0] or 1):
        return f"`clusterrun cancel {facts.id}`, then submit it again with --nodes {count}"
    # the count alone is taken for the least: the most stays as it was, and with it the reason (22.05: seen)
    return f"scontrol update JobId={facts.id} NumNodes={count}-{count}"


#: A partition's list of those it takes, and of those it does not -> whose name in it counts.
_LISTS = (("Accounts", "Account", "account"), ("Qos", "QOS", "QOS"))


def _not_allowed(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    """Return the partition's account and QOS rules if Slurm names them as the reason, and what they accept."""
    word = facts.reason.word if facts.reason else ""
    if word not in ("AccountNotAllowed", "QOSNotAllowed"):
        return Finding()
    found = Finding()
    for list_name, key, noun in _LISTS:
        own, allowed = facts.job.get(key, ""), _names(partition.get(f"Allow{list_name}", ""))
        denied = _names(partition.get(f"Deny{list_name}", ""))
        if not own or ((own in allowed or not allowed) and own not in denied):
            continue
        rule = f"accepts only {noun} {', '.join(allowed)}" if allowed else f"does not accept {noun} {', '.join(denied)}"
        rows = facts.associations or ()
        mine = [row.account for row in rows] if key == "Account" else [q for r in rows for q in r.qos if _own(facts, r)]
        fit = [n for n in dict.fromkeys(mine) if n != own and (n in allowed if allowed else n not in denied)]
        fit = [
            n
            for n in fit
            if not (blocking_limit(facts, account=n) if key == "Account" else blocking_limit(facts, qos=n))
        ]
        found += Finding(
            (f"partition {partition['PartitionName']} {rule}; this job uses {own}",),
            tuple(f"scontrol update JobId={facts.id} {key}={name}" for name in fit[:1]),
        )
    return found


def _own(facts: PendingFacts, row: Association) -> bool:
    return row.account == facts.job.get("Account")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name and name not in ("ALL", "(null)")]


def _megabytes(text: str) -> float | None:
    """Parse ``4000``, ``8000M`` or ``8G`` to MB; None for 0 and for UNLIMITED."""
    found = dict(parse_tres(f"mem={text}"))
    return found.get("mem") or None


def _would_take(facts: PendingFacts, partition: dict[str, str]) -> bool:
    """Return whether a partition's known rules allow the job; hidden rules may not."""
    if partition.get("PartitionName") in facts.partition_names or _broken(facts, partition).here:
        return False
    for list_name, key, _ in _LISTS:
        allowed, own = _names(partition.get(f"Allow{list_name}", "")), facts.job.get(key, "")
        if (allowed and own not in allowed) or own in _names(partition.get(f"Deny{list_name}", "")):
            return False
    quality = partition.get("QoS", "")
    return (
        not (quality and blocking_limit(facts, partition_qos=quality))
        and partition.get("AllowGroups", "ALL") == "ALL"
        and partition.get("RootOnly") != "YES"
        and partition.get("ReqResv") != "YES"
    )
