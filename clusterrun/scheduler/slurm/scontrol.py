"""scontrol, scancel, and a step of srun. Arguments of the commands, and parsers of their output.

``scontrol show KIND`` prints blocks of ``Key=value``; ``scontrol show config`` prints a table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from clusterrun.base.errors import SchedulerError
from clusterrun.base.job import JobId
from clusterrun.scheduler import ClusterFacts
from clusterrun.scheduler.slurm.values import clusters, plain, short

_HIDDEN = "Access/permission denied"
"""Slurm's words if PrivateData hides a list from the user (22.05: scontrol show node and partition, and sinfo)."""


def no_list(what: str, detail: str, message: str) -> SchedulerError:
    """Return the error for a list (``nodes``, ``partitions``) that Slurm hides from users; else with this message."""
    if _HIDDEN not in detail:
        return SchedulerError(message, detail=detail, hint="run `scontrol ping`, then try again")
    return SchedulerError(
        f"this cluster hides its {what} from users (PrivateData in slurm.conf)", detail=detail,
        hint="name a partition yourself (--partition NAME); `clusterrun submit --dry-run` tries whether Slurm takes it",
    )  # fmt: skip


def hold_argv(job: JobId, *, release: bool, cluster: str = "") -> Sequence[str]:
    """Return ``scontrol hold|release ID`` for a job, an array or one task of it."""
    return ["scontrol", *clusters(cluster), "release" if release else "hold", str(job)]


def parse_hold(stderr: str) -> str:
    """Return scontrol's error in one line, empty if there is none.

    scontrol prints it twice: with the job (``… for job 5``) and for the controller call (``slurm_suspend error: …``).
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r" for job \S+$", line)]
    return short((named or lines or [""])[0])


# Free text of users or sites, which may contain blanks and "=": the value is the rest of the line.
_FREE = ("JobName", "Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut",
         "OS", "Extra", "SubmitLine", "MailUser")  # fmt: skip
_KEY = r"(?:^|(?<= ))([A-Z][A-Za-z0-9_/:]*)="
# Between a job's name and its comments and paths, no field is free text; this is the first line there.
_FIELDS_BEGIN = re.compile(r"^   (?=UserId=\S.*\(\d+\) GroupId=\S.*\(\d+\))", re.MULTILINE)
_TEXTS_BEGIN = re.compile(rf"^   (?:{'|'.join(_FREE)})=", re.MULTILINE)
_LAST_TEXT = re.compile(r"^   StdOut=", re.MULTILINE)
_LINE = re.compile(r"^   ([A-Z][A-Za-z0-9_/:]*)=", re.MULTILINE)
_GIVEN = re.compile(r"^     Nodes=(\S+) CPU_IDs=(\S*) Mem=\d+ GRES=(\S*)$", re.MULTILINE)
_FREE_AT = rf"(?:^|(?<= ))({'|'.join(_FREE)})="


def show_argv(kind: str, names: Sequence[str] = (), cluster: str = "") -> list[str]:
    """Return ``scontrol show KIND [NAMES]``; without names, for all."""
    return ["scontrol", *clusters(cluster), "show", kind, *([",".join(names)] if names else [])]


def parse_jobs(text: str) -> list[dict[str, str]]:
    """Parse the blocks of ``scontrol show job`` as `parse_show` does; a free text changes no other field.

    The job's name comes before its fields, its comments and paths after them, and each of them may have several lines.
    What a text makes ambiguous is left out: the field that it imitates, like a second StdOut, or a whole job.
    """
    blocks = [_parse_job(block) for block in _job_blocks(text)]
    ids = Counter(block.get("JobId") for block in blocks)
    return [block for block in blocks if block and ids[block["JobId"]] == 1]


def _job_blocks(text: str) -> list[str]:
    """Return the blocks of the jobs: an empty line may also be in a free text, so a block ends after its last text."""
    blocks = [""]
    for part in re.split(r"(?<=\n\n)(?=JobId=\d)", text):
        if _is_whole(blocks[-1]):
            blocks.append(part)
        else:
            blocks[-1] += part
    if len(blocks) > 1 and not _FIELDS_BEGIN.search(blocks[-1]):  # the rest of the last job's texts
        rest = blocks.pop()
        blocks[-1] += rest
    return blocks


def _is_whole(block: str) -> bool:
    fields = _FIELDS_BEGIN.search(block)
    is_interactive = " BatchFlag=0 " in block
    return fields is not None and (is_interactive or _LAST_TEXT.search(block, fields.end()) is not None)


def _parse_job(block: str) -> dict[str, str]:
    """Parse a job's block; empty if it is not clear where its fields begin."""
    begins = [match.start() for match in _FIELDS_BEGIN.finditer(block)]
    if len(begins) != 1:
        return {}
    head, _, name = block[: begins[0]].removesuffix("\n").partition(" JobName=")
    rest = block[begins[0] :]
    texts = _TEXTS_BEGIN.search(rest)
    end = texts.start() if texts else len(rest)
    found = _parse_line(head) | {"JobName": plain(name)}
    for line in rest[:end].splitlines():
        found |= _parse_line(line.strip())
    return _parse_texts(rest[end:]) | found if "JobId" in found else {}


