"""Complete a finding from other lines: an earlier error of the script, the reason of a general error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise

from clusterrun.why.causes.evidence import Evidence, first
from clusterrun.why.causes.model import Line, LogFinding, Strength, texts
from clusterrun.why.causes.scan import PROGRESS
from clusterrun.why.causes.table_gpu import BUILD
from clusterrun.why.causes.table_launch import ABORTED, NATIVE
from clusterrun.why.causes.table_peers import LINK, SIZES
from clusterrun.why.causes.table_python import EXCEPTION
from clusterrun.why.causes.tracebacks import split_rank, texts_after

_NEAR = 25  # lines before an exception, or at the end of another stream, that may name its reason
_READ = 500  # characters of a line that are searched
_REPORTED = texts(
    "file-missing", "{report}; then {error}",
    "the script printed the first error but kept running; check that the path in that error exists and contains the"
    " right data",
    "https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/data/indexed_dataset.py", "clusterrun logs JOB -n 50",
)  # fmt: skip
#: exceptions that follow if something was not found before
_FOLLOWER = re.compile(
    r"NoneType|^UnboundLocalError|list index out of range|max\(\) arg is an empty|empty sequence|^ZeroDivisionError"
    r"|^StopIteration|!_src\.empty\(\)|!ssize\.empty\(\)|need at least one array|non-empty (?:list|TensorList)"
)
_REPORT = re.compile(
    r"(?i)^(?=.*(?:/[\w.]+/|\w\.[a-z]\w{1,6}\b|\bdir|\bfolder)).*(?:does ?n[o']t exist|not exist|\bnot found"
    r"|no such file|(?:can(?:no|')t|could not|couldn't|unable to|failed to)(?: be)? (?:open|find|read|load|locate)"
    r"|no \w+ (?:was |were )?found|found 0\b|\b0 \w+ (?:were )?found)"
)
_CARRIED_ON = re.compile(r"(?i)using|skip|fall(?:ing|s)? ?back|ignor|instead|scratch|creat|downlo|default|without")
_COMPILER = re.compile(
    r"fatal error: |unsupported GNU version|nvcc fatal|cannot find -l"
)  # printed before ninja's own status
_NCCL_FAILED = re.compile(
    r"NCCL WARN (?P<what>(?:Cuda failure|Call to \w+ failed|failed to open CUDA IPC|NET/OFI Unable to register"
    r"|(?:cuda|hip)\w+ failed|Failed: UCX error).{0,200})"
)
#: an error that no row knows, before a crash; launchers report the crash itself
_UNEXPLAINED = re.compile(
    r"(?i)^(?!srun:|(?!OpenBLAS ).*(?:\bwarn|\binfo\b|\[W|exit ?code|ChildFailed| FAILED$|End of error message))"
    r".*\b(?:error|fatal|exceeded|fail(?:ed|ure)|fault|violation)\b(?!s?[:=] ?0)"
)
#: NCCL's own threads report that a call failed
_FOLLOWS = re.compile(
    r"^\[(?:Service thread|Proxy )|Error encountered progressing operation|Attempt to use communicator before"
)
_SRUN = "srun: "
#: enroot's report of a hook, after the hook's own error
_HOOK = re.compile(r"/hooks\.d/\S+ exited with return code")
#: torch's warning, which names why no GPU can be used
_NO_CUDA = "CUDA initialization: "
_SIGABRT = re.compile(r"signal 6\b|SIGABRT|crashed?: Aborted|\(Aborted\)")
_ABOUT_GPUS = re.compile(r"(?i)cuda(?!:\d)|\bgpus?\b|nccl")
_BACKTRACE = 60  # lines after the report of a signal
_NATIVE_FRAME = re.compile(  # of UCX and Open MPI, of gdb
    r"(?:^|\] ) *(?:\[ ?\d{1,3}\]|\d{1,3}:?) +/\S{0,300}?/(?P<library>[\w+-][\w.+-]*\.so[\w.]*)\((?P<function>\w*)"
    r"|^#\d{1,3} +(?:0x\w+ in )?(?P<called>\w+) \(.{0,100}\) from /\S{0,300}?/(?P<loaded>[\w+-][\w.+-]*\.so[\w.]*)"
)
#: in every backtrace: the handlers of signals, and C's library
_OF_HANDLERS = re.compile(r"lib(?:c|pthread|dl|gcc_s|ucs|open-pal|asan)\.so|libc-|ld-")
_LAST_ERROR = re.compile(r"NCCL WARN (?P<what>(?!.*Missing|.*NCCL_).{8,200})")


def with_earlier_report(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return an exception that only follows from an error that the script printed before, with both messages."""
    if finding.row is not EXCEPTION or _FOLLOWER.search(finding.sentence) is None:
        return finding
    for lines in evidence.logs:
        report = _last_report(_lines_before(finding, lines), finding)
        if report is not None:
            words = f"{_text(report)}; then {finding.sentence}"
            return replace(finding, row=_REPORTED, line=report, sentence=words, advice=_REPORTED.advice)
    return finding


