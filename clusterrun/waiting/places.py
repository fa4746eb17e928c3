"""Where the job could run: its partitions' rules, the nodes that are out, what is free against what is asked. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterrun.scheduler.hostlist import expand, fold
from clusterrun.scheduler.slurm_nodes import OPEN, OUT, Node
from clusterrun.scheduler.slurm_text import duration
from clusterrun.waiting.facts import Facts
from clusterrun.waiting.found import Found
from clusterrun.waiting.words import clock, moment, several, some

_SHOWN = 4


def rules(facts: Facts) -> Found:
    """What the job asks for that its partition does not allow, and which partition would."""
    if facts.partitions is None:
        return Found(unseen=("the partition's limits",))
    found = Found()
    for partition in facts.own_partitions:
        found += _broken(facts, partition)
    if found.here and (others := [p["PartitionName"] for p in facts.partitions if _would_take(facts, p)]):
        found += Found((f"allowed in {some(others)}",), (f"scontrol update JobId={facts.id} Partition={others[0]}",))
    return found


def _broken(facts: Facts, partition: dict[str, str]) -> Found:
    name, here, do = partition["PartitionName"], [], []
    if partition.get("State", "UP") != "UP":
        here.append(f"partition {name} is {partition['State']}")
    asked, most = duration(facts.job.get("TimeLimit", "")), duration(partition.get("MaxTime", ""))
    if most is not None and (asked is None or asked > most):
        wants = clock(asked) if asked is not None else facts.job.get("TimeLimit", "no time limit")
        here.append(f"partition {name} allows {clock(most)}; this job asks for {wants}")
        do.append(f"scontrol update JobId={facts.id} TimeLimit={clock(most)}")
    low, high = _nodes_asked(facts)
    least, limit = _int(partition.get("MinNodes", "")) or 0, _int(partition.get("MaxNodes", ""))
    total = _int(partition.get("TotalNodes", ""))
    if limit is not None and low > limit:
        here.append(f"partition {name} allows {several(limit, 'node')} for a job; this job asks for {low}")
        do.append(f"scontrol update JobId={facts.id} NumNodes={limit}")
    elif total is not None and low > total:
        here.append(f"partition {name} has {several(total, 'node')}; this job asks for {low}")
        do.append(f"scontrol update JobId={facts.id} NumNodes={total}")
    if high and high < least:
        here.append(f"partition {name} takes jobs of {least} nodes or more; this job asks for {high}")
        do.append(f"scontrol update JobId={facts.id} NumNodes={least}")
    return Found(tuple(here), tuple(do))


def _would_take(facts: Facts, partition: dict[str, str]) -> bool:
    """Whether a partition's size and time limit allow the job, as far as they tell; hidden rules may say no."""
    if partition.get("PartitionName") in facts.partition_names or _broken(facts, partition).here:
        return False
    open_to_all = all(partition.get(key, "ALL") == "ALL" for key in ("AllowGroups", "AllowAccounts", "AllowQos"))
    return open_to_all and partition.get("RootOnly") != "YES" and partition.get("ReqResv") != "YES"


def _nodes_asked(facts: Facts) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", facts.job.get("NumNodes", ""), re.ASCII)
    return (int(match[1]), int(match[2] or match[1])) if match else (0, 0)


def room(facts: Facts) -> Found:
    """What is asked against what the partition's nodes have free, and which of them are out and why."""
    nodes = partition_nodes(facts)
    if nodes is None:
        return Found(unseen=("the partition's nodes",)) if facts.nodes is None else Found()
    where = f"partition {', '.join(facts.partition_names)}"
    free, total = sum(n.gpu_free for n in nodes), sum(n.gpu_total for n in nodes)
    cpus = f"{sum(n.cpus_free for n in nodes)} of {several(sum(n.cpus for n in nodes), 'CPU')}"
    gpus = f", {free} of {several(total, 'GPU')}" if total else ""
    here = [f"it asks for {_request(facts)}; free now in {where}: {cpus}{gpus}"]
    fitting = [n.name for n in nodes if _fits(n, facts)]
    need = _nodes_asked(facts)[0] or 1
    enough = f"{several(len(fitting), 'node')} of {len(nodes)} {'has' if len(fitting) == 1 else 'have'} room for it now"
    if fitting:
        enough += f" ({fold(fitting)})"
    here.append(f"{enough}; it needs {need}")
    if len(fitting) >= need:
        here.append("they may be kept for jobs that go first, or the scheduler has not come to it yet")
    return Found(tuple(here)) + out_of_service(nodes, facts.now)


