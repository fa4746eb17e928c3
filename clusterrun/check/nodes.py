"""Judge the nodes of `clusterrun check`: each rule compares one thing with what is needed, or with the other nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from clusterrun.check.judging import DIFFERS, UNKNOWN, Finding, Tries, format_groups, group_by_value, is_slow
from clusterrun.check.results import FINISHED, Rank, number, table, texts
from clusterrun.scheduler.slurm.hostlist import fold

LEAST_FREE_GIB = 1.0
LEAST_MEMORY_SHARE = 0.25  # of the median of the other nodes
LEAST_FILES = 1024
SLOWEST_WRITE_S = 10.0  # of 1 MiB, synced
LARGEST_OFFSET_S = 1.0
SEE_LOG = "see the log of the check: `clusterrun logs JOB`"
TO_FIRST_NODE = "check the route and the firewall from this node to the first node of the job"
USED_GPU_GIB = 2.0  # a rank of the check itself uses less
#: Below these shares of the median a rate is slow: cores of a CPU are often shared, GPUs are not.
SHARE = {"cpu": 0.4, "gpu": 0.8}


def judge_nodes(ranks: Sequence[Rank], expected: Mapping[int, str], gpus: int) -> list[Finding]:
    """Return what is wrong or unknown. ``expected`` has the node of each rank, ``gpus`` are those of each node."""
    leaders = [rank for rank in ranks if rank.local_rank == 0 and "folders" in rank.data]
    return [
        *_missing(ranks, expected),
        *_devices(ranks, leaders, gpus),
        *_gemm(ranks),
        *_memory(leaders),
        *_folders(leaders),
        *_clock(leaders),
        *_open_files(leaders),
        *_names(leaders),
        *_versions(leaders),
    ]


def _missing(ranks: Sequence[Rank], expected: Mapping[int, str]) -> list[Finding]:
    """Return findings for ranks without a file, and for those that did not reach the others or the end."""
    found = []
    came = {rank.rank for rank in ranks}
    absent = group_by_value({str(rank): node for rank, node in expected.items() if rank not in came})
    for node, numbers in absent.items():
        numbered = f"rank{'s' if len(numbers) > 1 else ''} {','.join(numbers[:8])}"
        text = f"no result from {numbered} on {node or 'an unknown node'}"
        action = "it hangs, or cannot write to the run's folder: see `clusterrun logs JOB` of the check"
        found.append(Finding(DIFFERS, "ranks", text, action, (node,) if node else ()))
    for stage in ("node", "join", "names", "clock", "gemm", "links"):
        failed = {rank.node: rank.errors[stage] for rank in ranks if stage in rank.errors}
        for error, nodes in group_by_value(failed).items():
            what = "did not reach the other ranks" if stage == "join" else f"could not measure {stage}"
            action = TO_FIRST_NODE if stage == "join" else SEE_LOG
            found.append(Finding(DIFFERS, stage, f"{fold(nodes)}: {what}: {error}", action, tuple(nodes)))
    stuck = {r.node: r.stage for r in ranks if r.stage != FINISHED and not r.errors}
    for stage, nodes in group_by_value(stuck).items():
        text = f"{fold(nodes)}: ended while measuring {stage or 'nothing yet'}"
        found.append(Finding(DIFFERS, "ranks", text, SEE_LOG, tuple(nodes)))
    return found


def _devices(ranks: Sequence[Rank], leaders: Sequence[Rank], gpus: int) -> list[Finding]:
    found = []
    for rank in ranks:
        gpu = table(rank.data, "gpu")
        for bad, problem, action in _gpu_problems(gpu):
            if bad:
                text = f"{rank.node}, GPU {rank.data.get('device')}: {problem}"
                found.append(Finding(DIFFERS, "devices", text, action, (rank.node,)))
    if not gpus:
        return found
    for leader in leaders:
        count = count_devices(leader, ranks)
        if count is not None and count < gpus:
            text = f"{leader.node} has {count} of {gpus} GPUs"
            if granted := texts(leader.data.get("granted")):
                text += f" (CUDA_VISIBLE_DEVICES={','.join(granted)})"
            action = f"run nvidia-smi there; drain the node, or use --exclude {leader.node}"
            found.append(Finding(DIFFERS, "devices", text, action, (leader.node,)))
    without = [leader for leader in leaders if not leader.data.get("cuda")]
    if without:
        torch = table(without[0].data, "versions").get("torch")
        text = f"torch {torch} on {fold(one.node for one in without)} has no CUDA, so the GPUs were not measured"
        found.append(Finding(UNKNOWN, "devices", text, "install a torch with CUDA, or check with --gpus-per-node 0"))
    return found


def count_devices(leader: Rank, ranks: Sequence[Rank]) -> int | None:
    """Return the GPUs of a node: those that torch sees or, for a torch without CUDA, those that Slurm granted."""
    if not leader.data.get("cuda"):
        granted = leader.data.get("granted")
        return len(texts(granted)) if isinstance(granted, list) else None
    own = {str(table(rank.data, "gpu").get("uuid") or rank.rank) for rank in ranks if rank.node == leader.node}
    own = own if leader.data.get("visible") == 1 else set()  # a site that shows each task its own GPU
    return max(int(number(leader.data, "visible") or 0), len(own))


def _gpu_problems(gpu: Mapping[str, Any]) -> list[tuple[bool, str, str]]:
    free, total = number(gpu, "free_gib"), number(gpu, "total_gib")
    used = total - free if free is not None and total is not None else 0.0
    replace = "drain the node and have the GPU replaced"
    return [
        ("error" in gpu, f"cannot be opened: {gpu.get('error')}", "run nvidia-smi there, and drain the node"),
        ((number(gpu, "ecc_errors") or 0) > 0, f"{gpu.get('ecc_errors')} uncorrected ECC errors", replace),
        (gpu.get("remap_failed") is True, "memory rows could not be remapped", replace),
        (gpu.get("slowed_down") is True, "the hardware slows it down (heat or power)", "check cooling and power"),
        (used > USED_GPU_GIB, f"{used:.1f} GiB are in use by another process", "end that process; see nvidia-smi"),
    ]


def _gemm(ranks: Sequence[Rank]) -> list[Finding]:
    rates = {(r.node, r.rank, r.data.get("device") is not None): t for r in ranks if (t := gemm_rate(r)) is not None}
    found = []
    for (node, rank, on_gpu), rate in rates.items():
        others = [other for key, other in rates.items() if key != (node, rank, on_gpu) and key[2] == on_gpu]
        if is_slow(rate, others, SHARE["gpu" if on_gpu else "cpu"]):
            middle = median(other.best for other in others)
            text = f"rank {rank} on {node}: {rate.best:.3g} TFLOP/s; median of the others {middle:.3g}"
            action = "look for other processes, heat and power limits on the node"
            found.append(Finding(DIFFERS, "gemm", text, action, (node,)))
    wrong = dict.fromkeys(rank.node for rank in ranks if table(rank.data, "gemm").get("correct") is False)
    text = "wrong result of a matrix product"
    return found + [Finding(DIFFERS, "gemm", f"{node}: {text}", "drain the node", (node,)) for node in wrong]


def gemm_rate(rank: Rank) -> Tries | None:
    """Return the best and worst rate of matrix products in TFLOP/s, or None."""
    best, worst = (number(table(rank.data, "gemm"), name) for name in ("best", "worst"))
    return Tries(best, worst) if best and worst else None


def _memory(leaders: Sequence[Rank]) -> list[Finding]:
    free = {leader.node: gib for leader in leaders if (gib := number(leader.data, "memory_gib")) is not None}
    found = []
    for node, gib in free.items():
        others = [other for name, other in free.items() if name != node]
        if gib < LEAST_FREE_GIB or (others and gib < LEAST_MEMORY_SHARE * median(others)):
            text = f"{node} has {gib:.1f} GiB of free memory" + (f"; median {median(others):.1f}" if others else "")
            found.append(Finding(DIFFERS, "memory", text, "look for leftover processes on the node", (node,)))
    return found


def _folders(leaders: Sequence[Rank]) -> list[Finding]:
    found = []
    for leader in leaders:
        for state in (table(table(leader.data, "folders"), name) for name in ("run", "logs")):
            free, seconds = number(state, "free_gib"), number(state, "write_s")
            if "error" in state:
                problem = f"cannot write to it: {state['error']}"
            elif free is not None and free < LEAST_FREE_GIB:
                problem = f"{free:.2f} GiB are free"
            elif seconds is not None and seconds > SLOWEST_WRITE_S:
                problem = f"writing 1 MiB took {seconds:.0f} s"
            else:
                continue
            text = f"{leader.node}, {state.get('path')}: {problem}"
            found.append(Finding(DIFFERS, "disk", text, "check mount, quota and free space", (leader.node,)))
    return found


def _clock(leaders: Sequence[Rank]) -> list[Finding]:
    found = []
    for leader in leaders:
        offset, error = (number(table(leader.data, "clock"), name) for name in ("offset", "error"))
        if offset is not None and abs(offset) > LARGEST_OFFSET_S + (error or 0.0):
            text = f"the clock of {leader.node} is {offset:+.1f} s from that of {leaders[0].node}"
            found.append(Finding(DIFFERS, "clock", text, "start chronyd or ntpd on the node", (leader.node,)))
    return found


def _open_files(leaders: Sequence[Rank]) -> list[Finding]:
    few = [one.node for one in leaders if 0 <= (number(one.data, "nofile") or 0) < LEAST_FILES]
    if not few:
        return []
    text = f"{fold(few)}: less than {LEAST_FILES} open files are allowed"
    return [
        Finding(
            DIFFERS, "open files", text, "add --setup 'ulimit -n 65536', or raise LimitNOFILE of slurmd", tuple(few)
        )
    ]


def _names(leaders: Sequence[Rank]) -> list[Finding]:
    """Compare what each node resolves with the addresses that the nodes have."""
    # on the local scheduler all nodes have one name
    own = {str(leader.data.get("name")): (leader.node, set(texts(leader.data.get("addresses")))) for leader in leaders}
    wrong: dict[tuple[str, str], list[str]] = {}  # (name, answer) -> nodes that got it
    right = 0
    for leader in leaders:
        for name, answer in table(leader.data, "resolved").items():
            node, addresses = own.get(name, ("", set()))
            got = texts(answer)
            itself = (
                name == leader.data.get("name") and bool(got) and all(a.startswith("127.") or a == "::1" for a in got)
            )
            if not addresses or itself or addresses & set(got):
                right += bool(addresses)
            else:
                wrong.setdefault((name, " ".join(got)), []).append(leader.node)
    found = []
    if not right and wrong and not any(answer for _, answer in wrong):
        return [Finding(UNKNOWN, "names", "the names of nodes do not resolve; Slurm's addresses are used")]
    for (name, answer), nodes in wrong.items():
        node, addresses = own[name]
        to = f"resolves to {answer}" if answer else "does not resolve"
        text = f"{name} {to} on {fold(nodes)}; its address is {' '.join(sorted(addresses)[:2])}"
        found.append(Finding(DIFFERS, "names", text, f"correct {name} in /etc/hosts or DNS", (node,)))
    names = {name.partition(".")[0] for name in own}
    for name, (node, _) in own.items():
        leader = next(one for one in leaders if one.node == node)
        for address, back in table(leader.data, "reverse").items():
            short = str(back).partition(".")[0]
            if short in names and short != name.partition(".")[0]:
                text = f"{address} of {node} resolves to the name of another node, {back}"
                found.append(Finding(DIFFERS, "names", text, "correct /etc/hosts or the reverse DNS entry", (node,)))
    return found


def _versions(leaders: Sequence[Rank]) -> list[Finding]:
    found = []
    for name in ("python", "torch", "nccl", "driver"):
        groups = group_by_value({one.node: str(table(one.data, "versions").get(name) or "") for one in leaders})
        if len(groups) > 1:
            odd = tuple(node for nodes in list(groups.values())[1:] for node in nodes)
            action = "use the same Python environment and driver on all nodes"
            found.append(Finding(DIFFERS, f"{name} version", format_groups(groups), action, odd))
    return found
