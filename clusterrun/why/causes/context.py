"""Complete a finding from other lines: an earlier error of the script, the reason of a general error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from clusterrun.why.causes.match import PROGRESS
from clusterrun.why.causes.model import Line, LogFinding, Strength, texts
from clusterrun.why.causes.native import find_crashed_library, find_ucx_error
from clusterrun.why.causes.table_gpu import BUILD
from clusterrun.why.causes.table_launch import ABORTED, NATIVE
from clusterrun.why.causes.table_peers import LINK, SIZES
from clusterrun.why.causes.table_python import EXCEPTION
from clusterrun.why.causes.tracebacks import split_rank

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
_LAST_ERROR = re.compile(r"NCCL WARN (?P<what>(?!.*Missing|.*NCCL_).{8,200})")


def with_earlier_report(found: LogFinding, logs: Sequence[Sequence[Line]]) -> LogFinding:
    """Return an exception that only follows from an error that the script printed before, with both messages."""
    if found.row is not EXCEPTION or _FOLLOWER.search(found.sentence) is None:
        return found
    for lines in logs:
        end = found.index + 1 if _holds(lines, found) else len(lines)
        for line in reversed(lines[max(0, end - (2 * _NEAR if end < len(lines) else _NEAR)) : end]):
            text = split_rank(line)[1][:_READ].strip()
            if PROGRESS.search(text):
                break
            if text.startswith(("File ", found.sentence[:20])) or not _REPORT.match(text) or _CARRIED_ON.search(text):
                continue
            words = f"{text}; then {found.sentence}"
            return replace(found, row=_REPORTED, line=line, sentence=words, advice=_REPORTED.advice)
    return found


def with_reason(best: LogFinding, findings: Sequence[LogFinding], logs: Sequence[Sequence[Line]]) -> LogFinding:
    """Return the finding of a container, a build, an import or NCCL with the reason that another line names, if any."""
    if best.kind == "launch-failed" and "pyxis:" in best.line.text:
        return _container_reason(best, findings)
    if (best.row is EXCEPTION or best.kind == "no-gpu") and (warned := _cuda_warning(best, findings)) is not None:
        then = warned.sentence if warned.sentence == best.sentence else f"{warned.sentence}; then {best.sentence}"
        known = replace(best, row=warned.row, line=warned.line, advice=warned.advice, command=warned.command)
        return replace(known, sentence=then)
    if best.kind == "crashed":
        return _crash(best, findings, logs)
    if best.row is BUILD and (header := next((f for f in findings if _COMPILER.search(f.sentence)), None)):
        return replace(header, place=best.place, rank=best.rank)
    if best.kind in ("import-error", "command-missing"):
        best = _with_setup(best, findings)
    if best.kind == "nccl-error":
        return _with_reason_after(best, findings, logs)
    return _with_reason_before(best, findings, logs)


def _with_setup(best: LogFinding, findings: Sequence[LogFinding]) -> LogFinding:
    """Return a missing module or command with the failed setup line before it."""
    setup = next(
        (
            f
            for f in findings
            if f.kind == "setup" and f.row.common and (f.line.file != best.line.file or f.index < best.index)
        ),
        None,
    )
    if setup is None:
        return best
    return replace(best, sentence=f"{best.sentence}; before that, {setup.sentence}", advice=setup.advice)


def _crash(best: LogFinding, findings: Sequence[LogFinding], logs: Sequence[Sequence[Line]]) -> LogFinding:
    """Return a crash with the failed link before it, or the library in which it happened."""
    if not best.place:
        best = _link_failure(best, findings, logs) or _with_library(best, logs)
    return _with_reason_before(best, findings, logs)


def _with_reason_before(best: LogFinding, findings: Sequence[LogFinding], logs: Sequence[Sequence[Line]]) -> LogFinding:
    reason = _reason_before(best, findings, logs)
    return replace(best, sentence=f"{best.sentence}; before that: {reason}") if reason else best


def _container_reason(best: LogFinding, findings: Sequence[LogFinding]) -> LogFinding:
    """Return the line of a task's container log that names why it did not start: the line before a failed hook's."""
    mine = [f for f in findings if "pyxis:" in f.line.text and f.line.rank == best.line.rank]
    full = next((f for f in mine if f.kind in ("disk-full", "quota")), None)
    shown = [f for f in mine if f.values.get("why") or "nvidia-container-cli: " in f.line.text]
    hook = next((at for at, f in enumerate(shown) if at and _HOOK.search(f.line.text)), 1)
    return full or (shown[hook - 1] if shown else best)


def _cuda_warning(best: LogFinding, findings: Sequence[LogFinding]) -> LogFinding | None:
    """Return torch's warning that CUDA cannot be initialized, if an error about GPUs follows from it."""
    if _NO_CUDA in best.line.text or _ABOUT_GPUS.search(best.sentence) is None:
        return None
    able = (f for f in findings if f.kind in ("library-mismatch", "no-gpu") and f.rank in (None, best.rank))
    return next((f for f in able if _NO_CUDA in f.line.text), None)


