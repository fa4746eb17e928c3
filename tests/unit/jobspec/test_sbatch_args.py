"""--sbatch-arg: options that clusterrun sets itself are refused, others pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD
from clusterrun.jobspec.fields import TAKEN_SBATCH_OPTIONS, Value, check_value, sbatch_option


def refused(argument: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_value(FIELD["sbatch-arg"], Value([argument], "jobs/x.toml"))
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("option", TAKEN_SBATCH_OPTIONS)
def test_taken_options_are_refused(option: str) -> None:
    for argument in (f"--{option}", f"--{option}=3", f"--{option[:-1]}" if len(option) > 4 else f"--{option}"):
        error = refused(argument)
        assert "not supported" in error.message
        assert error.hint.startswith(("use ", "remove this option", "run ", "set ", "submit ", "cd "))


@pytest.mark.parametrize(
    "argument",
    [
        "-Jx",
        "-o/x",
        "-e/x",
        "-W",
        "-a1-3",
        "-N2",
        "-n8",
        "-G4",
        "-D/",
        "-Mother",
        "-h",
        "-V",
        "-HJx",
        "-QHN2",
        "-HW",
        "-sHn4",
    ],
)
def test_short_options_are_refused(argument: str) -> None:
    assert "not supported" in refused(argument).message


@pytest.mark.parametrize("argument", ["", "x", "2", "-", "--", "job.sh", "="])
def test_bare_words_are_refused(argument: str) -> None:
    refused(argument)


@pytest.mark.parametrize(
    "argument",
    ["--switches=1", "--exclusive", "--begin=now+1hour", "-H", "-Q", "-wnode1", "-C gpu", "--nice=5", "--hint=x",
     "--no-kill", "--wait-all-nodes=1", "--gpu-bind=none", "--signal=B:USR1@60", "--nodefile=x", "--export-thing"],
)  # fmt: skip
def test_other_options_pass(argument: str) -> None:
    check_value(FIELD["sbatch-arg"], Value([argument], "x"))


@given(st.text())
def test_any_argument_has_an_option_or_none(text: str) -> None:
    assert sbatch_option(text) == "" or text.startswith("-")
