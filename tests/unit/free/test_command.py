"""`free` and `--partition auto` where Slurm is absent, silent or says strange things; and what `free` loads."""

from __future__ import annotations

import json

from tests.process.test_startup import imported
from tests.support.command_desk import Desk


def test_without_slurm_it_tells_of_this_machine(desk: Desk) -> None:
    desk.without_slurm()
    desk.set(CUDA_VISIBLE_DEVICES="0,1")
    assert desk.type("free").out == "Slurm not found; jobs run on this machine, which has 2 GPUs\n"
    assert desk.type("free", "--json").data == {"scheduler": "local", "gpus": 2}
    said = desk.type("free", "--scheduler", "slurm")
    assert said.status == 3 and "Slurm is not available" in said.err


def test_this_machine_beside_a_slurm(desk: Desk) -> None:
    desk.set(CUDA_VISIBLE_DEVICES="0,1")
    out = desk.type("free", "--scheduler", "local").out
    assert out == "local jobs run on this machine, which has 2 GPUs\n", "there is a Slurm, though nobody asked for it"


def test_a_slurm_that_does_not_answer(desk: Desk) -> None:
    assert desk.type("list").status == 0  # the cluster's facts are known from now on
    desk.slurm.answer("scontrol", err="slurm_load_node error: Unable to contact slurm controller\n", status=1)
    said = desk.type("free")
    assert said.status == 3 and said.out == "" and "Unable to contact slurm controller" in said.err
    said = desk.type("free", "--json")
    assert json.loads(said.out)["error"]["exit_code"] == 3
    said = desk.type("submit", "--partition", "auto", "--", "train.py")
    assert said.status == 3 and desk.slurm.count("sbatch") == 0 and desk.files().keys() == {"train.py"}


def test_a_wrong_shape_asks_nobody(desk: Desk) -> None:
    for words in (["--nodes", "0"], ["--gpus-per-node", "-1"], ["--time", "soon"], ["2x4"], ["--gpu-per-node", "4"]):
        said = desk.type("free", *words)
        assert said.status == 2 and "Traceback" not in said.err, words
    assert {call[0] for call in desk.slurm.calls} <= {"scontrol", "sacctmgr"}


def test_auto_far_from_a_cluster_renders_without_a_partition(desk: Desk) -> None:
    desk.without_slurm()
    said = desk.type("render", "--partition", "auto", "--python", "/usr/bin/env", "--", "train.py")
    assert said.status == 0 and "--partition" not in said.out and "so the script does not set one" in said.err


def test_auto_on_this_machine_is_ignored_as_partitions_are(desk: Desk) -> None:
    said = desk.type("render", "--scheduler", "local", "--partition", "auto", "--", "train.py")
    assert said.status == 0 and "the local scheduler ignores --partition" in said.err


def test_what_is_free_loads_neither_jinja2_nor_submitit(desk: Desk) -> None:
    desk.slurm.answer("scontrol", "PartitionName=gpu\n   State=UP\n\n")
    found = imported("free")
    assert "clusterrun.free.snapshot" in found
    assert not found & {"torch", "submitit", "jinja2", "transformers", "cloudpickle", "rich"}
