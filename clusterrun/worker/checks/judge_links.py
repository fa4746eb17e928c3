"""Judge the all-reduces: name the broken or slow node, or the link between two nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...run_folder.check_findings import BROKEN, DIFFERS, Finding
from .measured import SEE_LOG, Link, Tries, find_slow, join_names

#: Below these shares of the median a link is slow: with gloo, the ranks of a node share its cores.
SHARE = {"gloo": 0.4, "nccl": 0.7}
LEAST_BANDWIDTH = 12.5e6  # bytes/s, 100 Mbit/s: for two nodes, which have no other link to compare with
CABLE = "check the node's cable, port and interface with ethtool or ibstat, or use --exclude {}"


def judge_links(links: Sequence[Link], backend: str) -> list[Finding]:
    """Return what is wrong with the links: the node if it is wrong with all others, else the pair."""
    share, pairs = SHARE[backend], best_tries(links, "pair")
    errors = {kind: {link.nodes: link.error for link in links if link.kind == kind and link.error} for kind in _FAILED}
    cut, working = errors["pair"], {node for pair in pairs if pair not in errors["pair"] for node in pair}
    found = []
    for node in dict.fromkeys(node for pair in cut for node in pair if working and node not in working):
        error = next(error for pair, error in cut.items() if node in pair)
        text = f"{node} has no working connection to any other node: {error}"
        found.append(Finding(BROKEN, "links", text, CABLE.format(node), (node,)))
    for pair, error in cut.items():
        if not working or set(pair) <= working:
            text = f"no working connection between {' and '.join(pair)}: {error}"
            found.append(Finding(BROKEN, "links", text, "check the routes and firewalls between these nodes", pair))
    wrong = dict.fromkeys(link.nodes for link in links if not link.correct)
    for nodes in wrong:
        if len(nodes) == min(map(len, wrong)):  # a pair says more than the whole job
            text = f"wrong all-reduce result on {join_names(nodes)}"
            action = f"use --exclude {','.join(nodes)}, and tell your administrators"
            found.append(Finding(BROKEN, "links", text, action, nodes))
    found += _slow_links({pair: tries for pair, tries in pairs.items() if pair not in cut}, share)
    within = best_tries(links, "node")
    for nodes, middle in find_slow(within, share).items():
        text = f"bandwidth within {nodes[0]}: {rate(within[nodes].best)}; median of the other nodes: {rate(middle)}"
        gpus = "compare the output of `nvidia-smi topo -m` on the nodes"
        action = gpus if backend == "nccl" else "look for other processes on the node"
        found.append(Finding(DIFFERS, "links", text, action, nodes))
    for kind, what in _FAILED.items():
        for nodes, error in errors[kind].items():
            if what and (kind == "node" or not found):  # a broken link breaks the all-reduce over all ranks too
                text = f"the all-reduce {what.format(nodes[0])} failed: {error}"
                found.append(Finding(BROKEN, "links", text, SEE_LOG, nodes))
    return found


_FAILED = {"pair": "", "node": "within {}", "all": "over all ranks"}


def best_tries(links: Sequence[Link], kind: str) -> dict[tuple[str, ...], Tries]:
    """Return the best and the worst bus bandwidth of each group of nodes of a kind, over all its measurements."""
    found: dict[tuple[str, ...], Tries] = {}
    for link in links:
        if link.kind == kind and link.busbw is not None:
            before = found.get(link.nodes, link.busbw)
            found[link.nodes] = Tries(max(before.best, link.busbw.best), min(before.worst, link.busbw.worst))
    return found


def node_scores(pairs: Mapping[tuple[str, ...], Tries]) -> dict[str, Tries]:
    """Return the figures of each node's best pair: a slow node is slow with every other."""
    scores: dict[str, Tries] = {}
    for pair, tries in pairs.items():
        scores |= {node: tries for node in pair if node not in scores or tries.best > scores[node].best}
    return scores


def _slow_links(pairs: Mapping[tuple[str, ...], Tries], share: float) -> Iterator[Finding]:
    if len(pairs) == 1:
        ((pair, tries),) = pairs.items()
        if tries.best < LEAST_BANDWIDTH:
            text = f"bandwidth between {' and '.join(pair)}: {rate(tries.best)}, slower than 100 Mbit/s Ethernet"
            action = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the fastest network interface"
            yield Finding(DIFFERS, "links", text, action, pair)
        return
    scores = node_scores(pairs)
    slow = find_slow(scores, share)
    for node, middle in slow.items():
        text = f"network link of {node}: {rate(scores[node].best)}; median of the other nodes: {rate(middle)}"
        yield Finding(DIFFERS, "links", text, CABLE.format(node), (node,))
    rest = {pair: tries for pair, tries in pairs.items() if not slow.keys() & set(pair)}
    for pair, middle in find_slow(rest, share).items() if len(rest) > 2 else ():
        names = " and ".join(pair)
        text = f"bandwidth between {names}: {rate(rest[pair].best)}; median of the other pairs: {rate(middle)}"
        yield Finding(DIFFERS, "links", text, "check the switches and routes between these nodes", pair)


def rate(bytes_per_s: float) -> str:
    """Return a bandwidth in decimal units, as makers of networks print it."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"
