"""scontrol and scancel, as pairs of pure functions: the arguments of a command, and what its answer says.

``scontrol show KIND`` prints blocks of ``Key=value``; ``scontrol show config`` prints a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from clusterrun.job import JobId
from clusterrun.scheduler import ClusterFacts

HELD = ("JobHeldUser", "JobHeldAdmin")
"""squeue's reasons of a job that is held; an administrator's hold only an administrator releases."""


def hold_argv(job: JobId, *, release: bool, cluster: str = "") -> Sequence[str]:
    """``scontrol hold|release ID``; an array by its base, or one task of it."""
    where = [f"--clusters={cluster}"] if cluster else []
    return ["scontrol", *where, "release" if release else "hold", str(job)]


def parse_hold(stderr: str) -> str:
    """scontrol's own words for why not, in one line; an empty text where it said nothing.

    It says them twice: with the job (``… for job 5``), and for its call of the controller (``slurm_suspend error: …``).
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r" for job \S+$", line)]
    return (named or lines or [""])[0]


# What people or sites wrote, which may hold blanks and "=": the rest of its line, whatever stands there.
_FREE = ("JobName", "Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut",
         "OS", "Extra", "SubmitLine", "MailUser")  # fmt: skip
_KEY = re.compile(r"(?:^|(?<= ))([A-Z][A-Za-z0-9_/:]*)=")
_FREE_AT = re.compile(rf"(?:^|(?<= ))({'|'.join(_FREE)})=")


def show_argv(kind: str, names: Sequence[str] = (), cluster: str = "") -> list[str]:
    """``scontrol show KIND [NAMES]``; without names, all of them."""
    where = [f"--clusters={cluster}"] if cluster else []
    return ["scontrol", *where, "show", kind, *([",".join(names)] if names else [])]


def parse_show(text: str) -> list[dict[str, str]]:
    """The blocks of an answer, each its keys and values; ``(null)`` and ``N/A`` become an empty text.

    Of a key that comes twice the last counts: a job's name comes first, and may hold anything.
    """
    blocks: list[dict[str, str]] = []
    # 24.11 puts an empty line before a node's reason: a block begins where the line after one is not indented
    for block in re.split(r"\n[ \t]*\n(?=\S)", text):
        found: dict[str, str] = {}
        for line in block.splitlines():
            found.update(_words(line.strip()))
        if found:
            blocks.append(found)
    return blocks


def _words(line: str) -> dict[str, str]:
    free = _FREE_AT.search(line)
    # a node's reason is free too, but a job's stands among its states
    if free is None and line.startswith("Reason="):
        return {"Reason": _value(line[len("Reason=") :])}
    head = line if free is None else line[: free.start()]
    keys = list(_KEY.finditer(head))
    ends = [*(key.start() for key in keys[1:]), len(head)]
    found = {key[1]: _value(head[key.end() : end].strip()) for key, end in zip(keys, ends, strict=False)}
    if free is not None:
        found[free[1]] = _value(line[free.end() :])
    return found


def _value(text: str) -> str:
    return "" if text in ("(null)", "N/A", "(none)") else text


_NAME = r"[^&|*,()\[\]\s]+"
_SIMPLE = re.compile(rf"{_NAME}(?:&{_NAME})*|{_NAME}(?:\|{_NAME})*")


def parse_features(text: str) -> dict[str, frozenset[str]]:
    """Node -> its active features, of what ``scontrol show node`` prints."""
    lines = (
        line for line in text.split("\n") if line.lstrip().startswith(("NodeName=", "ActiveF")) or not line.strip()
    )
    found = {}
    for block in parse_show("\n".join(lines)):
        names = block.get("ActiveFeatures", "")
        found[block.get("NodeName", "")] = frozenset() if names == "(null)" else frozenset(names.split(",")) - {""}
    return found


def having(wanted: str, features: Mapping[str, frozenset[str]], nodes: Iterable[str]) -> list[str] | None:
    """Those of the nodes that have what is wanted: ``a``, ``a&b`` or ``a|b``; None for counts and brackets.

    A node of which nothing was told is taken to have it.
    """
    if not _SIMPLE.fullmatch(wanted):
        return None
    names = set(re.split(r"[&|]", wanted))
    enough = names.issubset if "|" not in wanted else lambda own: bool(names & set(own))
    return [node for node in nodes if node not in features or enough(features[node])]


def scancel_argv(ids: Sequence[JobId], cluster: str = "") -> list[str]:
    """One scancel for all of those ids."""
    where = [f"--clusters={cluster}"] if cluster else []
    return ["scancel", *where, "--", *(str(i) for i in ids)]


def parse_scancel(stderr: str) -> dict[str, str]:
    """Slurm's word on each id it would not cancel; it says nothing at all of an id it does not know."""
    pattern = re.compile(r"job id ([0-9_+]+):? (.*)")
    return {m[1]: m[2] for line in stderr.splitlines() if (m := pattern.search(line))}


def parse_cluster_facts(answer: str) -> ClusterFacts:
    """The facts in the answer of ``scontrol show config``."""
    values = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", answer, re.MULTILINE))
    kind = values.get("AccountingStorageType", "")
    return ClusterFacts(
        cluster=values.get("ClusterName", ""),
        accounting="slurmdbd" in kind or "mysql" in kind,
        gpus="gpu" in values.get("GresTypes", "").split(","),
    )


def config_argv() -> list[str]:
    """Ask for the controller's configuration."""
    return ["scontrol", "show", "config"]


def parse_config(text: str) -> dict[str, str]:
    """The configuration's keys and values; ``(null)`` is an empty text."""
    pairs = (re.fullmatch(r"([A-Za-z]\w*(?:\[\d+\])?)\s+= ?(.*)", line.rstrip()) for line in text.split("\n"))
    return {m[1]: "" if m[2] == "(null)" else m[2] for m in pairs if m}
