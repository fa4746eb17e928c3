"""The verb `check`: typed mistakes get one line, a job's options reach the plan, findings are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.render import work_argv
from clusterrun.submit.request import SubmitArgs
from tests.command_desk import Desk, refused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("5", "6"), "give one job id, or options for a new job, not both"),
        (("5", "--nodes", "2"), "give one job id, or options for a new job, not both"),
        (("sft",), "not a job id: 'sft'"),
        (("--set", "steps=3"), "no such option: --set"),
        (("--nodes", "0"), "--nodes must be at least 1, not 0"),
    ],
)
def test_typed_mistake_is_one_line_and_status_2(desk: Desk, words: tuple[str, ...], line: str) -> None:
    message, hint = refused(desk, "check", *words)
    assert message.startswith(line) and hint


def test_check_does_not_take_the_launcher_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "clusterrun.toml").write_text(
        'launcher = "torchrun"\nmax-restarts = 2\nrequeue = true\npartition = "gpu"\nscheduler = "local"\n'
    )
    cluster = Cluster(cwd=tmp_path, environ={"CLUSTERRUN_STATE": str(tmp_path / "state"), "PATH": "/usr/bin:/bin"})
    flags = {"nodes": Value(2, "--nodes"), "gpus-per-node": Value(0, "--gpus-per-node")}
    plan = cluster.plan(SubmitArgs(flags=flags, check=True))
    assert work_argv(plan.spec) == ("check",)
    assert (plan.spec.launcher, plan.spec.requeue, plan.record.name, plan.record.what) == (
        "srun", False, "check", "check",
    )  # fmt: skip
    assert "CR_WORK=(check)" in plan.script


def test_job_of_another_tool_has_no_records(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "run", lambda self, text: None)
    said = desk.type("check", "7", "--json")
    assert said.status == 2
    assert "not clusterrun's" in json.loads(said.out)["error"]["message"]