def out_of_service(nodes: Sequence[Node], now: float) -> Found:
    """The nodes that take no jobs, those that somebody must mend with the reason that was given."""
    broken = [n for n in nodes if n.standing in OUT]
    kept = [n for n in nodes if n.standing not in (*OUT, *OPEN, "allocated", "completing")]
    here = [_why_out(n, now) for n in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        here.append(f"and {several(len(broken) - _SHOWN, 'more node')} out of service: `sinfo -R`")
    for standing in dict.fromkeys(n.standing for n in kept):
        here.append(f"{fold(n.name for n in kept if n.standing == standing)}: {standing}")
    return Found(tuple(here))


def _why_out(node: Node, now: float) -> str:
    by = f", by {node.reason_by}" if node.reason_by else ""
    at = f", {moment(node.reason_at, now)}" if node.reason_at else ""
    return f"{node.name} is {node.standing}: {node.reason or 'no reason given'}{by}{at}"


def asked_nodes(facts: Facts) -> Found:
    """The nodes that the job names, and how each stands."""
    text = facts.job.get("ReqNodeList", "")
    if not text or facts.nodes is None:
        return Found()
    known = {node.name: node for node in facts.nodes}
    here, bad = [], []
    for name in expand(text, 1000):
        node = known.get(name)
        if node is None:
            here.append(f"{name}, which it asks for, could not be seen")
        elif node.standing in OUT:
            bad.append(name)
            here.append(f"it asks for {name}")
        elif not _fits(node, facts):
            gpus = f", {node.gpu_free} of {several(node.gpu_total, 'GPU')} free" if node.gpu_total else ""
            here.append(f"it asks for {name}, which is {node.standing}{gpus}")
    good = [name for name in expand(text, 1000) if name not in bad]
    do = (f"scontrol update JobId={facts.id} ReqNodeList={fold(good) if good else ''}",) if bad else ()
    return Found(tuple(here[: 2 * _SHOWN]), do)


def reservations(facts: Facts) -> Found:
    """The reservation that the job asks for, or those of others that keep its nodes."""
    wanted = facts.job.get("Reservation", "")
    if facts.reservations is None:
        return Found(unseen=("the reservations",)) if wanted else Found()
    by_name = {block["ReservationName"]: block for block in facts.reservations}
    if wanted:
        blocks = [by_name[name] for name in wanted.split(",") if name in by_name]
        if not blocks:
            return Found((f"reservation {wanted} is not shown to you: it may be over, or not yours",))
        return Found(tuple(_reservation(block, facts.now) for block in blocks))
    mine = set(expand(facts.job.get("ReqNodeList", ""))) or {n.name for n in partition_nodes(facts) or ()}
    blocks = [b for b in facts.reservations if mine & set(expand(b.get("Nodes", "")))]
    return Found(tuple(_reservation(block, facts.now) for block in blocks[:_SHOWN]), _before(facts, blocks))


def _before(facts: Facts, blocks: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """A time limit with which the job would end before the first of those reservations begins."""
    starts = [start for block in blocks if (start := _int(block.get("StartTime", "")) or 0) > facts.now]
    asked = duration(facts.job.get("TimeLimit", ""))
    minutes = int(min(starts) - facts.now) // 60 - 1 if starts else 0
    if minutes < 1 or (asked is not None and asked <= minutes * 60):
        return ()
    return (f"scontrol update JobId={facts.id} TimeLimit={minutes}  # minutes: it would end before the reservation",)


def _reservation(block: dict[str, str], now: float) -> str:
    start, end = _int(block.get("StartTime", "")), _int(block.get("EndTime", ""))
    flags = f" ({block['Flags']})" if block.get("Flags") else ""
    if start and start > now:
        when = f"begins at {moment(start, now)}, for {clock(end - start) if end else 'an unknown time'}"
    else:
        when = f"holds until {moment(end, now)}" if end else f"is {block.get('State', 'there')}"
    nodes = (
        f"{several(_int(block.get('NodeCnt', '')) or 0, 'node')}: {block['Nodes']}"
        if block.get("Nodes")
        else "no nodes"
    )
    whose = next((f", for {key.lower()} {block[key]}" for key in ("Users", "Accounts", "Groups") if block.get(key)), "")
    return f"reservation {block['ReservationName']}{flags} {when}; {nodes}{whose}"


def partition_nodes(facts: Facts) -> list[Node] | None:
    """The nodes of the job's partitions; None where they could not be seen."""
    if facts.nodes is None or not facts.partition_names:
        return None
    return [n for n in facts.nodes if set(n.partitions) & set(facts.partition_names)]


def _request(facts: Facts) -> str:
    """The request in words, on each node where it says so."""
    asked, (low, high) = facts.asked, _nodes_asked(facts)
    parts = [several(low, "node") if low == high else f"{low} to {high} nodes"]
    gpus = _gpus(facts)
    parts += [several(gpus, "GPU")] if gpus else []
    parts += [several(int(asked["cpu"]), "CPU")] if "cpu" in asked else []
    parts += [f"{asked['mem'] / 1024:.3g}G of memory"] if asked.get("mem") else []
    features = facts.job.get("Features", "")
    return ", ".join(parts) + (f", with {features}" if features else "")


def _gpus(facts: Facts) -> int:
    named = [value for name, value in facts.asked.items() if name.startswith("gres/gpu")]
    if named:
        return int(max(named))
    # where GPUs are not accounted for they stand in the request alone: gres:gpu:4, gres/gpu:a100=2
    nodes = max(1, _nodes_asked(facts)[0])
    return _counted(facts.job.get("TresPerNode", "")) * nodes or _counted(facts.job.get("TresPerJob", ""))


def _counted(request: str) -> int:
    return sum(int(number) for number in re.findall(r"gres[:/]gpu(?::[^:=,]+)?[:=](\d{1,6})", request, re.ASCII))


def _fits(node: Node, facts: Facts) -> bool:
    """Whether a node has its share of the request free, as far as counts tell (features and memory aside)."""
    nodes = max(1, _nodes_asked(facts)[0])
    cpus = facts.asked.get("cpu", 1) / nodes
    return node.standing in OPEN and node.cpus_free >= max(1, int(cpus)) and node.gpu_free >= -(-_gpus(facts) // nodes)


def _int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
