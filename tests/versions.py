"""What holds on which version of Slurm: `python -m tests.versions` runs the same tests on each and prints a table."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

from lab.install import available
from lab.releases import RELEASES, VARIABLE, found

ROOT = Path(__file__).resolve().parents[1]
NO_TESTS = 5  # pytest's exit status when none was selected
#: A behaviour and the tests that show it: a pattern of `tests.slurm.test_ends::test_name`. The first that fits counts.
BEHAVIOURS = {
    "requeue": r"::.*requeue",
    "arrays": r"::.*array",
    "restarts in the job": r"conformance\.test_restarts::",
    "hangs": r"conformance\.test_hangs::",
    "lost nodes": r"test_lost_nodes::",
    "segments, expedited requeues": r"test_newest::",
    "resume": r"conformance\.test_resume::",
    "time limits and preemption": r"test_chains::",
    "conformance": r"conformance\.test_contract::",
    "jobs of others": r"conformance\.test_jobs_of_others::",
    "a run on two nodes": r"test_runs::",
    "ends": r"test_ends::",
    "hostile values": r"test_hostile_lab::",
    "logs -f": r"test_logs::",
    "list": r"test_list::",
    "why of pending jobs": r"test_why_waiting::",
    "why of ended jobs": r"test_why_ended::",
    "free": r"test_free::",
    "refusals of sbatch": r"test_sbatch_refusals::",
}
FILES = (
    "tests/slurm/test_ends.py", "tests/conformance", "tests/slurm/test_hostile_lab.py", "tests/slurm/test_logs.py",
    "tests/slurm/test_why_waiting.py", "tests/slurm/test_why_ended.py", "tests/slurm/test_free.py",
    "tests/slurm/test_runs.py", "tests/slurm/test_list.py", "tests/slurm/test_sbatch_refusals.py",
    "tests/slurm/test_chains.py", "tests/slurm/test_lost_nodes.py", "tests/slurm/test_newest.py",
)  # fmt: skip


@dataclass
class Count:
    """How many tests of a behaviour passed, failed and were skipped, in how many seconds of testing."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.passed} passed"] if self.passed else []
        parts += [f"{self.failed} FAILED"] if self.failed else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        return f"{', '.join(parts)}  {self.seconds:.0f} s" if parts else "-"


@dataclass
class Outcome:
    """What one version's tests came to; `status` is pytest's exit status, `seconds` how long it took."""

    counts: dict[str, Count] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    status: int = 0
    seconds: float = 0.0


def tally(*reports: str) -> Outcome:
    """The outcome in the texts of pytest's JUnit reports."""
    outcome = Outcome()
    # A test whose tear-down fails is two cases: it failed.
    cases: dict[str, tuple[str, float]] = {}
    for case in chain.from_iterable(ElementTree.fromstring(report).iter("testcase") for report in reports):
        name = f"{case.get('classname')}::{case.get('name')}"
        tags = {child.tag for child in case}
        result = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        before, seconds = cases.get(name, ("passed", 0.0))
        worse = result if before == "passed" else before
        cases[name] = (worse, seconds + float(case.get("time") or 0))
    for name, (result, seconds) in cases.items():
        row = next((row for row, pattern in BEHAVIOURS.items() if re.search(pattern, name)), "others")
        count = outcome.counts.setdefault(row, Count())
        setattr(count, result, getattr(count, result) + 1)
        count.seconds += seconds
        if result == "failed":
            outcome.failures.append(name)
    return outcome


def table(outcomes: Mapping[str, Outcome]) -> str:
    """A row for each behaviour, a column for each version, and below them the tests that failed."""
    rows = [row for row in (*BEHAVIOURS, "others") if any(row in o.counts for o in outcomes.values())]
    lines = [["", *(f"Slurm {version}" for version in outcomes)]]
    lines += [[row, *(str(o.counts.get(row, "-")) for o in outcomes.values())] for row in rows]
    lines.append(["in all", *(_total(outcome) for outcome in outcomes.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text += [f"failed on {version}: {name}" for version, o in outcomes.items() for name in o.failures]
    return "\n".join(text)


def _total(outcome: Outcome) -> str:
    if not outcome.counts:
        return f"did not run (pytest exited with {outcome.status})"
    whole = Count(seconds=outcome.seconds)
    for count in outcome.counts.values():
        whole.passed += count.passed
        whole.failed += count.failed
        whole.skipped += count.skipped
    return str(whole)


def run(slurm: str, workers: int, words: Sequence[str] = ()) -> Outcome:
    """Run the tests on a version of Slurm, an empty text for this machine's own; what pytest prints is shown."""
    parts = {"not alone": ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"], "alone": []}
    statuses, reports = set(), []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for marked, how in parts.items():
            report = Path(folder) / f"{marked}.xml"
            options = ["-q", "-m", f"{marked} and (not faults or versions)", "--timeout=600", f"--junitxml={report}"]
            argv = [sys.executable, "-m", "pytest", *options, *how, *(words or FILES)]
            done = subprocess.run(argv, cwd=ROOT, env={**os.environ, VARIABLE: slurm}, check=False)
            statuses.add(done.returncode)
            reports += [report.read_text(encoding="utf-8")] if report.exists() else []
    outcome = tally(*reports)
    outcome.status = min(statuses - {0, NO_TESTS}, default=min(statuses))
    outcome.seconds = time.monotonic() - began
    return outcome


def main(argv: list[str] | None = None) -> int:
    """Run every version's tests and return 0 when all of them passed, 1 when not."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("--slurm", action="append", metavar="VERSION", help="only this version; own: this machine's")
    parser.add_argument("-n", "--workers", type=int, default=3, help="test files side by side (default: 3)")
    parser.add_argument("words", nargs="*", metavar="FILE", help="files of tests (default: all that are compared)")
    args = parser.parse_args(argv)
    outcomes = {}
    for slurm in args.slurm or ("own", *RELEASES):
        wanted = "" if slurm == "own" else slurm
        if reason := available(wanted):
            parser.error(reason)
        version = found(wanted)
        print(f"Slurm {version}", flush=True)
        outcomes[version] = run(wanted, args.workers, args.words)
    print(f"\n{table(outcomes)}")
    return int(any(outcome.status for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
