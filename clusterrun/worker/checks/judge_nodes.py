"""Judge the nodes: each rule compares one thing with what is needed, or with the other nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from .findings import BROKEN, DIFFERS, SEE_LOG, UNKNOWN, Doc, Finding, Tries, find_slow, group_by_value, join_names
from .names import is_loopback

STAGES = ("node", "join", "names", "clock", "gemm", "links")
LEAST_FREE_GIB = 1.0
LEAST_MEMORY_SHARE = 0.25  # of the median of the other nodes
LEAST_FILES = 1024
SLOWEST_WRITE_S = 10.0  # of 1 MiB, synced
LARGEST_OFFSET_S = 1.0
USED_GPU_GIB = 2.0  # a rank of the check itself uses less
#: Below these shares of the median a rate is slow: cores of a CPU are often shared, GPUs are not.
SHARE = {"cpu": 0.4, "gpu": 0.8}


def judge_nodes(docs: Sequence[Doc], nodes: Sequence[str], gpus: int) -> list[Finding]:
    """Return what is wrong or unknown. `nodes` has the node of each rank of the run, `gpus` are those of a node."""
    leaders = [doc for doc in docs if doc["local_rank"] == 0 and "folders" in doc]
    rules = (_memory, _folders, _clock, _open_files, _names, _versions)
    found = [*_missing(docs, nodes), *_devices(docs, leaders, gpus), *_gemm(docs)]
    return [*found, *(one for rule in rules for one in rule(leaders))]


def _missing(docs: Sequence[Doc], nodes: Sequence[str]) -> Iterator[Finding]:
    """Yield findings for ranks that did not come, that failed in a stage, or that stopped in one."""
    came = {doc["rank"] for doc in docs}
    absent = group_by_value({rank: node for rank, node in enumerate(nodes) if rank not in came})
    for node, ranks in absent.items():
        text = f"no result from rank{'s' if len(ranks) > 1 else ''} {join_names(ranks)} on {node}"
        yield Finding(BROKEN, "ranks", text, "it did not start, hangs, or does not reach the first node", (node,))
    for stage in STAGES:
        failed = {doc["node"]: doc["errors"][stage] for doc in docs if stage in doc["errors"]}
        for error, where in group_by_value(failed).items():
            text = f"{join_names(where)}: could not measure {stage}: {error}"
            yield Finding(BROKEN, stage, text, SEE_LOG, tuple(where))
    stuck = {doc["node"]: doc["stage"] for doc in docs if doc["stage"] != "done" and not doc["errors"]}
    for stage, where in group_by_value(stuck).items():
        yield Finding(BROKEN, "ranks", f"{join_names(where)}: stopped while measuring {stage}", SEE_LOG, tuple(where))


def _devices(docs: Sequence[Doc], leaders: Sequence[Doc], gpus: int) -> Iterator[Finding]:
    for doc in docs:
        for status, bad, problem, action in _gpu_problems(doc.get("gpu", {})):
            if bad:
                text = f"{doc['node']}, GPU {doc['device']}: {problem}"
                yield Finding(status, "devices", text, action, (doc["node"],))
    for leader in leaders if gpus else ():
        node, count = leader["node"], count_devices(leader, docs)
        if count is not None and count < gpus:
            granted = f" (CUDA_VISIBLE_DEVICES={','.join(leader['granted'])})" if leader["granted"] else ""
            action = f"run nvidia-smi there; drain the node, or use --exclude {node}"
            yield Finding(BROKEN, "devices", f"{node} has {count} of {gpus} GPUs{granted}", action, (node,))
    if gpus and (without := [leader for leader in leaders if not leader["cuda"]]):
        where = join_names([leader["node"] for leader in without])
        text = f"torch {without[0]['versions']['torch']} on {where} has no CUDA, so the GPUs were not measured"
        yield Finding(UNKNOWN, "devices", text, "install a torch with CUDA, or use --gpus-per-node 0")


def count_devices(leader: Doc, docs: Sequence[Doc]) -> int | None:
    """Return the GPUs of a node: those that torch sees or, for a torch without CUDA, those that Slurm granted."""
    if not leader.get("cuda"):
        return None if leader.get("granted") is None else len(leader["granted"])
    own = {doc["gpu"].get("uuid") or doc["rank"] for doc in docs if doc["node"] == leader["node"] and "gpu" in doc}
    # a site may show each task its own GPU
    return max(int(leader["visible"]), len(own)) if leader["visible"] == 1 else int(leader["visible"])


def _gpu_problems(gpu: Doc) -> list[tuple[str, bool, str, str]]:
    used = gpu.get("total_gib", 0.0) - gpu.get("free_gib", 0.0)
    replace = "drain the node and have the GPU replaced"
    return [
        (BROKEN, "error" in gpu, f"cannot be opened: {gpu.get('error')}", "run nvidia-smi there, and drain the node"),
        (BROKEN, bool(gpu.get("ecc_errors")), f"{gpu.get('ecc_errors')} uncorrected ECC errors", replace),
        (BROKEN, bool(gpu.get("remap_failed")), "memory rows could not be remapped", replace),
        (
            DIFFERS,
            bool(gpu.get("slowed_down")),
            "the hardware slows it down (heat or power)",
            "check cooling and power",
        ),
        (DIFFERS, used > USED_GPU_GIB, f"{used:.1f} GiB are in use by another process", "end it; see nvidia-smi"),
    ]


def _gemm(docs: Sequence[Doc]) -> Iterator[Finding]:
    for kind, share in SHARE.items():
        alike = [doc for doc in docs if "gemm" in doc and (doc["device"] is not None) == (kind == "gpu")]
        rates = {(doc["node"], doc["rank"]): Tries(doc["gemm"]["best"], doc["gemm"]["worst"]) for doc in alike}
        for (node, rank), middle in find_slow(rates, share).items():
            text = f"rank {rank} on {node}: {rates[node, rank].best:.3g} TFLOP/s; median of the others {middle:.3g}"
            yield Finding(DIFFERS, "gemm", text, "look for other processes, heat and power limits there", (node,))
    for node in dict.fromkeys(doc["node"] for doc in docs if "gemm" in doc and not doc["gemm"]["correct"]):
        yield Finding(BROKEN, "gemm", f"{node}: wrong result of a matrix product", "drain the node", (node,))


def _memory(leaders: Sequence[Doc]) -> Iterator[Finding]:
    free = {leader["node"]: leader["memory_gib"] for leader in leaders if leader["memory_gib"] is not None}
    for node, gib in free.items():
        middle = median([other for name, other in free.items() if name != node] or [gib])
        if gib < max(LEAST_FREE_GIB, LEAST_MEMORY_SHARE * middle):
            text = f"{node} has {gib:.1f} GiB of free memory; median of the others {middle:.1f}"
            yield Finding(DIFFERS, "memory", text, "look for leftover processes on the node", (node,))


def _folders(leaders: Sequence[Doc]) -> Iterator[Finding]:
    for leader in leaders:
        for state in leader["folders"].values():
            status, problem = DIFFERS, ""
            if "error" in state:
                status, problem = BROKEN, f"cannot write to it: {state['error']}"
            elif state["free_gib"] < LEAST_FREE_GIB:
                problem = f"{state['free_gib']:.2f} GiB are free"
            elif state["write_s"] > SLOWEST_WRITE_S:
                problem = f"writing 1 MiB took {state['write_s']:.0f} s"
            if problem:
                text = f"{leader['node']}, {state['path']}: {problem}"
                yield Finding(status, "disk", text, "check mount, quota and free space", (leader["node"],))


def _clock(leaders: Sequence[Doc]) -> Iterator[Finding]:
    for leader in leaders:
        clock = leader.get("clock") or {"offset": 0.0, "error": 0.0}
        if abs(clock["offset"]) > LARGEST_OFFSET_S + clock["error"]:
            text = f"the clock of {leader['node']} is {clock['offset']:+.1f} s from that of {leaders[0]['node']}"
            yield Finding(DIFFERS, "clock", text, "start chronyd or ntpd on the node", (leader["node"],))


def _open_files(leaders: Sequence[Doc]) -> Iterator[Finding]:
    if few := tuple(one["node"] for one in leaders if 0 <= one["nofile"] < LEAST_FILES):
        text = f"{join_names(few)}: less than {LEAST_FILES} open files are allowed"
        yield Finding(DIFFERS, "open files", text, "add --setup 'ulimit -n 65536', or raise LimitNOFILE of slurmd", few)


def _names(leaders: Sequence[Doc]) -> Iterator[Finding]:
    """Compare what each node resolves with the addresses that the nodes have."""
    # on the local scheduler all nodes have one name
    own = {leader["name"]: (leader["node"], leader["addresses"]) for leader in leaders if "name" in leader}
    wrong: dict[tuple[str, str], list[str]] = {}  # (name, answer) -> nodes that got it
    right = 0
    for leader in leaders:
        for name, answer in leader.get("resolved", {}).items():
            _, addresses = own.get(name, ("", []))
            got = answer if isinstance(answer, list) else []  # else the error
            itself = name == leader["name"] and got and all(is_loopback(address) for address in got)
            if not addresses or itself or set(addresses) & set(got):
                right += bool(addresses)
            else:
                wrong.setdefault((name, " ".join(got)), []).append(leader["node"])
    if wrong and not right and not any(answer for _, answer in wrong):
        yield Finding(UNKNOWN, "names", "the names of nodes do not resolve; Slurm's addresses are used")
        return
    for (name, answer), nodes in wrong.items():
        node, addresses = own[name]
        to = f"resolves to {answer}" if answer else "does not resolve"
        text = f"{name} {to} on {join_names(nodes)}; its address is {' '.join(addresses[:2])}"
        yield Finding(DIFFERS, "names", text, f"correct {name} in /etc/hosts or DNS", (node,))
    short = {name.partition(".")[0] for name in own}
    for leader in leaders:
        for address, back in leader["reverse"].items():
            if (first := back.partition(".")[0]) in short and first != leader.get("name", "").partition(".")[0]:
                text = f"{address} of {leader['node']} resolves to the name of another node, {back}"
                yield Finding(DIFFERS, "names", text, "correct /etc/hosts or reverse DNS", (leader["node"],))


def _versions(leaders: Sequence[Doc]) -> Iterator[Finding]:
    for name in leaders[0]["versions"] if leaders else ():
        groups = group_by_value({leader["node"]: leader["versions"][name] for leader in leaders})
        if len(groups) > 1:
            odd = tuple(node for nodes in list(groups.values())[1:] for node in nodes)
            text = "; ".join(f"{value or 'none'} on {join_names(nodes)}" for value, nodes in groups.items())
            yield Finding(DIFFERS, f"{name} version", text, "use the same Python and driver on all nodes", odd)