def _lines_before(finding: LogFinding, lines: Sequence[Line]) -> Sequence[Line]:
    """Return the lines up to an exception, or the last lines of another log."""
    end = finding.index + 1 if finding.is_in(lines) else len(lines)
    near = 2 * _NEAR if end < len(lines) else _NEAR
    return lines[max(0, end - near) : end]


def _last_report(lines: Sequence[Line], finding: LogFinding) -> Line | None:
    """Return the last line that reports something missing, unless the program worked on after it."""
    for line in reversed(lines):
        text = _text(line)
        if PROGRESS.search(text):
            return None
        is_of_traceback = text.startswith(("File ", finding.sentence[:20]))
        if not is_of_traceback and _REPORT.match(text) and not _CARRIED_ON.search(text):
            return line
    return None


def _text(line: Line) -> str:
    return split_rank(line)[1][:_READ].strip()


def with_reason(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return the finding of a container, a build, an import or NCCL with the reason that another line names, if any."""
    if finding.row is EXCEPTION or finding.kind == "no-gpu":
        finding = _after_cuda_warning(finding, evidence)
    if finding.row is BUILD:
        header = evidence.first(lambda f: _COMPILER.search(f.sentence) is not None) or finding
        return replace(header, place=finding.place, rank=finding.rank)
    complete = _BY_KIND.get(finding.kind, _with_reason_before)
    return complete(finding, evidence)


def _after_cuda_warning(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return an error about GPUs with torch's warning that CUDA cannot be initialized, if the error follows from it."""
    if _NO_CUDA in finding.line.text or _ABOUT_GPUS.search(finding.sentence) is None:
        return finding
    for warned in evidence.findings:
        is_warning = warned.kind in ("library-mismatch", "no-gpu") and _NO_CUDA in warned.line.text
        if is_warning and warned.rank in (None, finding.rank):
            then = "" if warned.sentence == finding.sentence else f"; then {finding.sentence}"
            return replace(warned, sentence=f"{warned.sentence}{then}", rank=finding.rank, place=finding.place)
    return finding


def _after_setup(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return a missing module or command with the failed setup line before it."""
    for setup in evidence.findings:
        is_before = setup.line.file != finding.line.file or setup.index < finding.index
        if is_before and setup.kind == "setup":
            return replace(finding, sentence=f"{finding.sentence}; before that, {setup.sentence}", advice=setup.advice)
    return finding


def _crash(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return a crash with the failed link before it, or the library in which it happened."""
    if not finding.place:
        finding = _link_failure(finding, evidence) or _with_library(finding, evidence)
    return _with_reason_before(finding, evidence)


def _with_reason_before(finding: LogFinding, evidence: Evidence) -> LogFinding:
    reason = _reason_before(finding, evidence)
    return replace(finding, sentence=f"{finding.sentence}; before that: {reason}") if reason else finding


def _launch(finding: LogFinding, evidence: Evidence) -> LogFinding:
    complete = _container_reason if "pyxis:" in finding.line.text else _with_reason_before
    return complete(finding, evidence)


def _container_reason(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return the line of a task's container log that names why it did not start: the line before a failed hook's."""
    of_task = [f for f in evidence.findings if _is_pyxis_line(f, finding.line.rank)]
    full = first(of_task, lambda f: f.kind in ("disk-full", "quota"))
    if full is not None:
        return full
    shown = [f for f in of_task if "why" in f.values or "nvidia-container-cli: " in f.line.text]
    for before, after in pairwise(shown):
        if _HOOK.search(after.line.text):
            return before
    return shown[0] if shown else finding


def _is_pyxis_line(finding: LogFinding, rank: int | None) -> bool:
    return "pyxis:" in finding.line.text and finding.line.rank == rank


def _link_failure(finding: LogFinding, evidence: Evidence) -> LogFinding | None:
    """Return UCX's report of a failed link shortly before the process aborted, with the abort: UCX itself aborts it."""
    for link in evidence.before(finding) if _SIGABRT.search(finding.sentence) else ():
        if link.row is LINK and finding.index - link.index < 2 * _NEAR:
            then = f"{link.sentence}; then {finding.sentence}"
            return replace(link, sentence=then, rank=finding.rank, ranks=finding.ranks)
    return None


def _with_library(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return a crash with the library that its backtrace names, or an abort with its usual reasons."""
    lines = evidence.lines_of(finding)
    backtrace = [text[:_READ] for text in texts_after(lines, finding.index, _BACKTRACE)] if lines else []
    library = _crashed_library(backtrace)
    if library:
        return replace(finding, sentence=f"{finding.sentence} in {library}", advice=NATIVE)
    return replace(finding, advice=ABORTED) if _SIGABRT.search(finding.sentence) else finding


def _crashed_library(backtrace: Sequence[str]) -> str:
    """Return ``libmpi.so.40 (MPI_Send)``, the innermost library of a crash's backtrace; empty if not shown."""
    for frame in filter(None, map(_NATIVE_FRAME.search, backtrace)):
        library, function = frame["library"] or frame["loaded"], frame["function"] or frame["called"]
        if not _OF_HANDLERS.match(library):
            return f"{library} ({function})" if function else library
    return ""


def _reason_before(finding: LogFinding, evidence: Evidence) -> str:
    """Return what the log says before an exception or a crash that no row explains, and may be its reason."""
    if finding.row is EXCEPTION:
        return _bare_line_before(finding, evidence)
    if finding.kind == "launch-failed" and finding.line.text.startswith(f"{_SRUN}error: "):
        return _warning_of_srun(evidence.lines_before(finding, _NEAR))
    if finding.kind == "crashed" and not finding.place:
        return _unexplained_before(finding, evidence)
    return ""


def _bare_line_before(finding: LogFinding, evidence: Evidence) -> str:
    """Return the cause that a line without a traceback names, earlier in the log of an exception."""
    for bare in evidence.before(finding):
        is_failure = bare.row.strength is Strength.CAUSE and not bare.survived and not bare.place
        if is_failure and bare.rank in (None, finding.rank):
            return bare.sentence
    return ""


def _warning_of_srun(lines: Sequence[Line]) -> str:
    for line in lines:
        if line.text.startswith(f"{_SRUN}warn"):
            return line.text[:_READ].removeprefix(f"{_SRUN}warning: ")
    return ""


def _unexplained_before(finding: LogFinding, evidence: Evidence) -> str:
    """Return an error shortly before a crash that no row knows."""
    ranks = (None, finding.rank, *finding.ranks)
    for line in evidence.lines_before(finding, _NEAR):
        rank, text = split_rank(line)
        shown = text[:200].strip()
        if line not in evidence.explained and rank in ranks and _UNEXPLAINED.match(shown):
            return shown
    return ""


def _with_reason_of_nccl(finding: LogFinding, evidence: Evidence) -> LogFinding:
    """Return the finding of NCCL with the reason that the lines after it name."""
    if finding.row is SIZES:  # the exception after it names the rank and the line
        raised = evidence.first(lambda f: f.kind == finding.kind and bool(f.place)) or finding
        return replace(finding, rank=raised.rank, place=raised.place)
    reason = _nccl_reason(finding, evidence) or find_failed_call(chain(*evidence.logs))
    return replace(finding, sentence=f"{finding.sentence.rstrip('.')}: {reason}") if reason else finding


def _nccl_reason(finding: LogFinding, evidence: Evidence) -> str:
    """Return NCCL's reason: the line after ``Last error:``, else its last warning before the error."""
    last = _last_error(evidence.lines_of(finding), finding)
    if last and not _FOLLOWS.search(last):
        return last
    for line in reversed(evidence.lines_before(finding, 2 * _NEAR)):
        warned = _LAST_ERROR.search(line.text[:_READ])
        if warned is not None and not _FOLLOWS.search(warned["what"]):
            return warned["what"]
    return last


def _last_error(lines: Sequence[Line], finding: LogFinding) -> str:
    """Return the line after ``Last error:``, without the prefix of both; empty if there is none."""
    following = [split_rank(finding.line)[1], *islice(texts_after(lines, finding.index, _NEAR), 7)] if lines else []
    for heading, last in pairwise(text.strip() for text in following):
        if heading.endswith("Last error:"):
            return last.removeprefix(heading.removesuffix("Last error:"))[:200]
    return ""


def find_failed_call(lines: Iterable[Line]) -> str:
    """Return the first call that NCCL warns of; it may warn in another log than that of the error."""
    for line in lines:
        failed = _NCCL_FAILED.search(line.text[:_READ])
        if failed is not None:
            return failed["what"]
    return ""


#: what completes the findings of a kind; those of other kinds with what a line before them names
_BY_KIND = {
    "launch-failed": _launch,
    "crashed": _crash,
    "nccl-error": _with_reason_of_nccl,
    "import-error": _after_setup,
    "command-missing": _after_setup,
}
