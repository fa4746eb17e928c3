"""Read what NCCL says of a job's ranks: the answer of its RAS service, which each process has since NCCL 2.24.

One process collects it from all of the job. Since NCCL 2.28.7 it is JSON with the counts of all ranks, before that a
text that names only ranks that stand out (src/ras/client_support.cc of NCCL). It may be another job's on the same node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from .decode import Damaged, as_objects, as_text, parse_fields, parse_object
from .units import first_few

OLDEST = (2, 24)
SHOWN = 3  # findings, and ranks of each
GONE, DEAD, ABSENT = "not responding", "dead (not responding for a minute)", "no longer a member"
_WORD = re.compile(r"[\w.+-]{1,40}")
_NO_COMMA = re.compile(r'("nvml_dev": -?\d{1,9})(?=\n *"status")')  # of a missing rank, in 2.28.7 to 2.28.9
_VERSION = re.compile(r"NCCL version ([\w.+-]{1,40}) compiled with CUDA ")
_END = "\nWarnings\n========\n"  # the last section, also if it is empty
_GROUP = re.compile(r"(?m)^ *(\d{1,9}) +(\d{1,9}) +\d{1,9} +[\d-]{1,19} +(\d{1,9}) +\d{1,9} +[A-Z]+ +[A-Z,]+$")
_TOTAL = re.compile(r" (\d{1,9}) +\d{1,9}\n\nCommunicators\.\.\.")  # processes, GPUs
_PART = re.compile(r"\n\n+|\n(?=  Communicator ranks have different )")
_HEAD = re.compile(r"(?m)#(\d{1,9})-\d{1,9} \(([0-9a-f]{16})\) (?:INCOMPLETE|MISMATCH)$")
_LINE = re.compile(r"  (?:Rank (\d{1,9})|\d{1,9} ranks)( (?:has|have) [\w ]{1,60})?(?: -- (.*))?")
_KIND = re.compile(r"have different (\w{1,40}) operation")
_COUNTED = re.compile(r" have (?:not launched any operations|launched up to operation (\d{1,18}))")
_PROCESS = re.compile(r"[Pp]rocess (?P<pid>\d{1,9}) on node (?P<host>[0-9a-fA-F.:]{2,45})")


class Process(NamedTuple):
    """A process of this job: its rank, node and process ID."""

    rank: int
    node: str
    pid: int


class Member(NamedTuple):
    """A rank of a communicator: its number there, and the address and ID of its process, if known."""

    rank: int | None
    host: str = ""
    pid: int | None = None


class Finding(NamedTuple):
    """What a rank of a communicator, of ``size`` ranks, is: behind or gone, in words."""

    communicator: str
    size: int
    what: str
    member: Member


class Answer(NamedTuple):
    """What NCCL says: its version, how many communicators there are, what stands out, and whom it names.

    ``members`` are with the size of their communicator, 0 if it is not known. The job has ``total`` processes; 0 if
    that is not said.
    """

    version: str
    communicators: int
    findings: list[Finding]
    members: set[tuple[int, Member]]
    total: int = 0


def has_service(start: Mapping[str, Any] | None) -> bool:
    """Return whether ranks may have the service, by start.json: they use NCCL, of a new or an unknown version."""
    if start is None or start.get("backend") != "nccl":
        return False
    first = next(iter(as_objects(start.get("ranks"))), {})
    numbers = re.match(r"(\d{1,4})\.(\d{1,4})", as_text(first.get("nccl")))
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= OLDEST


def parse(text: str) -> Answer:
    """Return what a whole answer says; raises Damaged."""
    return _parse_json(text) if text.startswith("{") else _parse_text(text)


def _parse_json(text: str) -> Answer:
    document = parse_object(_NO_COMMA.sub(r"\1,", text))
    version, listed = as_text(document.get("nccl_version")), document.get("communicators")
    if not isinstance(listed, list) or not _WORD.fullmatch(version):
        raise Damaged("it is not an answer of NCCL")
    findings: list[Finding] = []
    members = set()
    for communicator in as_objects(listed):
        ranks, missing = as_objects(communicator.get("ranks")), as_objects(communicator.get("missing_ranks"))
        size = len(ranks) + len(missing)
        members |= {(size, _member(rank)) for rank in (*ranks, *missing)}
        name = as_text(communicator.get("hash")).removeprefix("0x").rjust(16, "0")
        whats = [*_behind_by_kind(ranks), *((_absence(rank), _member(rank)) for rank in missing)]
        if re.fullmatch("[0-9a-f]{16}", name):
            findings += [Finding(name, size, *what) for what in whats]
    return Answer(version, len(listed), findings, members)


def _member(rank: Mapping[str, Any]) -> Member:
    return Member(**parse_fields(Member, rank))


def _absence(rank: Mapping[str, Any]) -> str:
    status = rank.get("status")
    if not isinstance(status, dict) or status.get("unresponsive") is not True:
        return ABSENT
    return DEAD if status.get("considered_dead") is True else GONE


def _behind_by_kind(ranks: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Member]]:
    """Yield the ranks that have started fewer collectives of one kind than the others."""
    kinds: dict[str, dict[int, list[Member]]] = {}
    for rank in ranks:
        counts = rank.get("collective_counts")
        for kind, count in counts.items() if isinstance(counts, dict) else ():
            if _WORD.fullmatch(kind) and type(count) is int:
                kinds.setdefault(kind, {}).setdefault(count, []).append(_member(rank))
    for kind, by_count in kinds.items():
        yield from _behind(kind, by_count, len(ranks))


def _behind(kind: str, by_count: Mapping[int, Sequence[Member]], size: int) -> Iterator[tuple[str, Member]]:
    """Yield the members with the lowest count, if they are at most half: else they are not the cause (stall.py)."""
    least, most = min(by_count, default=0), max(by_count, default=0)
    if least < most and 2 * len(by_count[least]) <= size:
        for member in by_count[least]:
            yield f"behind ({kind} {least} of {most})", member


def _parse_text(text: str) -> Answer:
    version = _VERSION.match(text)
    if version is None:
        raise Damaged("it is not an answer of NCCL")
    if _END not in text or not text.endswith("\n"):
        raise Damaged("it is incomplete")
    groups = {group[1]: (int(group[2]), int(group[3])) for group in _GROUP.finditer(text)}
    findings: list[Finding] = []
    for group, communicator, part in _parts(text):
        size = groups.get(group, (0, 0))[1]
        findings += [Finding(communicator, size, *what) for what in _read_part(part, size)]
    members = {(0, Member(None, *_process(found))) for found in _PROCESS.finditer(text)}
    members |= {(finding.size, finding.member) for finding in findings}
    communicators = sum(count for count, _ in groups.values())
    return Answer(version[1], communicators, findings, members, sum(map(int, _TOTAL.findall(text)[:1])))


def _parts(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each list of ranks, with the number of its communicator's group and the communicator that it is about."""
    head = None
    for part in _PART.split(text):
        match = _HEAD.match(part)
        head = match or head
        if head is not None and (match is not None or part.startswith("  Communicator ranks")):
            yield head[1], head[2], part


