"""Explain where a job could run: nodes out of service, reserved or full, and what is free. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from clusterrun.base.units import clause, first_few, format_duration, format_time_and_offset, plural
from clusterrun.scheduler.slurm.hostlist import expand, fold
from clusterrun.scheduler.slurm.nodes import OPEN, OUT, Node
from clusterrun.scheduler.slurm.reasons import Starts
from clusterrun.scheduler.slurm.scontrol import having
from clusterrun.why.pending.facts import Finding, PendingFacts, number_in

_SHOWN = 4
_AT_ONCE = 30  # seconds between what Slurm does to a node and to the job that failed there


def free_room(facts: PendingFacts) -> Finding:
    """Compare the request with what is free on the job's nodes, and list nodes that are full or out of service."""
    if facts.nodes is None:
        return Finding(unseen=("the partition's nodes",))
    if not facts.partition_names:
        return Finding()
    nodes, which = _allowed_nodes(facts)
    where, none = f"in {facts.partition_text}", f"no node in {facts.partition_text}"
    if which:
        where, none = f"on the {which} {where}", f"none of the {which} {where}"
    request = Finding((f"the job requests {_request(facts)}; free now {where}: {_free(nodes)}",))
    able = _with_features(facts, nodes)
    if facts.features_wanted:
        request += _describe_features(facts, nodes, able, none)
    if request.starts:
        return request
    able = able or nodes
    return request + _room_now(able, facts) + out_of_service(able, facts.now)


def _with_features(facts: PendingFacts, nodes: list[Node]) -> list[Node] | None:
    """Return the nodes that have the requested features or unknown ones; None if the request is not understood."""
    if not facts.features_wanted:
        return nodes
    names = having(facts.features_wanted, facts.features, [node.name for node in nodes])
    return None if names is None else [node for node in nodes if node.name in names]


def _free(nodes: Sequence[Node]) -> str:
    """Return the free CPUs and GPUs of nodes in words."""
    cpus_free = cpus = gpus_free = gpus = 0
    for node in nodes:
        cpus_free += node.cpus_free
        cpus += node.cpus
        gpus_free += node.gpu_free
        gpus += node.gpu_total
    text = f"{cpus_free} of {plural(cpus, 'CPU')}"
    return f"{text}, {gpus_free} of {plural(gpus, 'GPU')}" if gpus else text


def _room_now(nodes: Sequence[Node], facts: PendingFacts) -> Finding:
    """Return how many nodes have room for the job, and what the others lack."""
    fitting = [node.name for node in nodes if _fits(node, facts)]
    have = _have(1 if len(nodes) == 1 else len(fitting))  # 0 of 1 node has
    enough = f"{len(fitting)} of {plural(len(nodes), 'node')} {have} room for the job now"
    lines = [f"{enough}{clause(fold(fitting), ' ({})')}; the job needs {facts.least_nodes}", *_short(nodes, facts)]
    if len(fitting) >= facts.least_nodes and _waits_for_room(facts):
        lines.append(
            "the nodes with room may be reserved for jobs ahead, or Slurm may not have considered this job yet"
        )
    return Finding(tuple(lines))


def _waits_for_room(facts: PendingFacts) -> bool:
    """Return whether nodes with room are all that the job waits for."""
    if facts.reason is None:
        return True
    # with Constraints, the nodes lack what --extra requests
    return facts.reason.starts is Starts.ALONE and facts.reason.word != "Constraints"


def has_room(facts: PendingFacts) -> bool:
    """Return whether enough nodes have room for the job now; False if unknown."""
    nodes, _ = _allowed_nodes(facts)
    able = _with_features(facts, [node for node in nodes if _fits(node, facts)])
    return able is not None and len(able) >= facts.least_nodes


def _allowed_nodes(facts: PendingFacts) -> tuple[list[Node], str]:
    """Return the partitions' nodes that --nodelist and --exclude leave, and a description of them."""
    nodes = partition_nodes(facts)
    wanted, unwanted = set(facts.nodes_in("ReqNodeList")), set(facts.nodes_in("ExcNodeList"))
    if len(wanted) >= facts.least_nodes:
        return [node for node in nodes if node.name in wanted], "requested nodes"
    others = [node for node in nodes if node.name not in unwanted]
    return others, "non-excluded nodes" if len(others) < len(nodes) else ""


