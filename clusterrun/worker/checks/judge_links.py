"""Judge the all-reduces: name the broken or slow node, or the link between two nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...base.units import format_rate
from ...run_folder.check_findings import BROKEN, DIFFERS, Finding
from .measured import SEE_LOG, Link, Tries, find_slow, join_names

#: Below these shares of the median a link is slow: with gloo, the ranks of a node share its cores.
SHARE = {"gloo": 0.4, "nccl": 0.7}
LEAST_BANDWIDTH = 12.5e6  # bytes/s, 100 Mbit/s: for two nodes, which have no other link to compare with
CABLE = "check the node's cable, port and interface with ethtool or ibstat, or use --exclude {}"


def judge_links(links: Sequence[Link], backend: str) -> list[Finding]:
    """Return what is wrong with the links: the node if it is wrong with all others, else the pair."""
    pairs, cut = best_tries(links, "pair"), _errors(links, "pair")
    found = [
        *_cut_links(cut, pairs),
        *_wrong_sums(links),
        *_slow_links({pair: tries for pair, tries in pairs.items() if pair not in cut}, SHARE[backend]),
        *_slow_nodes(best_tries(links, "node"), backend),
        *_failed(_errors(links, "node"), "within {}"),
    ]
    return found or [*_failed(_errors(links, "all"), "over all ranks")]  # a broken link breaks that too


def _errors(links: Sequence[Link], kind: str) -> dict[tuple[str, ...], str]:
    return {link.nodes: link.error for link in links if link.kind == kind and link.error}


def _cut_links(cut: Mapping[tuple[str, ...], str], pairs: Iterable[tuple[str, ...]]) -> Iterator[Finding]:
    isolated = _isolated(cut, pairs)
    for node, error in isolated.items():
        text = f"{node} has no working connection to any other node: {error}"
        yield Finding(BROKEN, "links", text, CABLE.format(node), (node,))
    for pair, error in cut.items():
        if isolated.keys().isdisjoint(pair):
            text = f"no working connection between {' and '.join(pair)}: {error}"
            yield Finding(BROKEN, "links", text, "check the routes and firewalls between these nodes", pair)


def _isolated(cut: Mapping[tuple[str, ...], str], pairs: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Return the nodes without a working connection, each with its first error; none if nothing works at all."""
    working = {node for pair in pairs if pair not in cut for node in pair}
    isolated: dict[str, str] = {}
    for pair, error in cut.items() if working else ():
        for node in pair:
            if node not in working:
                isolated.setdefault(node, error)
    return isolated


def _wrong_sums(links: Sequence[Link]) -> Iterator[Finding]:
    wrong = dict.fromkeys(link.nodes for link in links if not link.correct)
    for nodes in wrong:
        if len(nodes) == min(map(len, wrong)):  # a pair says more than the whole job
            text = f"wrong all-reduce result on {join_names(nodes)}"
            action = f"use --exclude {','.join(nodes)}, and tell your administrators"
            yield Finding(BROKEN, "links", text, action, nodes)


def _slow_nodes(within: Mapping[tuple[str, ...], Tries], backend: str) -> Iterator[Finding]:
    for nodes, middle in find_slow(within, SHARE[backend]).items():
        text = f"bandwidth within {nodes[0]}: {_compare(within[nodes], middle, 'nodes')}"
        gpus = "compare the output of `nvidia-smi topo -m` on the nodes"
        action = gpus if backend == "nccl" else "look for other processes on the node"
        yield Finding(DIFFERS, "links", text, action, nodes)


def _failed(errors: Mapping[tuple[str, ...], str], what: str) -> Iterator[Finding]:
    for nodes, error in errors.items():
        yield Finding(BROKEN, "links", f"the all-reduce {what.format(nodes[0])} failed: {error}", SEE_LOG, nodes)


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
            text = f"bandwidth between {' and '.join(pair)}: {format_rate(tries.best)}, slower than 100 Mbit/s Ethernet"
            action = "set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the fastest network interface"
            yield Finding(DIFFERS, "links", text, action, pair)
        return
    scores = node_scores(pairs)
    slow = find_slow(scores, share)
    for node, middle in slow.items():
        text = f"network link of {node}: {_compare(scores[node], middle, 'nodes')}"
        yield Finding(DIFFERS, "links", text, CABLE.format(node), (node,))
    rest = {pair: tries for pair, tries in pairs.items() if not slow.keys() & set(pair)}
    for pair, middle in find_slow(rest, share).items() if len(rest) > 2 else ():
        text = f"bandwidth between {' and '.join(pair)}: {_compare(rest[pair], middle, 'pairs')}"
        yield Finding(DIFFERS, "links", text, "check the switches and routes between these nodes", pair)


def _compare(tries: Tries, middle: float, peers: str) -> str:
    return f"{format_rate(tries.best)}; median of the other {peers}: {format_rate(middle)}"
