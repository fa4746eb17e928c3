"""The verb `check`: typed mistakes get one line, a job's options reach the plan, findings are printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.base.job import JobId
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.render import work_argv
from clusterrun.jobspec.spec import Check
from clusterrun.records.store import Store
from clusterrun.state.reconcile import Target
from clusterrun.submit.request import SubmitArgs
from clusterrun.testing import FakeScheduler
from tests.support.command_desk import Desk, refused
from tests.support.run_records import attempt, submitted


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("5", "6"), "give either one job id or options for a new job"),
        (("5", "--nodes", "2"), "give either one job id or options for a new job"),
        (("4sft",), "not a job id: '4sft'"),
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
    plan = cluster.plan(SubmitArgs(flags=flags, work=Check()))
    assert work_argv(plan.spec) == ("check",)
    assert (plan.spec.launcher, plan.spec.requeue, plan.record.name, plan.record.what) == (
        "srun", False, "check", "check",
    )  # fmt: skip
    assert "CR_WORK=(check)" in plan.script


def test_job_of_another_tool_has_no_records(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "find", lambda self, text: Target(text, None, JobId(text)))
    said = desk.type("check", "7", "--json")
    assert said.status == 4
    assert "there is no clusterrun record of job 7" in json.loads(said.out)["error"]["message"]


def test_submit_check_measures_in_the_job_before_its_work(tmp_path: Path) -> None:
    cluster = Cluster(cwd=tmp_path, environ={"CLUSTERRUN_STATE": str(tmp_path / "state")}, scheduler=FakeScheduler())
    args = {"nodes": 2, "gres": "gpu:4"}
    assert "--check-gpus" not in cluster.plan(SubmitArgs.of(job="lm", **args)).script
    assert "--check-gpus 4" in cluster.plan(SubmitArgs.of(job="lm", check=True, **args)).script


REPORT = {
    "version": 1, "ok": False, "backend": "gloo", "ranks": 2, "gpus_per_node": 2,
    "findings": [{"status": "broken", "check": "devices", "text": "n2 has 1 of 2 GPUs", "action": "drain it",
                  "where": ["n2"]}],
    "nodes": [{"node": "n2", "gpus": 1, "tflops": 0.0187, "memory_gib": 20.2, "disk_gib": None,
               "clock_offset_s": -0.004, "busbw_in_node": None, "busbw_between_nodes": 46.6e9, "versions": {}}],
    "links": [{"kind": "all", "nodes": ["n1", "n2"], "ranks": 2, "size": 4096, "busbw": 6.25e6, "correct": True,
               "error": ""}],
}  # fmt: skip


def test_report_of_an_earlier_check_is_shown_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submitted(Store(desk.project, desk.project / "state"))
    attempt(run, check=REPORT)
    monkeypatch.setattr(Cluster, "find", lambda self, text: Target(text, run))
    said = desk.type("check", "101")
    assert said.status == 1
    assert said.out.splitlines() == [
        "\t".join(("node", "GPUs", "TFLOP/s", "memory", "disk", "clock", "in node", "between nodes")),
        "\t".join(("n2", "1 of 2", "0.0187", "20 GiB", "", "-0.00 s", "", "46.6 GB/s")),
        "all-reduce over 2 ranks (gloo): 4 KiB at 6.25 MB/s",
        "   broken  devices: n2 has 1 of 2 GPUs",
        "           do: drain it",
    ]
    assert json.loads(desk.type("check", "101", "--json").out)["data"]["findings"] == REPORT["findings"]
