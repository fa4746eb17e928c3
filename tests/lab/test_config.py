"""The lab's configuration text, read without a cluster."""

from pathlib import Path

import pytest

from lab import config
from lab.cluster import Lab
from lab.errors import LabError
from lab.query import parse_job


def text(settings: list[str], **changes: object) -> str:
    values: dict = {
        "cluster": "x", "folder": Path("/tmp/x"), "host": "me", "address": "198.18.1.254", "ctld_port": 21010,
        "dbd_port": 21011, "nodes": {"x-node1": "198.18.1.1"}, "nodes_expr": "x-node1", "cpus": 16,
        "memory_mb": 1000, "gpus": 4, "gpu_type": "", "accounting": True,
    }  # fmt: skip
    return config.override(config.slurm_lines(**{**values, **changes}), config.parse_settings(settings))


def test_a_setting_takes_the_place_of_the_labs_own_whatever_its_case():
    lines = text(["slurmdtimeout=77", "KillWait=", "Prolog=/bin/true"]).splitlines()
    assert "slurmdtimeout=77" in lines
    assert not [line for line in lines if line.startswith(("SlurmdTimeout", "KillWait"))]
    assert lines[-1] == "Prolog=/bin/true"


def test_partitions_are_told_apart_by_name():
    lines = text(["PartitionName=short Nodes=ALL MaxTime=2", "PartitionName=debug Nodes=ALL"]).splitlines()
    assert "PartitionName=short Nodes=ALL MaxTime=2" in lines
    assert "PartitionName=debug Nodes=ALL" in lines
    assert len([line for line in lines if line.startswith("PartitionName=")]) == 4


@pytest.mark.parametrize("bad", ["SlurmdTimeout", "=3", "a b=3", "A=1\nB=2"])
def test_a_setting_without_a_key_is_refused(bad):
    with pytest.raises(ValueError, match="KEY=VALUE"):
        config.parse_settings([bad])


def test_without_accounting_and_without_gpus():
    plain = text([], accounting=False, gpus=0)
    assert "AccountingStorageType" not in plain, "newer versions refuse accounting_storage/none, their default"
    assert "gpu:" not in plain
    assert config.gres_text(Path("/tmp/x"), 0, "") == ""


def test_gpus_with_a_type():
    assert "Gres=gpu:a100:4" in text([], gpu_type="a100")
    assert "Type=a100 File=/tmp/x/dev/nvidia[0-3]" in config.gres_text(Path("/tmp/x"), 4, "a100")


def test_a_jobs_fields_with_spaces_and_equals_signs():
    fields = parse_job("JobId=3 JobName=a b UserId=me(0) Comment=x=1 y Command=/bin/a b TRES=cpu=1,mem=2 CPUs/Task=1")
    assert fields["JobName"] == "a b"
    assert fields["Comment"] == "x=1 y"
    assert fields["TRES"] == "cpu=1,mem=2"
    assert fields["CPUs/Task"] == "1"


@pytest.mark.parametrize("name", ["", "-a", "a--b", "A", "a/b", "1a", "a" * 17])
def test_names_that_cannot_be_part_of_a_path_and_a_host_name_are_refused(name):
    with pytest.raises(LabError):
        Lab(name=name)


def test_the_dev_labs_nodes_have_plain_names():
    assert Lab(nodes=2).node_names == ["node1", "node2"]
    assert Lab(name="b-1", nodes=2).node_names == ["b-1-node1", "b-1-node2"]
