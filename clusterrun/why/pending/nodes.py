"""Explain where a job could run: nodes out of service, reserved or full, and what is free. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from clusterrun.base.units import first_few, format_duration, format_time_and_offset, plural
from clusterrun.scheduler.slurm.hostlist import expand, fold
from clusterrun.scheduler.slurm.nodes import OPEN, OUT, Node
from clusterrun.scheduler.slurm.reasons import Starts
from clusterrun.scheduler.slurm.scontrol import having
from clusterrun.scheduler.slurm.values import parse_int
from clusterrun.why.pending.facts import Finding, PendingFacts

_SHOWN = 4


def free_room(facts: PendingFacts) -> Finding:
    """Compare the request with what is free on the job's nodes, and list nodes that are full or out of service."""
    nodes = partition_nodes(facts)
    if nodes is None:
        return Finding(unseen=("the partition's nodes",)) if facts.nodes is None else Finding()
    nodes, which = _named(facts, nodes)
    where, none = f"in {facts.partition_text}", f"no node in {facts.partition_text}"
    if which:
        where, none = f"on the {which} {where}", f"none of the {which} {where}"
    request = Finding((f"the job requests {_request(facts)}; free now {where}: {_free(nodes)}",))
    featured = _featured(facts, nodes, none)
    if featured.starts:
        return request + featured
    nodes = _with_features(facts, nodes) or nodes
    return request + featured + _room_now(nodes, facts) + out_of_service(nodes, facts.now)


def _with_features(facts: PendingFacts, nodes: list[Node]) -> list[Node] | None:
    """Return the nodes that have the requested features or unknown ones; None if the request is not understood."""
    wanted = facts.job.get("Features", "")
    if not wanted:
        return nodes
    names = having(wanted, facts.features or {}, [node.name for node in nodes])
    return None if names is None else [node for node in nodes if node.name in names]


def _free(nodes: Sequence[Node]) -> str:
    """Return the free CPUs and GPUs of nodes in words."""
    cpus = f"{sum(n.cpus_free for n in nodes)} of {plural(sum(n.cpus for n in nodes), 'CPU')}"
    total = sum(n.gpu_total for n in nodes)
    return f"{cpus}, {sum(n.gpu_free for n in nodes)} of {plural(total, 'GPU')}" if total else cpus


def _room_now(nodes: Sequence[Node], facts: PendingFacts) -> Finding:
    """Return how many nodes have room for the job, and what the others lack."""
    fitting = [n.name for n in nodes if _fits(n, facts)]
    need = facts.least_nodes
    has = "has" if len(nodes) == 1 else _has(fitting)
    enough = f"{len(fitting)} of {plural(len(nodes), 'node')} {has} room for the job now"
    names = f" ({fold(fitting)})" if fitting else ""
    lines = [f"{enough}{names}; the job needs {need}", *_short(nodes, facts)]
    # with Constraints, these nodes lack what --extra requests
    open_now = facts.reason is None or (facts.reason.starts is Starts.ALONE and facts.reason.word != "Constraints")
    if len(fitting) >= need and open_now:
        lines.append(
            "the nodes with room may be reserved for jobs ahead, or Slurm may not have considered this job yet"
        )
    return Finding(tuple(lines))


def has_room(facts: PendingFacts) -> bool:
    """Return whether enough nodes have room for the job now; False if unknown."""
    nodes, _ = _named(facts, partition_nodes(facts) or [])
    able = _with_features(facts, [node for node in nodes if _fits(node, facts)])
    return able is not None and len(able) >= facts.least_nodes


def _named(facts: PendingFacts, nodes: list[Node]) -> tuple[list[Node], str]:
    """Return the nodes that --nodelist and --exclude leave, and a description of them."""
    wanted = set(expand(facts.job.get("ReqNodeList", ""), 10_000))
    unwanted = set(expand(facts.job.get("ExcNodeList", ""), 10_000))
    if wanted and len(wanted) >= (facts.least_nodes):
        return [n for n in nodes if n.name in wanted], "requested nodes"
    others = [n for n in nodes if n.name not in unwanted]
    return (others, "non-excluded nodes") if len(others) < len(nodes) else (nodes, "")


