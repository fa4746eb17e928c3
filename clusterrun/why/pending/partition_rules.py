"""Find what a job's partitions do not allow, and which partition, account or QOS would. Pure."""

from __future__ import annotations

from clusterrun.base.units import first_few, format_duration, plural
from clusterrun.scheduler.slurm.squeue import parse_tres
from clusterrun.scheduler.slurm.values import parse_duration, parse_int
from clusterrun.why.pending.facts import Finding, PendingFacts, number_in
from clusterrun.why.pending.limits import limit_of_partition_qos, other_targets

#: A partition's Allow and Deny lists, the job's key that they apply to, its name in a sentence, and a limit's owner.
_LISTS = (("Accounts", "Account", "account", "association"), ("Qos", "QOS", "QOS", "qos"))


def broken_rules(facts: PendingFacts) -> Finding:
    """Return the rules of the job's partitions that it breaks, and the partitions that allow it."""
    if facts.partitions is None:
        return Finding(unseen=("the partition's limits",))
    found = Finding()
    for partition in facts.own_partitions:
        found += _broken(facts, partition)
        if facts.word in ("AccountNotAllowed", "QOSNotAllowed"):
            found += _not_allowed(facts, partition)
    others = [partition["PartitionName"] for partition in facts.partitions if _would_take(facts, partition)]
    if not found.here or not others:
        return found
    return found + Finding(
        (f"partitions that allow the job: {first_few(others)}",), (facts.update("Partition", others[0]),)
    )


def _broken(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    """Return the rules that the job's request breaks; other rules are on who may use the partition."""
    found = Finding()
    if partition.get("State", "UP") != "UP":
        found = Finding((f"partition {partition['PartitionName']} is {partition['State']}",))
    found += _too_long(facts, partition) + _wrong_nodes(facts, partition)
    return found + _too_much_memory(facts, partition, "Node") + _too_much_memory(facts, partition, "CPU")


def _too_long(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    asked, most = facts.time_limit, parse_duration(partition.get("MaxTime", ""))
    if most is None or (asked is not None and asked <= most):
        return Finding()
    wants = facts.job.get("TimeLimit", "no time limit") if asked is None else format_duration(asked)
    fit = format_duration(most)
    return _rule(partition, f"allows at most {fit}", f"requests {wants}", facts.update("TimeLimit", fit))


def _wrong_nodes(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    low, high = facts.requested_nodes
    for key, rule in (("MaxNodes", "allows at most {} per job"), ("TotalNodes", "has {}")):
        most = parse_int(partition.get(key, ""))
        if most is not None and low > most:
            return _rule(partition, rule.format(plural(most, "node")), f"requests {low}", facts.change_nodes(most))
    least = number_in(partition, "MinNodes")
    if not 0 < high < least:
        return Finding()
    rule = f"requires at least {least} nodes per job"
    return _rule(partition, rule, f"requests {high}", facts.change_nodes(least))


def _rule(partition: dict[str, str], rule: str, wants: str, *do: str) -> Finding:
    return Finding((f"partition {partition['PartitionName']} {rule}; this job {wants}",), do)


def _too_much_memory(facts: PendingFacts, partition: dict[str, str], per: str) -> Finding:
    """Return the limit on memory ``per`` Node or CPU that the job breaks."""
    asks = _megabytes(facts.job.get(f"MinMemory{per}", ""))
    allows = _megabytes(partition.get(f"MaxMemPer{per}", ""))
    if not allows or asks <= allows:
        return Finding()
    rule = f"allows at most {allows:.0f}M of memory per {per.replace('Node', 'node')} (MaxMemPer{per})"
    return _rule(partition, rule, f"requests {asks:.0f}M", facts.update(f"MinMemory{per}", f"{allows:.0f}"))


def _megabytes(text: str) -> float:
    """Parse ``4000``, ``8000M`` or ``8G`` to MB; 0 for UNLIMITED."""
    return dict(parse_tres(f"mem={text}")).get("mem", 0)


def _not_allowed(facts: PendingFacts, partition: dict[str, str]) -> Finding:
    """Return the partition's account and QOS rules that the job breaks, and what they accept."""
    found = Finding()
    for list_name, key, noun, owner in _LISTS:
        own = facts.job.get(key, "")
        if not own or _accepts(partition, list_name, own):
            continue
        found += _rule(partition, _list_rule(partition, list_name, noun), f"uses {own}")
        for name, limit in other_targets(facts, owner).items():
            if not limit and _accepts(partition, list_name, name):
                found += Finding(do=(facts.update(key, name),))
                break
    return found


def _list_rule(partition: dict[str, str], list_name: str, noun: str) -> str:
    verb, names = "accepts only", _names(partition, f"Allow{list_name}")
    if not names:
        verb, names = "does not accept", _names(partition, f"Deny{list_name}")
    if noun == "account" and len(names) > 1:
        noun = "accounts"
    return f"{verb} {noun} {', '.join(names)}"


def _accepts(partition: dict[str, str], list_name: str, name: str) -> bool:
    """Return whether a partition's lists accept an account or QOS; Slurm ignores Deny beside Allow."""
    allowed = _names(partition, f"Allow{list_name}")
    return name in allowed if allowed else name not in _names(partition, f"Deny{list_name}")


def _names(partition: dict[str, str], key: str) -> list[str]:
    text = partition.get(key, "")
    return [] if text in ("", "ALL", "(null)") else text.split(",")


def _would_take(facts: PendingFacts, partition: dict[str, str]) -> bool:
    """Return whether a partition's known rules allow the job; hidden rules may not."""
    if partition["PartitionName"] in facts.partition_names or _broken(facts, partition).here:
        return False
    if "YES" in (partition.get("RootOnly"), partition.get("ReqResv")):
        return False
    for list_name, key, _, _ in _LISTS:
        if not _accepts(partition, list_name, facts.job.get(key, "")):
            return False
    is_for_all = partition.get("AllowGroups", "ALL") == "ALL"
    return is_for_all and not limit_of_partition_qos(facts, partition.get("QoS", ""))
