"""Parts of accelerate's YAML reach the script, and a YAML of another shape is refused."""

from __future__ import annotations

import pytest

from tests.support.installed_command import SCRIPTS, Site
from tests.support.rank_files import ends_of

YAML = """compute_environment: LOCAL_MACHINE
distributed_type: {}
mixed_precision: bf16
num_machines: 1
num_processes: {}
machine_rank: 0
main_training_function: main
"""
FSDP = YAML.format("FSDP", 2) + "fsdp_config:\n  fsdp_version: 2\n"


@pytest.mark.parametrize(
    ("ranks", "text", "shown"),
    [
        (2, YAML.format("MULTI_GPU", 2), "precision bf16 fsdp None accelerator bf16 of 2"),
        (2, FSDP, "precision bf16 fsdp true"),
        (1, YAML.format("'NO'", 1), "precision bf16 fsdp None accelerator bf16 of 1"),
    ],
    ids=["multi", "fsdp", "one"],
)
def test_precision_and_fsdp_reach_the_script(site: Site, ranks: int, text: str, shown: str) -> None:
    (site.project / "c.yaml").write_text(text)
    words = ("--tasks-per-node", str(ranks), "--launcher", "accelerate", "--accelerate-config", "c.yaml")
    job = site.submit("--gpus-per-node", "0", *words, "--", str(SCRIPTS / "shows_precision.py"))
    assert site.wait_state(job, "COMPLETED", "FAILED", timeout=180)["state"] == "COMPLETED", job.err.read_text()
    lines = [line for line in job.out.read_text().splitlines() if "precision" in line]
    assert sorted(lines) == [f"{rank}: {shown}" for rank in range(ranks)]
    assert {rank: end["status"] for rank, end in ends_of(job.attempts()[-1]).items()} == dict.fromkeys(range(ranks), 0)


def test_fsdp_of_the_default_file_in_the_home_is_not_lost(site: Site) -> None:
    default = site.home / ".cache" / "huggingface" / "accelerate" / "default_config.yaml"
    default.parent.mkdir(parents=True)
    default.write_text(FSDP.replace("num_processes: 2", "num_processes: 8"))
    words = ("--gpus-per-node", "0", "--tasks-per-node", "1", "--launcher", "accelerate")
    try:
        job = site.submit(*words, "--", str(SCRIPTS / "shows_precision.py"))
        assert site.wait_state(job, "COMPLETED", "FAILED", timeout=180)["state"] == "COMPLETED", job.err.read_text()
    finally:
        default.unlink()
    assert job.out.read_text().count("precision bf16 fsdp true") == 1


def test_a_yaml_of_another_shape_is_refused(site: Site) -> None:
    (site.project / "c.yaml").write_text(YAML.format("MULTI_GPU", 8))
    words = ("--gpus-per-node", "0", "--launcher", "accelerate", "--accelerate-config", "c.yaml")
    done = site.cli("submit", *site.scheduler, *words, "--", str(SCRIPTS / "shows_precision.py"), status=2)
    assert "sets num_processes to 8, but the job uses 1" in done.stderr
