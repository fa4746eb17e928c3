"""What submit sends is what render prints, and says where each value comes from."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.support.command_desk import Desk

SUBMITTED = ["--nodes", "2", "--gpus-per-node", "4", "--time", "0:01:00", "--env", "A=it's", "--setup", "true"]
SUBMITTED += ["--comment", "hello", "--", "train.py", "--lr", "1"]


def test_submit_sends_what_render_prints(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "123\n")
    printed = desk.type("render", *SUBMITTED)
    assert desk.files().keys() == {"train.py"}, "render writes nothing"
    sent = desk.type("submit", "--json", *SUBMITTED)
    assert sent.status == 0, sent.err
    script = (Path(sent.data["run_dir"]) / "script.sh").read_text().split("\n")
    different = [
        (one, two) for one, two in zip(printed.out.split("\n"), script, strict=True) if one != two
    ]  # fmt: skip
    assert [one.partition("=")[0] for one, _ in different] == [
        "#SBATCH --job-name", "export CLUSTERRUN_RUN_ID", "export CLUSTERRUN_RUN_DIR", "export CLUSTERRUN_TOKEN",
    ]  # fmt: skip
    (call,) = [call for call in desk.slurm.calls if call[0] == "sbatch"]
    assert call[1:] == ["--parsable", "--", f"{sent.data['run_dir']}/script.sh"]
    assert sent.data["logs"] == [f"{desk.project}/logs/train_123.{end}" for end in ("out", "err")]


def test_dry_run_prints_a_summary_or_the_script_and_writes_nothing(desk: Desk) -> None:
    said = desk.type("submit", "--dry-run", *SUBMITTED)
    assert said.status == 0 and "nothing was written" in said.err
    assert [line.split(maxsplit=1)[0] for line in said.out.splitlines()] == [
        "nodes", "GPUs", "time", "partition", "python", "command",
    ]  # fmt: skip
    assert "4 per node, 8 ranks" in said.out and "0:01:00" in said.out and "train.py --lr 1\n" in said.out
    said = desk.type("submit", "--dry-run", "--script", *SUBMITTED)
    assert said.status == 0 and said.out.startswith("#!/bin/bash -l\n")
    assert (
        desk.type("submit", "--dry-run", "--json", *SUBMITTED).data["summary"]["partition"] == "the cluster's default"
    )
    assert desk.files().keys() == {"train.py"} and desk.slurm.count("sbatch") == 0
    assert "--script needs --dry-run" in desk.type("submit", "--script", *SUBMITTED).err


def test_render_explains_where_values_come_from(desk: Desk) -> None:
    desk.write("clusterrun.toml", 'partition = "gpu"\n[profile.big]\nnodes = 8\n')
    desk.write("jobs/sft.toml", 'task = "lm"\ntime = "1:00"\nset.steps = 7\n')
    desk.set(SBATCH_ACCOUNT="ours", SBATCH_PARTITION="other")
    said = desk.type("render", "sft", "--explain", "--profile", "big", "--qos", "q", "--set", "lr=1")
    lines = {line.split(" = ")[0]: line for line in said.err.splitlines()}
    told = {
        "partition": "'gpu'  (clusterrun.toml)",
        "nodes": "8  (clusterrun.toml [profile.big])",
        "time": "'1:00'  (jobs/sft.toml)",
        "account": "'ours'  (SBATCH_ACCOUNT)",
        "qos": "'q'  (--qos)",
        "gpus-per-node": "1  (default: GPUs found)",
    }
    for name, words in told.items():
        assert lines[f"clusterrun: {name}"] == f"clusterrun: {name} = {words}"
    assert re.search(r"set = .*\(--set, jobs/sft.toml\)", said.err)


def test_the_profile_for_the_cluster_at_hand_is_used_and_named(desk: Desk) -> None:
    desk.write("clusterrun.toml", '[profile.here]\ncluster = "desk"\nnodes = 8\n[profile.far]\ncluster = "far"\n')
    said = desk.type("render", "--json", "--", "train.py")
    assert json.loads(said.out)["data"]["sources"]["nodes"] == {"value": 8, "source": "clusterrun.toml [profile.here]"}
    dry = desk.type("submit", "--dry-run", "--", "train.py")
    assert "using [profile.here], the profile for cluster desk\n" in dry.err
    said = desk.type("submit", "--profile", "far", "--", "train.py")
    assert said.status == 2 and "profile far is for cluster far; this shell is configured for desk" in said.err
    local = desk.type("submit", "--scheduler", "local", "--dry-run", "--profile", "far", "--", "train.py")
    assert local.status == 0 and "cluster far" not in local.err
    desk.without_slurm()
    assert desk.type("render", "--profile", "far", "--python", sys.executable, "--", "train.py").status == 0


def test_what_only_slurm_understands_is_named_once(desk: Desk) -> None:
    said = desk.type(
        "render", "--scheduler", "local", "--partition", "x", "--qos", "y", "--time", "0:01:00", "--", "train.py"
    )
    assert said.status == 0 and said.err == "clusterrun: the local scheduler ignores --partition, --qos\n"


def test_a_dry_run_on_this_machine_names_no_default_of_a_cluster(desk: Desk) -> None:
    lines = desk.type("submit", "--scheduler", "local", "--dry-run", "--json", "--", "train.py").data["summary"]
    assert (lines["time"], lines["partition"]) == ("no limit", "none (the job runs on this machine)")
