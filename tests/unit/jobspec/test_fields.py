"""The values of options: which are valid, and what time limits and GRES mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS
from clusterrun.jobspec.fields import Value, check_value, gres_gpus


def refused(name: str, value: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_value(FIELD[name], Value(value, "jobs/x.toml"))
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", 0),
        ("nodes", True),
        ("nodes", 2.0),
        ("nodes", "2"),
        ("gpus-per-node", -1),
        ("partition", ""),
        ("partition", 3),
        ("requeue", 1),
        ("setup", "module load x"),
        ("setup", ["a", 1]),
        ("env", ["A=1"]),
        ("env", {"A": 1}),
        ("env", {"1A": "x"}),
        ("env", {"A B": "x"}),
        ("env", {"": "x"}),
        ("env", {"Ä": "x"}),
        ("env", {"A\n": "x"}),
        ("env", {"RANK": "0"}),
        ("env", {"MASTER_ADDR": "x"}),
        ("env", {"SLURM_NTASKS": "1"}),
        ("env", {"CLUSTERRUN_TOKEN": "x"}),
        ("mem", "lots"),
        ("mem", "-1"),
        ("mem", "64 G"),
        ("master-port", 80),
        ("master-port", 65536),
        ("scheduler", "pbs"),
        ("job-name", "x" * 41),
        ("job-name", "é" * 21),
        ("time", "1 day"),
    ],
)
def test_refused(name: str, value: object) -> None:
    assert "jobs/x.toml" in refused(name, value).message or name == "time"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mem", "0"),
        ("mem", "64G"),
        ("mem", "64GB"),  # sbatch takes it: seen on 22.05
        ("mem", "512m"),
        ("env", {"_A1": ""}),
        ("env", {"NCCL_DEBUG": "INFO", "MY_RANK": "1"}),
        ("job-name", "x" * 40),
        ("job-name", "--wrap=rm"),
        ("comment", "a 'comment' with $(things) in it"),
        ("set", {"steps": 3, "lr": 1e-4, "x": True, "name": "a"}),
        ("master-port", 1024),
    ],
)
def test_taken(name: str, value: object) -> None:
    check_value(FIELD[name], Value(value, "x"))


@given(st.sampled_from(FIELDS), st.text(), st.sampled_from("\n\0"), st.text())
def test_no_newline_or_nul_comes_in(field: Any, left: str, bad: str, right: str) -> None:
    text = left + bad + right
    value = {"text": text, "list": ["fine", text], "map": {"A": text}}.get(field.kind)
    assume(value is not None)
    assert ("newline" in (message := refused(field.name, value).message)) or "NUL" in message
    if field.kind == "map":
        refused(field.name, {text: "x"})


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(FIELDS), _ANY)
def test_any_value_is_taken_or_refused(field: Any, value: object) -> None:
    try:
        check_value(field, Value(value, "x"))
    except RequestError as error:
        assert field.name in error.message
        return
    kinds = {"int": int, "text": str, "flag": bool, "list": list, "map": dict}
    assert isinstance(value, kinds[field.kind])


# gres


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu", 1),
        ("gpu:4", 4),
        ("gpu:a100", 1),
        ("gpu:a100:4", 4),
        ("gpu:1g.5gb:2", 2),
        ("gres/gpu:4", 4),
        ("gres:gpu:4", 4),
        ("gpu:a100:4(S:0,1),nvme:1", 4),
        ("gpu:a:1,gpu:b:2", 3),
        ("nvme:1", None),
        ("none", None),
        ("gpux:4", None),
        ("gpu:" + "9" * 5000, None),  # int() refuses it
        ("", None),
    ],
)
def test_gres_gpus(gres: str, gpus: int | None) -> None:
    assert gres_gpus(gres) == gpus


@given(st.text(alphabet="gpu:,a0123()/S", max_size=40) | st.text())
def test_gres_takes_any_text(text: str) -> None:
    found = gres_gpus(text)
    assert found is None or found >= 0


@pytest.mark.parametrize(("name", "value"), [("total-time", "soon"), ("total-time", "0"), ("signal", "B:TERM@1"),
                                             ("signal", "KILL@5"), ("signal", "TERM@x")])  # fmt: skip
def test_a_total_time_and_a_signal_have_a_form(name: str, value: str) -> None:
    refused(name, value)