def _featured(facts: PendingFacts, nodes: list[Node], none: str) -> Finding:
    """Find the nodes with the requested features, or the command that drops the features."""
    wanted = facts.job.get("Features", "")
    if not wanted:
        return Finding()
    able = None if facts.features is None else _with_features(facts, nodes)
    if facts.features is None or able is None:
        return Finding(unseen=(f"which nodes have {wanted}",))
    if able:
        names = [node.name for node in able]
        return Finding((f"{len(able)} of {plural(len(nodes), 'node')} {_has(names)} {wanted} ({fold(names)})",))
    features = sorted({name for node in nodes for name in facts.features.get(node.name, ())})
    there = f"; available features: {first_few(features)}" if features else "; the nodes have no features"
    return Finding(
        (f"{none} has {wanted}{there}",),
        (facts.update("Features"), f"clusterrun cancel {facts.id}"),
        starts=Starts.YOU,
    )


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


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
    broken = [n for n in nodes if n.standing in OUT]
    here = [_why_out(n, now) for n in broken[:_SHOWN]]
    if len(broken) > _SHOWN:
        here.append(f"and {plural(len(broken) - _SHOWN, 'more node')} out of service: see `sinfo -R`")
    kept: dict[str, list[str]] = {}
    for node in nodes:
        if node.standing not in (*OUT, *OPEN, "allocated", "completing"):
            kept.setdefault(node.standing, []).append(node.name)
    here += [f"{fold(names)}: {standing}" for standing, names in kept.items()]
    return Finding(tuple(here))


def _why_out(node: Node, now: float) -> str:
    by = f", by {node.reason_by}" if node.reason_by else ""
    at = f", {format_time_and_offset(node.reason_at, now)}" if node.reason_at else ""
    return f"{node.name} is {node.standing}: {node.reason or 'no reason given'}{by}{at}"


def check_named_nodes(facts: PendingFacts) -> Finding:
    """Check the nodes that the job names and their states."""
    text = facts.job.get("ReqNodeList", "")
    if not text or facts.nodes is None:
        return Finding()
    visible = {node.name: node for node in facts.nodes}
    requested = expand(text, 1000)
    here = [_state_of_named(name, visible.get(name), facts) for name in requested]
    good = [name for name in requested if name not in visible or visible[name].standing not in OUT]
    names = shlex.quote(fold(good)) if good else ""  # brackets are a pattern for the shell
    do = (facts.update("ReqNodeList", names),) if len(good) < len(requested) else ()
    return Finding(tuple(filter(None, here))[: 2 * _SHOWN], do)


def _state_of_named(name: str, node: Node | None, facts: PendingFacts) -> str:
    """Return why a requested node cannot run the job now; empty if it has room."""
    if node is None:
        return f"requested node {name} is not visible to you"
    if node.standing in OUT:
        return f"the job requests {name}, which is out of service"
    if _fits(node, facts):
        return ""
    gpus = f", {node.gpu_free} of {plural(node.gpu_total, 'GPU')} free" if node.gpu_total else ""
    return f"the job requests {name}, which is {node.standing}{gpus}"


def reservations(facts: PendingFacts) -> Finding:
    """Describe the job's reservation, or the reservations that hold its nodes."""
    wanted = facts.job.get("Reservation", "")
    if facts.reservations is None:
        return Finding(unseen=("the reservations",)) if wanted else Finding()
    if wanted:
        return _own_reservation(wanted, facts.reservations, facts.now)
    nodes = set(expand(facts.job.get("ReqNodeList", ""))) or {n.name for n in partition_nodes(facts) or ()}
    blocks = [block for block in facts.reservations if nodes & set(expand(block.get("Nodes", "")))]
    return Finding(tuple(_reservation(block, facts.now) for block in blocks[:_SHOWN]), _before(facts, blocks))


def _own_reservation(wanted: str, blocks: Sequence[dict[str, str]], now: float) -> Finding:
    """Describe the reservations that the job names."""
    by_name = {block["ReservationName"]: block for block in blocks}
    named = [by_name[name] for name in wanted.split(",") if name in by_name]
    if not named:
        return Finding((f"reservation {wanted} is not visible to you: it may have ended, or you may lack access",))
    return Finding(tuple(_reservation(block, now) for block in named))


