"""Job specifications: valid and invalid options, and the result."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS, NAME_BYTES
from clusterrun.jobspec.fields import Value, check_value
from clusterrun.jobspec.render import supervise_argv
from clusterrun.jobspec.spec import Command, JobSpec, Module, Script, Task, Work, build_spec, default_name

SCRIPT = Script("/home/me/train.py")
TASK = Task("lm")


def spec(work: Work = SCRIPT, /, **asked: Any) -> JobSpec:
    given_values = {"python": "/usr/bin/python3", **{k.replace("_", "-"): v for k, v in asked.items()}}
    return build_spec({k: Value(v, f"--{k}") for k, v in given_values.items()}, work)


@pytest.mark.parametrize(
    ("work", "options", "expected"),
    [
        (SCRIPT, {}, "expected"),
        (SCRIPT, {"require_group": True}, "required"),
        (SCRIPT, {"independent": True}, "independent"),
        (SCRIPT, {"independent": True, "require_group": False}, "independent"),
        (TASK, {}, "required"),
    ],
)
def test_what_a_run_without_a_process_group_gets(work: Work, options: dict[str, bool], expected: str) -> None:
    assert spec(work, **options).process_group == expected


@pytest.mark.parametrize(("work", "require"), [(SCRIPT, True), (TASK, False), (TASK, True)])
def test_independent_ranks_are_refused_for_a_task_and_with_a_required_group(work: Work, require: bool) -> None:
    with pytest.raises(RequestError, match="--independent") as caught:
        spec(work, independent=True, require_group=require)
    assert caught.value.exit_code == 2 and caught.value.hint


def test_the_table() -> None:
    assert len(FIELD) == len(FIELDS)
    for field in FIELDS:
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z]+)*", field.name)
        assert field.help.endswith(".") or "default" in field.help
        assert (field.metavar == "") == (field.kind == "flag")
        assert not field.directive or field.kind in ("int", "text")


def test_defaults() -> None:
    plain = spec(gpus_per_node=4)
    assert (plain.nodes, plain.tasks_per_node, plain.world_size, plain.requeue) == (1, 4, 4, False)
    assert (plain.job_name, plain.time_limit, plain.directives) == ("train", None, ())
    assert spec(TASK, gpus_per_node=0).requeue  # our own tasks resume
    assert not spec(TASK, gpus_per_node=0, requeue=False).requeue
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.nodes = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [
        ({"gpus_per_node": 4}, 4),
        ({"gpus_per_node": 0}, 1),
        ({}, 1),
        ({"gpus_per_node": 0, "tasks_per_node": 3}, 3),
        ({"gpus_per_node": 4, "tasks_per_node": 1}, 1),
        ({"gres": "gpu:a100:4"}, 4),
        ({"gres": "gpu:2,gpu:h100:1"}, 3),
        ({"gres": "nvme:1"}, 1),
        ({"gres": "nvme:1", "gpus_per_node": 4}, 4),  # that gres asks for no GPU
    ],
)
def test_ranks_on_a_node(asked: dict[str, Any], ranks: int) -> None:
    made = spec(nodes=2, **asked)
    assert (made.tasks_per_node, made.world_size) == (ranks, 2 * ranks)


def test_gpus_are_asked_for_once() -> None:
    with pytest.raises(RequestError, match="both request GPUs"):
        spec(gres="gpu:4", gpus_per_node=4)


def test_directives_keep_the_order_of_the_table() -> None:
    made = spec(qos="q", time="1:00:00", cpus_per_task=3, partition="p", gpus_per_node=1)
    assert made.directives == (("cpus-per-task", "3"), ("time", "1:00:00"), ("partition", "p"), ("qos", "q"))
    assert (made.directive("qos"), made.directive("mem"), made.time_limit, made.cpus_per_task) == ("q", "", 3600, 3)


def test_sources_are_kept() -> None:
    assert spec(nodes=2).sources["nodes"] == Value(2, "--nodes")


# names


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (Task("lm"), "lm"),
        (Script("/a/b/train.py"), "train"),
        (Script("/a/b/.py"), "job"),
        (Script("/a/b/run me.py"), "run me"),
        (Script("/a/b/x\ny.py"), "x_y"),
        (Module("pkg.train"), "pkg.train"),
        (Module("experiments.scripts.evaluation.test_distributed"), "scripts.evaluation.test_distributed"),
        (Module("pkg." + "m" * 50), "m" * 40),
        (Command("/usr/bin/prog"), "prog"),
        (Script("/a/" + "é" * 30 + ".py"), "é" * 20),
        (Script("/a/bad\udcff.py"), "bad"),
        (Script("/a/123.py"), "job-123"),
        (Command("/a/last"), "job-last"),
    ],
)
def test_default_names(work: Work, name: str) -> None:
    assert default_name(work) == name


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_default_name_can_be_asked_for(path: str) -> None:
    for work in (Script(f"/{path}"), Module(path), Task(path)):
        check_value(FIELD["job-name"], Value(name := default_name(work), "default"))
        assert len(name.encode()) <= NAME_BYTES


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "accelerate", "deepspeed", "none"])
def test_a_launcher_changes_the_tasks_and_not_the_ranks(launcher: str) -> None:
    made = spec(nodes=2, gpus_per_node=4, launcher=launcher)
    assert (made.tasks_per_node, made.world_size) == (4, 8)
    assert made.workers_per_node == (1 if launcher == "none" else 4)


@pytest.mark.parametrize(
    ("work", "options", "message"),
    [
        (SCRIPT, {"launcher": "mpirun"}, "--launcher must be srun, torchrun, accelerate, deepspeed or none"),
        (SCRIPT, {"launcher": "torchrun", "accelerate_config": "c.yaml"}, "--accelerate-config works only with"),
        (TASK, {"launcher": "none"}, "--launcher none is not supported: the task lm does not start its own ranks"),
    ],
)
def test_a_launcher_refuses_what_it_cannot_run(work: Work, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        spec(work, gpus_per_node=0, **options)


def test_a_total_time_lets_the_job_be_restarted_unless_that_is_forbidden() -> None:
    words = supervise_argv(spec(SCRIPT, total_time="5d", signal="TERM@300", helper_job=False), local=False)
    asked = ["--total-time", "432000", "--no-helper-job", "--signal", "TERM@300", "--requeue"]
    assert [word for word in words if word in asked] == asked
    assert spec(SCRIPT, total_time="36h").total_time == 36 * 3600
    assert spec(SCRIPT, total_time="1-12").total_time == 36 * 3600
    assert not spec(SCRIPT, total_time="90m", requeue=False).requeue
    assert spec(SCRIPT, signal="USR1").directive("signal") == "USR1"
    assert "--total-time" not in supervise_argv(spec(SCRIPT, total_time="5d"), local=True)


def test_a_signal_that_would_end_each_start_at_once_is_refused() -> None:
    assert spec(SCRIPT, time="7", signal="TERM@300").time_limit == 420
    for signal in ("TERM@300", "TERM@240"):
        with pytest.raises(RequestError, match="would be sent at the start of a job with a time limit of 5 min"):
            spec(SCRIPT, time="5", signal=signal)


@pytest.mark.parametrize("launcher", ["srun", "none", "accelerate", "deepspeed"])
def test_the_supervisor_restarts_the_ranks_of_every_launcher_but_torchrun(launcher: str) -> None:
    words = supervise_argv(spec(SCRIPT, gpus_per_node=0, launcher=launcher, max_restarts=2), local=False)
    assert words[words.index("--max-restarts") + 1] == "2"
    assert "--max-restarts" not in supervise_argv(spec(SCRIPT, launcher="torchrun", max_restarts=2), local=False)


@pytest.mark.parametrize(
    ("work", "text", "message"),
    [
        (SCRIPT, "--resume 'auto", '--resume-args "--resume \'auto": No closing quotation'),
        (Task("lm", ()), "--resume auto", "--resume-args is not supported: the task lm resumes automatically"),
    ],
)
def test_resume_args_are_words_for_a_script(work: Work, text: str, message: str) -> None:
    assert "--resume-args=--resume auto" in supervise_argv(spec(SCRIPT, resume_args="--resume auto"), local=False)
    with pytest.raises(RequestError, match=re.escape(message)):
        spec(work, resume_args=text)
