"""The rungs of a ladder: their shapes, their batch sizes, and what of the job they leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import JobSpec, Script, Task, Work, build_spec
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.ladder import find_rungs, rung_request
from clusterrun.submit.request import WAITS_FOR_SUCCESS, Request
from clusterrun.worker.tasks import configure, lm, sft
from clusterrun.worker.training.settings import batch_sizes


def request(work: Work, **options: Any) -> Request:
    values = {name.replace("_", "-"): Value(value, f"--{name}") for name, value in options.items()}
    values["python"] = Value("/usr/bin/python3", "default")
    if isinstance(work, Task):
        values["set"] = Value(dict(work.settings), "--set")
    return Request(Path("/p"), values, work, [], JobPython("/usr/bin/python3"), {})


def rungs(work: Work, **options: Any) -> list[JobSpec]:
    """The specification of each rung, the second after job 7 and so on."""
    whole = request(work, **options)
    spec = build_spec(whole.values, whole.work)
    made = []
    for number, shape in enumerate(find_rungs(spec), 1):
        changed = rung_request(whole, spec, number, shape, JobId(str(5 + number)) if number > 1 else None)
        made.append(build_spec(changed.values, changed.work))
    return made


def settings(spec: JobSpec) -> dict[str, Any]:
    assert isinstance(spec.work, Task)
    return dict(spec.work.settings)


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({"nodes": 2, "gpus_per_node": 4}, [(1, 1, 1), (1, 4, 4), (2, 4, 4)]),
        ({"nodes": 4, "gpus_per_node": 1}, [(1, 1, 1), (4, 1, 1)]),
        ({"gpus_per_node": 2}, [(1, 1, 1), (1, 2, 2)]),
        ({"nodes": 2, "gpus_per_node": 0, "tasks_per_node": 3}, [(1, 1, 0), (1, 3, 0), (2, 3, 0)]),
        ({"nodes": 2, "gres": "gpu:a100:4"}, [(1, 1, None), (1, 4, None), (2, 4, None)]),
    ],
)
def test_one_process_then_one_node_then_all_nodes(options: dict[str, Any], shapes: list[Any]) -> None:
    made = rungs(Script("/p/train.py"), **options)
    assert [(spec.nodes, spec.tasks_per_node, spec.gpus_per_node) for spec in made] == shapes


def test_each_rung_waits_for_the_one_before_and_is_cancelled_if_that_fails() -> None:
    made = rungs(Script("/p/train.py"), nodes=2, gpus_per_node=2, dependency="afterok:3", sbatch_arg=["--hold"])
    assert [spec.directive("dependency") for spec in made] == ["afterok:3", "afterok:7", "afterok:8"]
    sources = [spec.sources["dependency"].source for spec in made]
    assert sources[0] != WAITS_FOR_SUCCESS and sources[1:] == [WAITS_FOR_SUCCESS, WAITS_FOR_SUCCESS]


def test_the_last_rung_is_the_job_itself_and_the_others_are_short() -> None:
    task = Task("lm", (("steps", "500"), ("save_path", "model"), ("checkpoint_dir", "c"), ("lr", "1e-3")))
    first, second, last = rungs(task, nodes=2, gpus_per_node=2, nodelist="n1,n2", job_name="x" * 40)
    for spec in (first, second):
        assert settings(spec)["steps"] == 20 and settings(spec)["schedule"] == "constant"
        assert settings(spec)["save_path"] == settings(spec)["checkpoint_dir"] == ""
        assert spec.directive("nodelist") == ""
    assert settings(last) == dict(task.settings) and last.directive("nodelist") == "n1,n2"
    assert [spec.job_name for spec in (first, second, last)] == ["x" * 34 + "-rung1", "x" * 34 + "-rung2", "x" * 40]


@pytest.mark.parametrize(("given", "steps"), [({"steps": 5}, 5), ({"steps": 0}, 20), ({"log_every": 50}, 50)])
def test_a_short_rung_has_a_logged_step_and_no_more_steps_than_the_job(given: dict[str, Any], steps: int) -> None:
    assert settings(rungs(Task("lm", tuple(given.items())), gpus_per_node=2)[0])["steps"] == steps


@pytest.mark.parametrize(
    ("task", "given", "sizes"),
    [
        (lm, [], (16, 4)),
        (sft, [], (8, 2)),
        (lm, ["global_batch_size=64"], (64, 16)),
        (lm, ["global_batch_size=64", "micro_batch_size=2"], (64, 2)),
        (lm, ["global_batch_size=64", "grad_accum_steps=4"], (64, 4)),
    ],
)
def test_every_rung_has_the_same_global_and_micro_batch(task: Any, given: list[str], sizes: tuple[int, int]) -> None:
    for ranks, ladder in ((1, 4), (2, 4), (4, 0)):
        found = batch_sizes(configure(task.Config, [*given, f"ladder={ladder}"]), ranks)
        assert (found.global_batch_size, found.micro_batch_size) == sizes, "accumulation makes up the rest"


def test_sizes_per_rank_alone_let_the_global_batch_grow_as_in_the_guides() -> None:
    made = rungs(Task("lm", (("micro_batch_size", 4),)), nodes=2, gpus_per_node=2)
    configs = [configure(lm.Config, [f"{key}={value}" for key, value in settings(spec).items()]) for spec in made]
    found = [batch_sizes(one, spec.world_size) for one, spec in zip(configs, made, strict=True)]
    assert [one.global_batch_size for one in found] == [4, 8, 16]


def test_what_cannot_be_a_ladder_is_refused() -> None:
    with pytest.raises(RequestError, match="needs a job with more than one process"):
        rungs(Task("lm"), gpus_per_node=1)
    with pytest.raises(RequestError, match="cannot be combined with --accelerate-config"):
        rungs(Script("/p/t.py"), gpus_per_node=2, launcher="accelerate", accelerate_config="/p/c.yaml")
