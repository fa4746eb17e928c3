"""A limit of the shell (ulimit) that a job reached is named with its value and with where it comes from."""

from __future__ import annotations

import pytest

from clusterrun.why.causes import Cause, EndFacts, Line, first_cause
from clusterrun.why.causes.limits import with_limit

LIMITS = {"nofile": 200, "cpu": 25, "as": 500_000 * 1024}
NONE = "--propagate=NONE"


def judge(text: str, **limits: int) -> Cause:
    cause = first_cause([[Line("train_1.err", 1, None, text)]], EndFacts(state="FAILED", exit_status=1))
    return with_limit(cause, limits, by_slurm=True)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("OSError: [Errno 24] Too many open files: '/dev/null'", "200 open files (ulimit -n)"),
        ("srun: error: n1: task 0: CPU time limit exceeded", "25 s of processor time (ulimit -t)"),
        (
            "python cannot import torch (libtorch_cpu.so: failed to map segment from shared object)",
            "500,000 kB of addr",
        ),
        ("MemoryError: Unable to allocate 3. GiB", "500,000 kB of address space (ulimit -v)"),
    ],
)
def test_the_limit_that_was_reached_is_named(text: str, limit: str) -> None:
    cause = judge(text, **LIMITS)
    assert f"; the job's limit is {limit}" in cause.sentence and "the shell that submitted it" in cause.advice
    assert (NONE in cause.command) or "ulimit -n" in cause.command
    assert judge(text) == first_cause([[Line("train_1.err", 1, None, text)]], EndFacts(state="FAILED", exit_status=1))


def test_another_cause_names_no_limit() -> None:
    assert "limit is" not in judge("ValueError: the batch has 7 rows, not 8", **LIMITS).sentence
    assert "limit is" not in judge("OSError: [Errno 23] Too many open files in system", **LIMITS).sentence


def test_without_slurm_no_option_of_slurm_is_suggested() -> None:
    cause = Cause(kind="interrupted", sentence="a process was killed: CPU time limit exceeded")
    named = with_limit(cause, LIMITS, by_slurm=False)
    assert "25 s of processor time" in named.sentence and NONE not in named.command and "Slurm" not in named.advice