def _describe_features(facts: PendingFacts, nodes: list[Node], able: list[Node] | None, none: str) -> Finding:
    """Name the nodes that are able, with the requested features, or the command that drops the features."""
    wanted = facts.features_wanted
    if able is None:
        return Finding(unseen=(f"which nodes have {wanted}",))
    if able:
        names = fold(node.name for node in able)
        return Finding((f"{len(able)} of {plural(len(nodes), 'node')} {_have(len(able))} {wanted} ({names})",))
    features = sorted(set[str]().union(*(facts.features[node.name] for node in nodes)))
    there = f"available features: {first_few(features)}" if features else "the nodes have no features"
    do = (facts.update("Features"), f"clusterrun cancel {facts.id}")
    return Finding((f"{none} has {wanted}; {there}",), do, starts=Starts.YOU)


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _short(nodes: Sequence[Node], facts: PendingFacts) -> list[str]:
    """Return the nodes in service without room for the job, by what they lack: GPUs, memory, CPUs."""
    by_lack: dict[str, list[str]] = {}
    for node in nodes:
        lacks = _lacks(node, facts)
        if lacks and node.standing in (*OPEN, "allocated"):
            by_lack.setdefault(" and ".join(lacks), []).append(node.name)
    return [f"not enough {what}: {fold(names)}" for what, names in by_lack.items()]


def out_of_service(nodes: Sequence[Node], now: float) -> Finding:
    """Return the nodes that accept no jobs, with the reason that was set."""
    here: list[str] = []
    kept: dict[str, list[str]] = {}
    for node in nodes:
        if node.standing in OUT:
            here.append(_why_out(node, now))
        elif node.standing not in (*OPEN, "allocated", "completing"):
            kept.setdefault(node.standing, []).append(node.name)
    more = len(here) - _SHOWN
    if more > 0:
        here[_SHOWN:] = [f"and {plural(more, 'more node')} out of service: see `sinfo -R`"]
    return Finding((*here, *(f"{fold(names)}: {standing}" for standing, names in kept.items())))


def _why_out(node: Node, now: float) -> str:
    why = f"{node.name} is {node.standing}: {node.reason or 'no reason given'}{clause(node.reason_by, ', by {}')}"
    return f"{why}, {format_time_and_offset(node.reason_at, now)}" if node.reason_at else why


def could_not_launch(reason: str) -> bool:
    """Return whether Slurm holds a job that it could not start on its node; it has forgotten which."""
    return "launch failed" in reason


def drained_at_launch(facts: PendingFacts) -> Finding:
    """Name the nodes that Slurm took out of service when it put the job back into the queue."""
    at = facts.epoch("SubmitTime")  # of the job's return to the queue
    if facts.nodes is None or at is None:
        return Finding()
    since = [node for node in facts.nodes if node.reason_at and abs(node.reason_at - at) <= _AT_ONCE]
    out = [node for node in since if node.standing in OUT]
    return Finding(tuple(f"at that time {_why_out(node, facts.now)}" for node in out[:_SHOWN]))


def check_named_nodes(facts: PendingFacts) -> Finding:
    """Check the nodes that the job names and their states."""
    if facts.nodes is None:
        return Finding()
    visible = {node.name: node for node in facts.nodes}
    here: list[str] = []
    usable: list[str] = []
    requested = facts.nodes_in("ReqNodeList")
    for name in requested:
        node = visible.get(name)
        if node is None:
            here.append(f"requested node {name} is not visible to you")
            usable.append(name)
            continue
        if not _fits(node, facts):
            here.append(f"the job requests {name}, which is {_condition(node)}")
        if node.standing not in OUT:
            usable.append(name)
    evidence = Finding(tuple(here[: 2 * _SHOWN]))
    if len(usable) < len(requested):
        names = shlex.quote(fold(usable)) if usable else ""  # brackets are a pattern for the shell
        evidence += Finding(do=(facts.update("ReqNodeList", names),))
    return evidence


def _condition(node: Node) -> str:
    """Return the condition of a node without room for the job."""
    if node.standing in OUT:
        return "out of service"
    if not node.gpu_total:
        return node.standing
    return f"{node.standing}, {node.gpu_free} of {plural(node.gpu_total, 'GPU')} free"


def reservations(facts: PendingFacts) -> Finding:
    """Describe the job's reservation, or the reservations that hold its nodes."""
    if facts.job.get("Reservation"):
        return _own_reservation(facts)
    nodes = set(facts.nodes_in("ReqNodeList")) or {node.name for node in partition_nodes(facts)}
    blocks = [block for block in facts.reservations or () if not nodes.isdisjoint(expand(block.get("Nodes", "")))]
    return Finding(tuple(_reservation(block, facts.now) for block in blocks[:_SHOWN]), _before(facts, blocks))


