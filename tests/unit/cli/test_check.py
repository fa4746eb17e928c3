"""The verb `check`: typed mistakes get one line, a job's options reach the plan, findings are printed."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterrun.cli import check
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.render import work_argv
from clusterrun.records.store import Store
from clusterrun.submit.request import SubmitArgs
from tests.command_desk import Desk, refused
from tests.run_records import attempt, submitted


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
    message, _ = refused(desk, "check", *words)
    assert message.startswith(line)


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
    assert said.status == 4
    assert "no records of job 7" in json.loads(said.out)["error"]["message"]


@pytest.mark.parametrize(("stages", "hang"), [(("done", "links"), True), (("links", "gemm"), False)])
def test_job_whose_ranks_hang_after_others_have_ended_is_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: tuple[str, str], hang: bool
) -> None:
    run = submitted(Store(tmp_path, tmp_path / "state"))
    for rank, stage in enumerate(stages):
        document = {"rank": rank, "local_rank": 0, "node": f"n{rank}", "stage": stage}
        (attempt(run) / f"rank-{rank}.check").write_text(json.dumps(document))
    clock = [100.0]
    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda s: None))
    patience = check.Patience(run)
    patience.sleep(1)
    clock[0] += check.PATIENCE / 2
    patience.sleep(1)
    clock[0] += check.PATIENCE
    with pytest.raises(check.RanksHangError) if hang else nullcontext():
        patience.sleep(1)
