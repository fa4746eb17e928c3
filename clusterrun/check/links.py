"""Judge the all-reduces of `clusterrun check`: name the broken or slow node, or the link between two nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from clusterrun.check.judging import DIFFERS, Finding, Tries, is_slow
from clusterrun.check.results import Link

#: Below these shares of the median a link is slow: with gloo, the ranks of a node share its cores.
SHARE = {"gloo": 0.4, "nccl": 0.7}
LEAST_BANDWIDTH = 12.5e6  # bytes/s, 100 Mbit/s: for two nodes, which have no other link to compare with
CABLE = "check the node's cable, port and interface (ethtool, ibstat), or use --exclude {}"

Pair = tuple[str, ...]


def judge_links(links: Sequence[Link], backend: str) -> list[Finding]:
    """Return what is wrong with the links."""
    pairs = best_tries([link for link in links if link.kind == "pair"])
    broken = {link.nodes: link.error for link in links if link.kind == "pair" and link.error}
    cut = _cut_nodes(pairs, broken)
    found = [_broken_node(node, next(e for pair, e in broken.items() if node in pair)) for node in cut]
    for pair, error in broken.items():
        if not cut & set(pair):
            text = f"no connection between {pair[0]} and {pair[-1]}: {error}"
            found.append(Finding(DIFFERS, "links", text, "check routes and firewalls between them", pair))
    found += _wrong_sums(links)
    found += _slow_pairs({pair: tries for pair, tries in pairs.items() if pair not in broken}, SHARE.get(backend, 0.4))
    found += _slow_nodes(best_tries([link for link in links if link.kind == "node"]), SHARE.get(backend, 0.4))
    for kind, what in (("node", "within {}"), ("all", "over all ranks")):
        errors = {link.nodes: link.error for link in links if link.kind == kind and link.error}
        for nodes, error in errors.items():
            if not found or kind == "node":  # a broken link breaks the all-reduce over all ranks too
                text = f"the all-reduce {what.format(nodes[0])} failed: {error}"
                found.append(Finding(DIFFERS, "links", text, "see the log of the check", nodes))
    return found


def best_tries(links: Sequence[Link]) -> dict[Pair, Tries]:
    """Return the best and the worst bus bandwidth of each group of nodes, over all its measurements."""
    found: dict[Pair, Tries] = {}
    for link in links:
        if link.busbw is not None:
            before = found.get(link.nodes, link.busbw)
            found[link.nodes] = Tries(max(before.best, link.busbw.best), min(before.worst, link.busbw.worst))
    return found


def node_scores(pairs: Mapping[Pair, Tries]) -> dict[str, Tries]:
    """Return the figures of each node's best pair: a slow node is slow with every other."""
    scores: dict[str, Tries] = {}
    for pair, tries in pairs.items():
        for node in pair:
            if node not in scores or tries.best > scores[node].best:
                scores[node] = tries
    return scores


def _cut_nodes(pairs: Mapping[Pair, Tries], broken: Mapping[Pair, str]) -> set[str]:
    """Return the nodes without a working pair, if others have one."""
    working = {node for pair in pairs if pair not in broken for node in pair}
    return {node for pair in broken for node in pair if node not in working} if working else set()


def _broken_node(node: str, error: str) -> Finding:
    return Finding(DIFFERS, "links", f"{node} reaches no other node: {error}", CABLE.format(node), (node,))


def _wrong_sums(links: Sequence[Link]) -> list[Finding]:
    wrong = dict.fromkeys(link.nodes for link in links if not link.correct)
    small = min(map(len, wrong), default=0)  # a pair says more than the whole job
    return [
        Finding(DIFFERS, "links", f"wrong sum of an all-reduce on {' and '.join(nodes)}", "drain the nodes", nodes)
        for nodes in wrong
        if len(nodes) == small
    ]


def _slow_pairs(pairs: Mapping[Pair, Tries], share: float) -> list[Finding]:
    scores = node_scores(pairs)
    if len(pairs) == 1:
        ((pair, tries),) = pairs.items()
        if tries.best >= LEAST_BANDWIDTH:
            return []
        text = f"between {pair[0]} and {pair[-1]}: {rate(tries.best)}, less than Ethernet of 100 Mbit/s has"
        return [
            Finding(DIFFERS, "links", text, "check the interface that gloo or NCCL uses (NCCL_SOCKET_IFNAME)", pair)
        ]
    found, slow = [], set()
    for node, score in scores.items():
        others = [other for name, other in scores.items() if name != node]
        if is_slow(score, others, share):
            slow.add(node)
            text = (
                f"the link of {node}: {rate(score.best)}; median of the others {rate(median(o.best for o in others))}"
            )
            found.append(Finding(DIFFERS, "links", text, CABLE.format(node), (node,)))
    rest = {pair: tries for pair, tries in pairs.items() if not slow & set(pair)}
    for pair, tries in rest.items():
        others = [other for name, other in rest.items() if name != pair]
        if len(others) > 1 and is_slow(tries, others, share):
            text = f"between {pair[0]} and {pair[-1]}: {rate(tries.best)}; median of the others "
            text += rate(median(other.best for other in others))
            found.append(Finding(DIFFERS, "links", text, "check the switches and routes between them", pair))
    return found


def _slow_nodes(nodes: Mapping[Pair, Tries], share: float) -> list[Finding]:
    found = []
    for (node, *_), tries in nodes.items():
        others = [other for name, other in nodes.items() if name[0] != node]
        if is_slow(tries, others, share):
            text = f"within {node}: {rate(tries.best)}; median of the others {rate(median(o.best for o in others))}"
            found.append(Finding(DIFFERS, "links", text, "compare `nvidia-smi topo -m` of the nodes", (node,)))
    return found


def rate(bytes_per_s: float) -> str:
    """Return a bandwidth in decimal units, as makers of networks print it."""
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.3g} MB/s"