def _process(found: re.Match[str] | None) -> tuple[str, int | None]:
    return (found["host"], int(found["pid"])) if found is not None else ("", None)


def _read_part(part: str, size: int) -> list[tuple[str, Member]]:
    """Return the ranks of one list that stand out."""
    lists = _by_words(part)
    found = [(GONE, member) for member in lists.get("", ())]
    found += [(ABSENT, member) for words in lists if words.endswith(" NOCOMM") for member in lists[words]]
    counted = {int(match[1] or 0): lists[words] for words in lists if (match := _COUNTED.fullmatch(words))}
    kind = _KIND.search(part)
    return [*found, *_behind(kind[1] if kind else "operation", counted, size)]


def _by_words(part: str) -> dict[str, list[Member]]:
    """Return the ranks by what is said of them, also nobody: `2 ranks have launched up to operation 7`.

    A line without words, as `  Rank 3 -- GPU 0 managed by …`, belongs to the one above that has some.
    """
    lists: dict[str, list[Member]] = {}
    words = ""
    for line in filter(None, map(_LINE.fullmatch, part.splitlines())):
        words = line[2] or words
        members = lists.setdefault(words.replace(" has ", " have "), [])
        if line[1]:
            members.append(Member(int(line[1]), *_process(_PROCESS.search(line[3] or ""))))
    return lists


