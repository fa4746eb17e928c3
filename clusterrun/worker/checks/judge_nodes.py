"""Judge the nodes: each rule compares one thing with what is needed, or with the other nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ...base.decode import as_texts
from ...run_folder.check_findings import BROKEN, DIFFERS, UNKNOWN, Finding
from ..node.interfaces import is_loopback
from .measured import SEE_LOG, Doc, Tries, find_slow, group_by_value, join_names

STAGES = ("node", "join", "names", "clock", "gemm", "links")
LEAST_FREE_GIB = 1.0
LEAST_MEMORY_SHARE = 0.25  # of the median of all nodes
LEAST_FILES = 1024
SLOWEST_WRITE_S = 10.0  # of 1 MiB, synced
LARGEST_OFFSET_S = 2.0  # the clocks are read at about the same time
USED_GPU_GIB = 2.0  # a rank of the check itself uses less
#: Below these shares of the median a rate is slow: cores of a CPU are often shared, GPUs are not.
SHARE = {"cpu": 0.4, "gpu": 0.8}


def judge_nodes(docs: Sequence[Doc], nodes: Sequence[str], gpus: int) -> list[Finding]:
    """Return what is wrong or unknown. `nodes` has the node of each rank of the run, `gpus` are those of a node."""
    leaders = [doc for doc in docs if doc["local_rank"] == 0 and "folders" in doc]
    return [
        *_absent(docs, nodes),
        *_failed(docs),
        *(one for doc in docs for one in _gpu(doc)),
        *_devices(docs, leaders, gpus),
        *(
            Finding(**{**one, "where": (leader["node"],)})
            for leader in leaders
            for one in leader.get("left_behind", ())
        ),
        *_slow_gemm(docs),
        *_wrong_gemm(docs),
        *(one for leader in leaders for one in (*_node(leader, leaders), *_folders(leader))),
        *_names(leaders),
        *_versions(leaders),
    ]


def _absent(docs: Sequence[Doc], nodes: Sequence[str]) -> Iterator[Finding]:
    came = {doc["rank"] for doc in docs}
    absent = group_by_value({rank: node for rank, node in enumerate(nodes) if rank not in came})
    for node, ranks in absent.items():
        text = f"no result from rank{'s' if len(ranks) > 1 else ''} {join_names(ranks)} on {node}"
        action = "see the job's log: a rank may not have started, may be hung, or may be unable to reach the first node"
        yield Finding(BROKEN, "ranks", text, action, (node,))


def _failed(docs: Sequence[Doc]) -> Iterator[Finding]:
    """Yield findings for ranks that failed in a stage, or that stopped in one."""
    for stage in STAGES:
        errors = {doc["node"]: doc["errors"][stage] for doc in docs if stage in doc["errors"]}
        for error, where in group_by_value(errors).items():
            text = f"the {stage} check failed on {join_names(where)}: {error}"
            yield Finding(BROKEN, stage, text, SEE_LOG, tuple(where))
    stuck = {doc["node"]: doc["stage"] for doc in docs if doc["stage"] != "done" and not doc["errors"]}
    for stage, where in group_by_value(stuck).items():
        yield Finding(BROKEN, "ranks", f"{join_names(where)} stopped during the {stage} check", SEE_LOG, tuple(where))


def _gpu(doc: Doc) -> Iterator[Finding]:
    gpu, replace = doc.get("gpu", {}), f"use --exclude {doc['node']}, and ask your administrators to replace the GPU"
    used, errors = gpu.get("total_gib", 0.0) - gpu.get("free_gib", 0.0), gpu.get("ecc_errors")
    for bad, status, problem, action in (
        (
            "error" in gpu,
            BROKEN,
            f"cannot be opened ({gpu.get('error')})",
            f"run nvidia-smi on the node, and use --exclude {doc['node']}",
        ),
        (errors, BROKEN, f"{errors} uncorrected ECC error{'s' * (errors != 1)}", replace),
        (gpu.get("remap_failed"), BROKEN, "memory rows could not be remapped", replace),
        (
            gpu.get("slowed_down"),
            DIFFERS,
            "the hardware is throttling this GPU (heat or power)",
            "check the node's cooling and power",
        ),
        (
            used > USED_GPU_GIB,
            DIFFERS,
            f"another process is using {used:.1f} GiB of GPU memory",
            "find the process with nvidia-smi and end it",
        ),
    ):
        if bad:
            yield Finding(status, "devices", f"{doc['node']}, GPU {doc['device']}: {problem}", action, (doc["node"],))


def _devices(docs: Sequence[Doc], leaders: Sequence[Doc], gpus: int) -> Iterator[Finding]:
    for leader in leaders if gpus else ():
        node, count = leader["node"], count_devices(leader, docs)
        if count is not None and count < gpus:
            granted = f" (CUDA_VISIBLE_DEVICES={','.join(leader['granted'])})" if leader["granted"] else ""
            action = f"run nvidia-smi on the node, and use --exclude {node}"
            yield Finding(BROKEN, "devices", f"{node} has {count} of {gpus} GPUs{granted}", action, (node,))
    if gpus and (without := [leader["node"] for leader in leaders if not leader["cuda"]]):
        text = f"torch on {join_names(without)} has no CUDA support, so the GPUs were not measured"
        yield Finding(UNKNOWN, "devices", text, "install a CUDA build of torch, or use --gpus-per-node 0")


def count_devices(leader: Doc, docs: Sequence[Doc]) -> int | None:
    """Return the GPUs of a node: those that torch sees or, for a torch without CUDA, those that Slurm granted."""
    if not leader.get("cuda"):
        return None if leader.get("granted") is None else len(leader["granted"])
    own = {doc["gpu"].get("uuid") or doc["rank"] for doc in docs if doc["node"] == leader["node"] and "gpu" in doc}
    return max(1, len(own)) if leader["visible"] == 1 else int(leader["visible"])  # a site may show each task its own


def _slow_gemm(docs: Sequence[Doc]) -> Iterator[Finding]:
    for kind, share in SHARE.items():
        alike = [doc for doc in docs if "gemm" in doc and (doc["device"] is not None) == (kind == "gpu")]
        rates = {(doc["node"], doc["rank"]): Tries(doc["gemm"]["best"], doc["gemm"]["worst"]) for doc in alike}
        for (node, rank), middle in find_slow(rates, share).items():
            own = rates[node, rank].best
            text = f"rank {rank} on {node}: {own:.3g} TFLOP/s; median of the other ranks: {middle:.3g}"
            yield Finding(
                DIFFERS, "gemm", text, "check the node for other processes, overheating and power limits", (node,)
            )


def _wrong_gemm(docs: Sequence[Doc]) -> Iterator[Finding]:
    for node in dict.fromkeys(doc["node"] for doc in docs if "gemm" in doc and not doc["gemm"]["correct"]):
        yield Finding(
            BROKEN, "gemm", f"a matrix multiplication on {node} gave a wrong result", f"use --exclude {node}", (node,)
        )


def _node(leader: Doc, leaders: Sequence[Doc]) -> Iterator[Finding]:
    node, memory, first = leader["node"], leader["memory_gib"], leaders[0]
    middle = median(other["memory_gib"] for other in leaders)
    if memory < max(LEAST_FREE_GIB, LEAST_MEMORY_SHARE * middle):
        text = f"{node} has {memory:.1f} GiB of free memory; the median of all nodes is {middle:.1f} GiB"
        yield Finding(DIFFERS, "memory", text, "look for leftover processes on the node", (node,))
    offset = leader["clock"] - first["clock"] if leader.get("clock") and first.get("clock") else 0.0
    if abs(offset) > LARGEST_OFFSET_S:
        ahead = "ahead of" if offset > 0 else "behind"
        text = f"the clock of {node} is {abs(offset):.1f} s {ahead} the clock of {first['node']}"
        yield Finding(DIFFERS, "clock", text, "start chronyd or ntpd on the node", (node,))
    if 0 <= leader["nofile"] < LEAST_FILES:
        text = f"{node} limits a process to fewer than {LEAST_FILES} open files"
        action = "add --setup 'ulimit -n 65536', or raise slurmd's LimitNOFILE"
        yield Finding(DIFFERS, "open files", text, action, (node,))


def _folders(leader: Doc) -> Iterator[Finding]:
    for state in leader["folders"].values():
        status, problem = DIFFERS, ""
        if "error" in state:
            status, problem = BROKEN, f"the folder is not writable ({state['error']})"
        elif state["write_s"] > SLOWEST_WRITE_S:
            problem = f"writing 1 MiB took {state['write_s']:.0f} s"
        elif state["free_gib"] < LEAST_FREE_GIB:
            problem = f"only {state['free_gib']:.2f} GiB free"
        if problem:
            text = f"{leader['node']}, {state['path']}: {problem}"
            yield Finding(status, "disk", text, "check the mount, the quota and the free space", (leader["node"],))


def _names(leaders: Sequence[Doc]) -> Iterator[Finding]:
    """Compare what each node resolves with the addresses that the nodes have."""
    # on the local scheduler all nodes have one name
    named = {leader["name"]: leader for leader in leaders if leader.get("name") and leader["addresses"]}
    wrong: dict[tuple[str, str], list[str]] = {}  # (name, answer) -> nodes that got it
    any_resolves = False
    for leader in leaders:
        for name in sorted(leader.get("resolved", {}).keys() & named.keys()):
            got = as_texts(leader["resolved"][name])  # none of an error
            any_resolves |= bool(got)
            if not _is_right(got, named[name]["addresses"], name == leader["name"]):
                wrong.setdefault((name, ", ".join(got)), []).append(leader["node"])
    if wrong and not any_resolves:
        yield Finding(UNKNOWN, "names", "node names do not resolve, so Slurm's addresses are used")
        return
    for (name, answer), nodes in wrong.items():
        yield _wrong_name(named[name], answer, nodes)


def _is_right(got: Sequence[str], addresses: Sequence[str], is_itself: bool) -> bool:
    """Return whether a name leads to its node; the node itself may resolve its own name to loopback."""
    return bool({*addresses} & {*got}) or (is_itself and bool(got) and all(map(is_loopback, got)))


def _wrong_name(leader: Doc, answer: str, nodes: Sequence[str]) -> Finding:
    name, addresses = leader["name"], leader["addresses"]
    to = f"resolves to {answer}" if answer else "does not resolve"
    own_addresses = f"address{'es' * (len(addresses) > 1)} {' and '.join(addresses[:2])}"
    text = f"{name} {to} on {join_names(nodes)}; {name} has the {own_addresses}"
    return Finding(DIFFERS, "names", text, f"correct the entry for {name} in /etc/hosts or DNS", (leader["node"],))


def _versions(leaders: Sequence[Doc]) -> Iterator[Finding]:
    for name in leaders[0]["versions"] if leaders else ():
        groups = group_by_value({leader["node"]: leader["versions"][name] for leader in leaders})
        if len(groups) > 1:
            odd = tuple(node for nodes in list(groups.values())[1:] for node in nodes)
            text = "; ".join(f"{value or 'none'} on {join_names(nodes)}" for value, nodes in groups.items())
            yield Finding(
                DIFFERS, f"{name} version", text, "use the same Python environment and GPU driver on all nodes", odd
            )