def _link_failure(
    best: LogFinding, findings: Sequence[LogFinding], logs: Sequence[Sequence[Line]]
) -> LogFinding | None:
    """Return UCX's report of a failed link shortly before the process aborted, with the abort: UCX itself aborts it."""
    lines = next((lines for lines in logs if _holds(lines, best)), ())
    near = (f for f in findings if f.row is LINK and 0 < best.index - f.index < 2 * _NEAR and _holds(lines, f))
    link = next(near, None) if _SIGABRT.search(best.sentence) else None
    return link and replace(link, sentence=f"{link.sentence}; then {best.sentence}", rank=best.rank, ranks=best.ranks)


def _with_library(best: LogFinding, logs: Sequence[Sequence[Line]]) -> LogFinding:
    """Return a crash with the library that its backtrace names, and UCX's error, or an abort with its usual reasons."""
    lines = next((lines for lines in logs if _holds(lines, best)), ())
    library = find_crashed_library(lines, best.index) if lines else ""
    if not library:
        return replace(best, advice=ABORTED) if _SIGABRT.search(best.sentence) else best
    error = find_ucx_error(lines, best.index)
    sentence = f"{best.sentence} in {library}" + (f"; UCX reports: {error}" if error else "")
    return replace(best, sentence=sentence, advice=NATIVE)


def _reason_before(best: LogFinding, findings: Sequence[LogFinding], logs: Sequence[Sequence[Line]]) -> str:
    """Return what the log says before an exception or a crash that no row explains, and may be its reason."""
    lines = next((lines for lines in logs if _holds(lines, best)), ())
    if best.row is EXCEPTION:
        before = (f for f in findings if f.index < best.index and f.line in lines[f.index : f.index + 1])
        bare = (f for f in before if f.row.strength is Strength.CAUSE and not f.survived and not f.place)
        return next((f.sentence for f in bare if f.rank in (None, best.rank)), "")
    if best.kind == "launch-failed" and best.line.text.startswith(f"{_SRUN}error: "):
        warned = (line.text[:_READ] for line in lines[max(0, best.index - _NEAR) : best.index])
        return next((text.removeprefix(f"{_SRUN}warning: ") for text in warned if text.startswith(f"{_SRUN}warn")), "")
    if best.kind == "crashed" and not best.place:
        known = {f.line for f in findings}
        near = [split_rank(line) for line in lines[max(0, best.index - _NEAR) : best.index] if line not in known]
        mine = (text[:200].strip() for rank, text in near if rank in (None, best.rank, *best.ranks))
        return next((text for text in mine if _UNEXPLAINED.match(text)), "")
    return ""


def _with_reason_after(best: LogFinding, findings: Sequence[LogFinding], logs: Sequence[Sequence[Line]]) -> LogFinding:
    """Return the finding of NCCL with the reason that the lines after it name."""
    if best.row is SIZES:  # the exception after it names the rank and the line
        raised = next((f for f in findings if f.kind == best.kind and f.place), best)
        return replace(best, rank=raised.rank, place=raised.place)
    reason = next((why for lines in logs if _holds(lines, best) if (why := _nccl_reason(lines, best))), "")
    if not reason:  # NCCL warns in the other stream
        warned = (_NCCL_FAILED.search(line.text[:_READ]) for lines in logs for line in lines)
        reason = next((match["what"] for match in warned if match), "")
    return replace(best, sentence=f"{best.sentence.rstrip('.')}: {reason}") if reason else best


def _nccl_reason(lines: Sequence[Line], best: LogFinding) -> str:
    """Return NCCL's reason: the line after ``Last error:``, else its last warning before the error."""
    following = lines[best.index : best.index + _NEAR]  # lines of other ranks may be among them
    after = [split_rank(line)[1].strip() for line in following if line.rank == lines[best.index].rank][:8]
    heading = next((n for n, text in enumerate(after[:-1]) if text.endswith("Last error:")), None)
    last = "" if heading is None else after[heading + 1].removeprefix(after[heading].removesuffix("Last error:"))[:200]
    last = "" if last.startswith("@ ") else last  # a stack frame
    if last and not _FOLLOWS.search(last):
        return last
    before = (
        _LAST_ERROR.search(line.text[:_READ]) for line in reversed(lines[max(0, best.index - 2 * _NEAR) : best.index])
    )
    return next((match["what"] for match in before if match and not _FOLLOWS.search(match["what"])), last)


def find_failed_nccl_call(best: LogFinding, logs: Sequence[Sequence[Line]]) -> str:
    """Return the call that failed in NCCL before a connection was lost; empty if there is none."""
    before = next((lines[: best.index] for lines in logs if _holds(lines, best)), ())
    return next((match["what"] for line in before if (match := _NCCL_FAILED.search(line.text[:_READ]))), "")


def _holds(lines: Sequence[Line], found: LogFinding) -> bool:
    return found.index < len(lines) and lines[found.index] is found.line