def _parse_texts(text: str) -> dict[str, str]:
    """Parse a job's last lines: its free texts, of one line or several, then a few fields."""
    fields_begin = max((match.start() for match in _LAST_TEXT.finditer(text)), default=0)
    lines = [line for line in _LINE.finditer(text) if line[1] in _FREE or line.start() > fields_begin]
    ends = [*(line.start() for line in lines[1:]), len(text)]
    found: dict[str, str] = {}
    for line, end in zip(lines, ends, strict=False):
        found |= _parse_line(text[line.start() : end].strip())
    counts = Counter(line[1] for line in lines)
    return {key: value for key, value in found.items() if counts[key] == 1}


def parse_given(block: str) -> list[tuple[str, str, str]]:
    """Return what one job was given, from ``scontrol show job --details``: nodes, ids of CPUs on each, gres on each.

    Nodes that were given the same are one host list. The job's name and texts, which may imitate such lines, are left
    out.
    """
    begin = _FIELDS_BEGIN.search(block)
    if begin is None:
        return []
    texts = _TEXTS_BEGIN.search(block, begin.end())
    return _GIVEN.findall(block[begin.end() : texts.start() if texts else len(block)])


def parse_show(text: str) -> list[dict[str, str]]:
    """Parse the blocks of an answer into keys and values; ``(null)`` and ``N/A`` become an empty text.

    If a key appears twice the last one counts: a job's name comes first, and may contain anything.
    """
    blocks: list[dict[str, str]] = []
    # 24.11 prints an empty line before a node's reason: a block begins if the line after it is not indented
    for block in re.split(r"\n[ \t]*\n(?=\S)", text):
        found: dict[str, str] = {}
        for line in block.splitlines():
            found.update(_parse_line(line.strip()))
        if found:
            blocks.append(found)
    return blocks


def _parse_line(line: str) -> dict[str, str]:
    free = re.search(_FREE_AT, line)
    # a node's reason is free text too, but a job's is among its states
    if free is None and line.startswith("Reason="):
        return {"Reason": plain(line[len("Reason=") :])}
    head = line if free is None else line[: free.start()]
    keys = list(re.finditer(_KEY, head))
    ends = [*(key.start() for key in keys[1:]), len(head)]
    found = {key[1]: plain(head[key.end() : end].strip()) for key, end in zip(keys, ends, strict=False)}
    if free is not None:
        found[free[1]] = plain(line[free.end() :])
    return found


_NAME = r"[^&|*,()\[\]\s]+"


def parse_features(text: str) -> dict[str, frozenset[str]]:
    """Parse the active features of each node in ``scontrol show node``."""
    lines = (
        line for line in text.split("\n") if line.lstrip().startswith(("NodeName=", "ActiveF")) or not line.strip()
    )
    found = {}
    for block in parse_show("\n".join(lines)):
        found[block.get("NodeName", "")] = frozenset(block.get("ActiveFeatures", "").split(",")) - {""}
    return found


def having(wanted: str, features: Mapping[str, frozenset[str]], nodes: Iterable[str]) -> list[str] | None:
    """Return the nodes that have the wanted features: ``a``, ``a&b`` or ``a|b``; None for counts and brackets.

    A node whose features are unknown counts as having them.
    """
    if not re.fullmatch(rf"{_NAME}(?:&{_NAME})*|{_NAME}(?:\|{_NAME})*", wanted):
        return None
    names = set(re.split(r"[&|]", wanted))
    enough = names.issubset if "|" not in wanted else lambda own: bool(names & set(own))
    return [node for node in nodes if node not in features or enough(features[node])]


def scancel_argv(ids: Sequence[JobId], cluster: str = "") -> list[str]:
    """Return one scancel for all of those ids."""
    return ["scancel", *clusters(cluster), "--", *(str(i) for i in ids)]


def parse_scancel(stderr: str) -> dict[str, str]:
    """Parse the error for each id that was not cancelled; scancel prints nothing about an unknown id."""
    pattern = re.compile(r"job id ([0-9_+]+):? (.*)")
    return {m[1]: short(m[2]) for line in stderr.splitlines() if (m := pattern.search(line))}


def parse_cluster_facts(answer: str) -> ClusterFacts:
    """Parse the facts in ``scontrol show config``."""
    values = parse_config(answer)
    kind = values.get("AccountingStorageType", "")
    return ClusterFacts(
        cluster=values.get("ClusterName", ""),
        accounting="slurmdbd" in kind or "mysql" in kind,
        gpus="gpu" in values.get("GresTypes", "").split(","),
    )


def parse_config(text: str) -> dict[str, str]:
    """Parse the configuration into keys and values; ``(null)`` becomes an empty text."""
    pairs = (re.fullmatch(r"([A-Za-z]\w*(?:\[\d+\])?)\s+= ?(.*)", line.rstrip()) for line in text.split("\n"))
    return {m[1]: plain(m[2]) for m in pairs if m}


def inside_argv(job: JobId, node: str, command: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the words that run a command once, on one node of a running job, beside the job's own steps.

    --overlap shares the job's CPUs, memory and GPUs with the other steps (man srun 22.05): without it, the step waits
    until they end. ``terminal`` connects the command to a terminal.
    """
    return [
        "srun",
        f"--jobid={job if job.part is None else job.raw}",
        *([f"--het-group={job.part}"] if job.part is not None else []),  # srun takes no 12+1 as a job
        *clusters(job.cluster),
        "--overlap",
        "--mem=0",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--cpu-bind=none",
        *(["--pty"] if terminal else []),
        "--",
        *command,
    ]
