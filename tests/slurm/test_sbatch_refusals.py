"""A real Slurm's refusals: shown once, word for word, with a hint, and nothing left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab import releases
from lab.cluster import Lab
from tests.support.command_desk import Desk

LIGHT = ("--gpus-per-node", "0", "--tasks-per-node", "1")


@pytest.fixture(scope="module")
def strict_lab() -> Iterator[Lab]:
    """A small cluster that enforces accounts, limits and what its partitions allow."""
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    enforced = {"AccountingStorageEnforce": "associations,limits,qos", "EnforcePartLimits": "ALL"}
    with Lab(name=f"t{os.getpid()}q", nodes=2, settings=enforced) as lab:
        for words in (("account", "physics"), ("user", "root", "account=physics"), ("qos", "tight")):
            done = lab.run(["sacctmgr", "-i", "add", *words])
            assert done.returncode == 0, done.stdout + done.stderr
        for words in (("qos", "tight", "set", "MaxSubmitJobsPerUser=0"), ("user", "root", "set", "qos+=tight")):
            done = lab.run(["sacctmgr", "-i", "modify", *words])
            assert done.returncode == 0, done.stdout + done.stderr
        yield lab


REFUSALS = {
    "partition": (["--partition", "nope"], "Invalid partition name specified", "sinfo -s"),
    "account": (["--account", "nope"], "Invalid account", "sacctmgr"),
    "qos": (["--qos", "nope"], "Invalid qos specification", "sacctmgr"),
    "limit": (["--qos", "tight"], "Job violates accounting/QOS policy", "limit"),
    "constraint": (["--constraint", "nope"], "Invalid feature specification", "sinfo"),
    "nodes": (["--nodes", "99"], "More processors requested than permitted", "--nodes"),
    "memory": (["--mem", "900G"], "Memory specification can not be satisfied", "--mem"),
    "gpus": (["--gpus-per-node", "64"], "Requested node configuration is not available", "sinfo"),
    "gres": (["--gres", "nope:1"], "Invalid generic resource (gres) specification", "sinfo"),
    "nodelist": (["--nodelist", "nope"], "Invalid node name specified", "sinfo -N"),
    "reservation": (["--reservation", "nope"], "Requested reservation is invalid", "reservation"),
    "dependency": (["--dependency", "nosuch:1"], "Job dependency problem", "dependency"),
    "time": (["--partition", "short", "--time", "1-00:00:00"], "Requested time limit is invalid", "sinfo"),
    "cpus": (["--cpus-per-task", "500"], "More processors requested than permitted", "--cpus-per-task"),
    "option": (["--sbatch-arg=--no-such-option"], "unrecognized option '--no-such-option'", "sbatch --help"),
    "begin": (["--sbatch-arg=--begin=yestermorrow"], "Invalid --begin specification", "man sbatch"),
    "mail": (["--mail-type", "SOMETIMES"], "Invalid --mail-type specification", "man sbatch"),
}


@pytest.mark.parametrize(("options", "words", "hint"), REFUSALS.values(), ids=REFUSALS)
def test_a_real_refusal(
    strict_lab: Lab, desk: Desk, options: list[str], words: str, hint: str
) -> None:  # fmt: skip
    path = os.environ["PATH"].partition(":")[2]
    path = releases.search_path(strict_lab.slurm, f"{releases.SEARCH_PATH}:{path}")
    desk.set(PATH=path, SLURM_CONF=strict_lab.env["SLURM_CONF"])
    said = desk.type("submit", "--no-check", *LIGHT, *options, "--", "train.py")
    assert said.status == 3, said
    assert said.err.count(words) == 1 and f"  | sbatch: {'error: ' * ('error: ' in said.err)}" in said.err, said.err
    lines = said.err.splitlines()
    assert lines[-1].startswith("  hint: ") and hint in lines[-1], said.err
    assert said.out == "" and not list(desk.project.glob(".clusterrun/runs/*"))
    # Slurm itself shows some refusals as jobs for a while: FAILED (BadConstraints)
    assert set(strict_lab.run(["squeue", "-h", "--states=all", "-o", "%T"]).stdout.split()) <= {"FAILED"}