def _before(facts: PendingFacts, blocks: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """Return the time limit with which the job ends before the first reservation begins."""
    starts = [start for block in blocks if (start := parse_int(block.get("StartTime", "")) or 0) > facts.now]
    command = shorter_limit_command(facts, min(starts)) if starts else ""
    return (f"{command}, so that the job ends before the reservation begins",) if command else ()


def shorter_limit_command(facts: PendingFacts, end: float) -> str:
    """Return the command that makes the job end before that time; "" if its time limit is short enough or none is."""
    # Slurm counts in minutes, and starts a job some seconds after it could
    minutes = int(end - facts.now) // 60 - 1
    if minutes < 1 or (facts.time_limit is not None and facts.time_limit <= minutes * 60):
        return ""
    return f"{facts.update('TimeLimit', minutes)}  # minutes"


def _reservation(block: dict[str, str], now: float) -> str:
    flags = f" ({block['Flags']})" if block.get("Flags") else ""
    count = plural(parse_int(block.get("NodeCnt", "")) or 0, "node")
    nodes = f"{count}: {block['Nodes']}" if block.get("Nodes") else "no nodes"
    name = block["ReservationName"]
    return f"reservation {name}{flags} {_when(block, now)}; {nodes}{_whose(block)}"


def _when(block: dict[str, str], now: float) -> str:
    """Return when a reservation begins, or until when it lasts."""
    start, end = parse_int(block.get("StartTime", "")), parse_int(block.get("EndTime", ""))
    if start and start > now:
        lasts = format_duration(end - start if end else None)
        return f"begins at {format_time_and_offset(start, now)}, and lasts {lasts}"
    return f"lasts until {format_time_and_offset(end, now)}" if end else f"is {block.get('State', 'visible')}"


def _whose(block: dict[str, str]) -> str:
    """Return for whom a reservation is, if Slurm says that."""
    for key in ("Users", "Accounts", "Groups"):
        if block.get(key):
            return f", for {(key if ',' in block[key] else key[:-1]).lower()} {block[key]}"
    return ""


def partition_nodes(facts: PendingFacts) -> list[Node] | None:
    """Return the nodes of the job's partitions; None if unknown."""
    if facts.nodes is None or not facts.partition_names:
        return None
    return [n for n in facts.nodes if facts.is_in_one_of(n.partitions)]


def _request(facts: PendingFacts) -> str:
    asked, (low, high) = facts.requested, facts.requested_nodes
    parts = [plural(low, "node") if low == high else f"{low} to {high} nodes"]
    gpus = _gpus(facts)
    parts += [plural(gpus, "GPU")] if gpus else []
    parts += [plural(int(asked["cpu"]), "CPU")] if "cpu" in asked else []
    parts += [f"{asked['mem'] / 1024:.3g}G of memory"] if asked.get("mem") else []
    features = facts.job.get("Features", "")
    return ", ".join(parts) + (f", with {features}" if features else "")


def _gpus(facts: PendingFacts) -> int:
    named = [value for name, value in facts.requested.items() if name.startswith("gres/gpu")]
    if named:
        return int(max(named))
    # if Slurm does not track GPUs, only the request has them: gres:gpu:4, gres/gpu:a100=2
    nodes = facts.least_nodes
    return _counted(facts.job.get("TresPerNode", "")) * nodes or _counted(facts.job.get("TresPerJob", ""))


def _counted(request: str) -> int:
    return sum(int(number) for number in re.findall(r"gres[:/]gpu(?::[^:=,]+)?[:=](\d{1,6})", request, re.ASCII))


def _fits(node: Node, facts: PendingFacts) -> bool:
    """Return whether a node has its share of the request free (features aside)."""
    return node.standing in OPEN and not _lacks(node, facts)


def _lacks(node: Node, facts: PendingFacts) -> list[str]:
    """Return what the node lacks for its share of the request."""
    nodes = facts.least_nodes
    gpus = -(-_gpus(facts) // nodes)
    cpus, memory = facts.requested.get("cpu", 1) / nodes, facts.requested.get("mem", 0) / nodes
    idle = sum(number for _, number in node.gpus_idle)
    short = {
        "GPUs": gpus > 0 and idle < gpus,
        "memory": bool(node.memory) and node.memory - node.memory_used < max(memory, 1.0 if node.memory_used else 0),
        "CPUs": node.cpus - node.cpus_used < max(1, int(cpus)),
    }
    return [name for name, lacking in short.items() if lacking]
