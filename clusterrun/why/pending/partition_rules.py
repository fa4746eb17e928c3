"""Find what a job's partitions do not allow, and which partition, account or QOS would. Pure."""

from __future__ import annotations

from clusterrun.base.units import first_few, format_duration, plural
from clusterrun.scheduler.slurm.squeue import parse_tres
from clusterrun.scheduler.slurm.values import parse_duration, parse_int
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.targets import blocking_limit, other_targets


def broken_rules(facts: PendingFacts) -> Finding:
    """Return the rules of the job's partitions that it breaks, and the partitions that allow it."""
    if facts.partitions is None:
        return Finding(unseen=("the partition's limits",))
    found = Finding()
    for partition in facts.own_partitions:
        found += _broken(facts, partition) + _not_allowed(facts, partition)
    if found.here and (others := [p["PartitionName"] for p in facts.partitions if _would_take(facts, p)]):
        found += Finding(
            (f"partitions that allow the job: {first_few(others)}",),
            (f"scontrol update JobId={facts.id} Partition={others[0]}",),
        )
    return found


def _broken(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    name, here, do = partition["PartitionName"], [], []
    if partition.get("State", "UP") != "UP":
        here.append(f"partition {name} is {partition['State']}")
    asked, most = parse_duration(facts.job.get("TimeLimit", "")), parse_duration(partition.get("MaxTime", ""))
    if most is not None and (asked is None or asked > most):
        wants = format_duration(asked) if asked is not None else facts.job.get("TimeLimit", "no time limit")
        here.append(f"partition {name} allows at most {format_duration(most)}; this job requests {wants}")
        do.append(f"scontrol update JobId={facts.id} TimeLimit={format_duration(most)}")
    low, high = facts.requested_nodes
    least, limit = parse_int(partition.get("MinNodes", "")) or 0, parse_int(partition.get("MaxNodes", ""))
    total = parse_int(partition.get("TotalNodes", ""))
    if limit is not None and low > limit:
        here.append(f"partition {name} allows at most {plural(limit, 'node')} per job; this job requests {low}")
        do.append(change_nodes_command(facts, limit))
    elif total is not None and low > total:
        here.append(f"partition {name} has {plural(total, 'node')}; this job requests {low}")
        do.append(change_nodes_command(facts, total))
    if high and high < least:
        here.append(f"partition {name} requires at least {least} nodes per job; this job requests {high}")
        do.append(change_nodes_command(facts, least))
    for per, key, noun in (("MaxMemPerNode", "MinMemoryNode", "node"), ("MaxMemPerCPU", "MinMemoryCPU", "CPU")):
        asks, allows = _megabytes(facts.job.get(key, "")), _megabytes(partition.get(per, ""))
        if allows and asks > allows:
            here.append(
                f"partition {name} allows at most {allows:.0f}M of memory per {noun} ({per});"
                f" this job requests {asks:.0f}M"
            )
            do.append(f"scontrol update JobId={facts.id} {key}={allows:.0f}")
    return Finding(tuple(here), tuple(do))


def change_nodes_command(facts: PendingFacts, count: int) -> str:
    """Return how to change the number of nodes. Slurm keeps the tasks, and holds a job whose tasks no longer fit."""
    tasks = parse_int(facts.job.get("NumTasks", "")) or 0
    if tasks > (facts.requested_nodes[0] or 1):
        return f"run `clusterrun cancel {facts.id}`, then submit the job again with --nodes {count}"
    # a single number sets only the minimum, so that the reason stays (seen on 22.05)
    return f"scontrol update JobId={facts.id} NumNodes={count}-{count}"


#: A partition's Allow and Deny lists, the job's key that they apply to, and its name in a sentence.
_LISTS = (("Accounts", "Account", "account"), ("Qos", "QOS", "QOS"))


def _not_allowed(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    """Return the partition's account and QOS rules if Slurm names them as the reason, and what they accept."""
    word = facts.reason.word if facts.reason else ""
    if word not in ("AccountNotAllowed", "QOSNotAllowed"):
        return Finding()
    found = Finding()
    for list_name, key, noun in _LISTS:
        own, allowed, denied = facts.job.get(key, ""), *_allowed_and_denied(partition, list_name)
        if not own or ((own in allowed or not allowed) and own not in denied):
            continue
        names = f"{noun}{'s' * (noun == 'account' and len(allowed or denied) > 1)} {', '.join(allowed or denied)}"
        rule = f"accepts only {names}" if allowed else f"does not accept {names}"
        fit = [
            name
            for name, why in other_targets(facts, "association" if key == "Account" else "qos").items()
            if not why and (name in allowed if allowed else name not in denied)
        ]
        found += Finding(
            (f"partition {partition['PartitionName']} {rule}; this job uses {own}",),
            tuple(f"scontrol update JobId={facts.id} {key}={name}" for name in fit[:1]),
        )
    return found


def _allowed_and_denied(partition: dict[str, str], list_name: str) -> tuple[list[str], list[str]]:
    return _names(partition.get(f"Allow{list_name}", "")), _names(partition.get(f"Deny{list_name}", ""))


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name and name not in ("ALL", "(null)")]


def _megabytes(text: str) -> float:
    """Parse ``4000``, ``8000M`` or ``8G`` to MB; 0 for UNLIMITED."""
    return dict(parse_tres(f"mem={text}")).get("mem", 0)


def _would_take(facts: PendingFacts, partition: dict[str, str]) -> bool:
    """Return whether a partition's known rules allow the job; hidden rules may not."""
    if partition.get("PartitionName") in facts.partition_names or _broken(facts, partition).here:
        return False
    for list_name, key, _ in _LISTS:
        own, allowed, denied = facts.job.get(key, ""), *_allowed_and_denied(partition, list_name)
        if (allowed and own not in allowed) or own in denied:
            return False
    quality = partition.get("QoS", "")
    return (
        not (quality and blocking_limit(facts, partition_qos=quality))
        and partition.get("AllowGroups", "ALL") == "ALL"
        and partition.get("RootOnly") != "YES"
        and partition.get("ReqResv") != "YES"
    )
