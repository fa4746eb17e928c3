"""What a command imports: the start-up path stays small, and asking about 200 jobs is two questions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from clusterrun.base.job import JobId
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder.submissions import SubmissionRecord
from clusterrun.scheduler.slurm.sacct import _SACCT
from clusterrun.scheduler.slurm.squeue import _JOB_FORMATS
from clusterrun.scheduler.slurm.values import SEP
from tests.support.command_desk import Desk
from tests.support.patience import HUNG


def imported(*words: str) -> set[str]:
    """The top-level packages that a command imports, and those of ours."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "clusterrun", *words], capture_output=True, text=True, timeout=HUNG
    )
    assert "Traceback" not in done.stderr
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {name.partition(".")[0] for name in names} | {name for name in names if name.startswith("clusterrun.")}


def test_help_loads_almost_nothing(desk: Desk) -> None:
    found = imported("--help")
    assert "click" in found
    assert {name for name in found if name.startswith("clusterrun.")} == {
        "clusterrun.cli", "clusterrun.cli.common", "clusterrun.cli.common.session",
        "clusterrun.base", "clusterrun.base.errors",
    }  # fmt: skip
    assert not found & {"torch", "submitit", "jinja2", "rich", "transformers", "subprocess", "dataclasses", "json"}
    assert not found & {"difflib", "shutil", "pathlib"}


@pytest.mark.parametrize(
    "words", [["list"], ["status", "1"], ["logs", "1"], ["cancel", "1"], ["wait", "1"], ["status", "--help"]]
)
def test_asking_loads_neither_jinja2_nor_submitit(desk: Desk, words: list[str]) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    found = imported(*words)
    assert "clusterrun.cluster" in found
    assert not found & {"torch", "submitit", "jinja2", "transformers", "cloudpickle", "rich"}


def packages(found: set[str]) -> set[str]:
    """The packages of ours among what is imported."""
    return {name.split(".")[1] for name in found if name.startswith("clusterrun.")}


@pytest.mark.parametrize("words", [["list"], ["status", "1"]])
def test_asking_reads_no_logs_and_no_job_files(desk: Desk, words: list[str]) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    found = imported(*words)
    assert not packages(found) & {"logs", "free", "why", "jobspec", "top", "worker"}
    assert not found & {"secrets", "socket", "hashlib", "ctypes", "difflib", "tempfile", "logging"}


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_submit_loads_no_log_reader_no_worker_and_no_states(desk: Desk, words: list[str]) -> None:
    desk.slurm.answer("sbatch", "123\n")
    found = imported("submit", *words, "--", "train.py")
    assert "clusterrun.submit.plan" in found and "jinja2" in found
    assert not packages(found) & {"logs", "why", "top", "worker", "state"}
    assert not found & {"clusterrun.cli.follow", "torch", "rich"}
    assert not found & {"clusterrun.records.sweeps", "clusterrun.submit.shell_scripts"}
    assert "--dry-run" not in words or "submitit" not in found


def test_render_loads_neither_submitit_nor_torch(desk: Desk) -> None:
    found = imported("render")
    assert "jinja2" in found and not found & {"torch", "submitit", "rich"}
    assert not found & {"clusterrun.submit.launchers", "clusterrun.submit.accelerate_yaml"}  # no typed command


def stage(desk: Desk, count: int) -> list[RunRecord]:
    """Records of submitted runs."""
    store, runs = Store(desk.project, desk.state), []
    now = int(time.time()) - 600
    for number in range(count):
        token = f"aaaa{number:04}".translate(str.maketrans("0123456789", "bcdefghijk")) + "zzzzzzzz"
        run_id, at = f"20261121-{number:06}-aaaaaa", now + number
        record = RunRecord(
            run_id=run_id, run_dir=store.runs / run_id, root=desk.project, name=f"job{number}", what="train.py",
            scheduler="slurm", cluster="desk", user="me", at=at, nodes=1, workers_per_node=1, shared=False, sources={},
            submissions=(SubmissionRecord(token=token, at=at),),
        )  # fmt: skip
        store.stage(record, {}, "#!/bin/bash\n")
        runs.append(store.commit(record, JobId(str(1000 + number))))
    return runs


def test_list_of_200_jobs_asks_twice(desk: Desk) -> None:
    runs = stage(desk, 200)
    live, past = runs[:120], runs[120:]
    rows = []
    for run in live:
        cells = {"%i": str(run.job_id), "%A": str(run.job_id), "%T": "RUNNING", "%D": "1", "%M": "1:00",
                 "%j": f"{run.name}.{run.submission.token[:8]}"}  # fmt: skip
        rows.append(SEP.join(cells.get(column, "x") for column in _JOB_FORMATS))
    desk.slurm.answer("squeue", "\n".join(rows) + "\n")
    rows = []
    for run in past:
        accounted = {"JobID": str(run.job_id), "State": "COMPLETED", "ExitCode": "0:0", "End": str(int(time.time())),
                     "JobName": f"{run.name}.{run.submission.token[:8]}"}  # fmt: skip
        rows.append(SEP.join(accounted.get(column, "1") for column in _SACCT))
    desk.slurm.answer("sacct", "\n".join(rows) + "\n")

    said = desk.process("list", "--all", "--json")
    assert said.status == 0, said.err
    states = {state["name"]: state["state"] for state in json.loads(said.out)["data"]}
    assert len(states) == 200
    assert list(states.values()).count("RUNNING") == 120 and list(states.values()).count("COMPLETED") == 80
    asked = [call[0] for call in desk.slurm.calls if call[0] != "scontrol"]
    assert asked == ["squeue", "sacct"]
    assert desk.slurm.count("scontrol") == 1, "the cluster's facts are asked for once a day"

    desk.slurm.forget()
    assert len(json.loads(desk.process("list", "--json").out)["data"]) == 120
    assert [call[0] for call in desk.slurm.calls] == ["squeue"], "ends that were seen are not asked for again"

    desk.slurm.forget()
    some = [str(run.job_id) for run in runs]
    assert len(json.loads(desk.process("status", "--json", *some).out)["data"]) == 200
    assert len(desk.slurm.calls) <= 2


def test_a_silent_controller_is_asked_once(desk: Desk) -> None:
    stage(desk, 20)
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    said = desk.process("list", "--json")
    assert said.status == 0 and {state["state"] for state in json.loads(said.out)["data"]} == {"UNKNOWN"}
    assert desk.slurm.count("squeue") == 1 and desk.slurm.count("sacct") == 0


def test_nothing_is_left_in_the_environment_of_our_commands(desk: Desk) -> None:
    desk.set(SQUEUE_FORMAT="%i", SACCT_FORMAT="JobID", SQUEUE_USERS="nobody")
    path = desk.slurm.folder / "squeue"
    path.write_text(f"#!/bin/sh\nenv >{desk.slurm.folder}/environment\n")
    stage(desk, 1)
    desk.process("list")
    names = {line.partition("=")[0] for line in (desk.slurm.folder / "environment").read_text().splitlines()}
    assert (
        not {name for name in names if name.startswith(("SQUEUE_", "SACCT_"))} and os.environ["SQUEUE_FORMAT"] == "%i"
    )


def test_completing_loads_neither_slurm_nor_a_table_drawer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_CLUSTERRUN_COMPLETE", "bash_complete")
    for line in ("clusterrun ", "clusterrun logs ", "clusterrun submit sft --set l"):
        monkeypatch.setenv("COMP_LINE", line)
        found = imported()
        assert "clusterrun.cli.common.complete" in found, line
        assert not found & {"torch", "submitit", "jinja2", "rich", "textual", "subprocess", "difflib"}, line