# -- whose ranks these are ---------------------------------------------------------------------------------------------


def locate(answer: Answer, processes: Sequence[Process]) -> dict[tuple[str, int | None], Process]:
    """Return the job's processes among those of the answer, by address and process ID.

    All nodes may have the same process IDs, as containers have: then a communicator of all ranks tells which it is.
    """
    nodes = Counter(process.pid for process in processes)
    known: dict[object, Process] = {process.pid: process for process in processes if nodes[process.pid] == 1}
    of_all = {(len(processes), process.rank, process.pid): process for process in processes}
    found = {}
    for size, member in answer.members:
        process = known.get(member.pid) or of_all.get((size, member.rank or 0, member.pid or 0))
        if process is not None:
            found[member[1:]] = process
    return found


def first_answer(
    outputs: Iterable[tuple[str, bytes | str]], processes: Sequence[Process], own: Collection[int],
    keep: Callable[[str], None] = lambda answer: None,
) -> dict[str, Any]:  # fmt: skip
    """Return the summary of the first answer that can be used, since each is about all ranks, or the ``problem``.

    ``outputs`` are what the client (nccl_ras.py) printed, with its node; ``keep`` gets each answer, also half of one.
    """
    problems: dict[str, list[str]] = {}
    for node, output in outputs:
        try:
            document = parse_object(output)
            answer, problem = as_text(document.get("answer")), as_text(document.get("problem"))
            if answer:
                keep(answer)
            if not problem:
                return summarize(answer, processes, own)
        except Damaged as error:
            problem = str(error)
        problems.setdefault(problem, []).append(node)
    parts = [f"{problem} on {first_few(nodes)}" for problem, nodes in problems.items()]
    return {"problem": "; ".join(parts) or "no node responded in time"}


def summarize(text: str, processes: Sequence[Process], own: Collection[int]) -> dict[str, Any]:
    """Return what NCCL says of the job with these processes: the ranks that it names, and all of it in lines.

    `agrees` with `own`, the ranks that the job's own records name. Raises Damaged, also for the answer of another job.
    """
    answer = parse(text)
    known = locate(answer, processes)
    if not _is_of(answer, processes):
        raise Damaged("it is about other processes than the ranks of this job")
    ranks = sorted({known[key].rank for one in answer.findings if (key := one.member[1:]) in known})
    lines = [f"NCCL {answer.version}: {line}" for line in _describe(answer, known)]
    lines.append(f"the ranks' own records {_compare(ranks, sorted(own))}")
    return {"version": answer.version, "ranks": ranks, "agrees": ranks == sorted(own), "lines": lines}


def _is_of(answer: Answer, processes: Sequence[Process]) -> bool:
    """Return whether an answer is about these processes: most that it names, or as many, if it names none."""
    named, ours = {member.pid for _, member in answer.members if member.pid}, {process.pid for process in processes}
    return 2 * len(named & ours) >= len(named) if named else answer.total == len(processes)


def _describe(answer: Answer, known: Mapping[tuple[str, int | None], Process]) -> list[str]:
    """Return a line for each kind of finding in each communicator, those of the largest communicators first."""
    lines = []
    findings = sorted(answer.findings, key=lambda one: (-one.size, one[0], one.what))
    for (communicator, size, what), ones in groupby(findings, key=lambda one: one[:3]):
        who = [_name(one.member, known) for one in ones]
        lines.append(
            f"{_few(who)} {'is' if len(who) == 1 else 'are'} {what} in communicator {communicator} of {size} ranks"
        )
    more = len(lines) - SHOWN
    none = f"no rank is behind or gone in any of {answer.communicators} communicators"
    return [*lines[:SHOWN], f"and {more} more findings"] if more > 0 else lines or [none]


def _name(member: Member, known: Mapping[tuple[str, int | None], Process]) -> str:
    process = known.get(member[1:])
    return f"number {member.rank}" if process is None else f"rank {process.rank} on {process.node}"


def _few(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + f" and {more} more" * (more > 0)


def _compare(ranks: Sequence[int], own: Sequence[int]) -> str:
    if not own:
        return "name none" if ranks else "name none either"
    shown = f"rank{'s' * (len(own) > 1)} {_few([*map(str, own)])}"
    return f"agree: {shown}" if ranks == own else f"differ: they name {shown}"