def _own_reservation(facts: PendingFacts) -> Finding:
    """Describe the reservations that the job names."""
    if facts.reservations is None:
        return Finding(unseen=("the reservations",))
    wanted = facts.job["Reservation"]
    blocks = [block for block in facts.reservations if block["ReservationName"] in wanted.split(",")]
    if not blocks:
        return Finding((f"reservation {wanted} is not visible to you: it may have ended, or you may lack access",))
    return Finding(tuple(_reservation(block, facts.now) for block in blocks))


def _before(facts: PendingFacts, blocks: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """Return the time limit with which the job ends before the first reservation begins."""
    starts = [start for block in blocks if (start := number_in(block, "StartTime")) > facts.now]
    command = shorter_limit_command(facts, min(starts, default=0))
    return (f"{command}, so that the job ends before the reservation begins",) if command else ()


def shorter_limit_command(facts: PendingFacts, end: float) -> str:
    """Return the command that makes the job end before that time; "" if its time limit is short enough or none is."""
    # Slurm counts in minutes, and starts a job some seconds after it could
    minutes = int(end - facts.now) // 60 - 1
    if minutes < 1 or (facts.time_limit or math.inf) <= minutes * 60:
        return ""
    return f"{facts.update('TimeLimit', minutes)}  # minutes"


def _reservation(block: dict[str, str], now: float) -> str:
    name = f"reservation {block['ReservationName']}{clause(block.get('Flags'), ' ({})')}"
    nodes = "no nodes"
    if block.get("Nodes"):
        nodes = f"{plural(number_in(block, 'NodeCnt'), 'node')}: {block['Nodes']}"
    return f"{name} {_when(block, now)}; {nodes}{_whose(block)}"


def _when(block: dict[str, str], now: float) -> str:
    """Return when a reservation begins, or until when it lasts."""
    start, end = number_in(block, "StartTime"), number_in(block, "EndTime")
    if start > now:
        return f"begins at {format_time_and_offset(start, now)}, and lasts {format_duration(end - start)}"
    return f"lasts until {format_time_and_offset(end, now)}" if end else f"is {block.get('State', 'visible')}"


def _whose(block: dict[str, str]) -> str:
    """Return for whom a reservation is, if Slurm says that."""
    for key in ("Users", "Accounts", "Groups"):
        names = block.get(key, "")
        if names:
            return f", for {(key if ',' in names else key[:-1]).lower()} {names}"
    return ""


def partition_nodes(facts: PendingFacts) -> list[Node]:
    """Return the nodes of the job's partitions; none if they are unknown."""
    return [node for node in facts.nodes or () if facts.is_in_one_of(node.partitions)]


def _request(facts: PendingFacts) -> str:
    low, high = facts.requested_nodes
    request = plural(low, "node") if low == high else f"{low} to {high} nodes"
    gpus, cpus, memory = _gpus(facts), facts.requested.get("cpu"), facts.requested.get("mem", 0)
    request += clause(gpus, f", {plural(gpus, 'GPU')}")
    if cpus is not None:
        request += f", {plural(int(cpus), 'CPU')}"
    request += clause(memory, f", {memory / 1024:.3g}G of memory")
    return request + clause(facts.features_wanted, ", with {}")


def _gpus(facts: PendingFacts) -> int:
    tracked = max((facts.requested[name] for name in facts.requested if name.startswith("gres/gpu")), default=0)
    if tracked:
        return int(tracked)
    # if Slurm does not track GPUs, only the request has them: gres:gpu:4, gres/gpu:a100=2
    per_node = _counted(facts.job.get("TresPerNode", ""))
    return per_node * facts.least_nodes or _counted(facts.job.get("TresPerJob", ""))


def _counted(request: str) -> int:
    return sum(map(int, re.findall(r"gres[:/]gpu(?::[^:=,]+)?[:=](\d{1,6})", request, re.ASCII)))


def _fits(node: Node, facts: PendingFacts) -> bool:
    """Return whether a node has its share of the request free (features aside)."""
    return node.standing in OPEN and not _lacks(node, facts)


def _lacks(node: Node, facts: PendingFacts) -> list[str]:
    """Return what the node lacks for its share of the request."""
    lacks: list[str] = []
    if sum(dict(node.gpus_idle).values()) < math.ceil(_gpus(facts) / facts.least_nodes):
        lacks.append("GPUs")
    memory = facts.requested.get("mem", 0) / facts.least_nodes
    if node.memory and node.memory - node.memory_used < max(1.0, memory):
        lacks.append("memory")
    if node.cpus - node.cpus_used < max(1, facts.requested.get("cpu", 1) // facts.least_nodes):
        lacks.append("CPUs")
    return lacks
