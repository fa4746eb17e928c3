"""Ranks in a container, under both schedulers. A program stands in for apptainer; pyxis has golden scripts only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.git_projects import make_repository, write_files
from tests.support.installed_command import ROOT, Job, Site

APPTAINER = ROOT / "tests" / "data" / "containers"
TRAIN = """
import os, torch, torch.distributed as dist
from pathlib import Path
from part import NAME
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
shown = [Path(p).exists() for p in ("/tmp/data/rows.csv", os.environ["HIDDEN"])]
print(NAME, "of", int(total), os.environ["APPTAINER_CONTAINER"], os.environ["HF_TOKEN"], shown, os.getcwd(), flush=True)
dist.destroy_process_group()
"""
HIDES = subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


def submit(site: Site, *words: str, **environ: str) -> Job:
    env = {"PATH": f"{APPTAINER}:{site.env['PATH']}", "HIDDEN": str(site.home), **environ}
    return site.submit("--gpus-per-node", "0", *words, env=env)


def starts(project: Path) -> list[str]:
    """The commands that were started in the container so far."""
    path = project / "torch.sif.starts"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module", autouse=True)
def project(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    (data / "rows.csv").touch()
    make_repository(site.project, {
        "clusterrun.toml": f"setup = ['PATH={APPTAINER}:$PATH', 'echo batch [$APPTAINER_CONTAINER]']\n",
        "src/train.py": TRAIN,
        "src/part.py": 'NAME = "one"\n',
        "jobs/inside.toml": f'script = "src/train.py"\nnodes = 2\n[container]\nimage = "torch.sif"\n'
        f'mounts = ["{ROOT}:{ROOT}", "{data}:/tmp/data"]\npython = "{sys.executable}"\n',
        "torch.sif": "",
    })  # fmt: skip
    return site.project


def test_only_the_ranks_run_in_the_container_which_has_the_project_and_the_mounts(site: Site, project: Path) -> None:
    before = len(starts(project))
    job = submit(site, "inside", "--secret", "HF_TOKEN", HF_TOKEN="a-token-of-mine")
    site.wait_state(job, "COMPLETED")
    lines = job.out.read_text().splitlines()
    image, shown = project / "torch.sif", [True, not HIDES]
    assert lines[0] == "batch []"
    assert {f"{rank}: one of 2 {image} a-token-of-mine {shown} {project}" for rank in range(2)} <= set(lines), lines
    assert [line.split()[0] for line in starts(project)[before:]] == [sys.executable] * 2
    script = (job.run_dir / "script.sh").read_text()
    assert "a-token-of-mine" not in script and f"{project}:{project}," in script


def test_the_ranks_of_a_launcher_run_in_the_container_of_its_node_with_the_saved_code(
    site: Site, project: Path
) -> None:
    before = len(starts(project))
    gate = site.submit("--gpus-per-node", "0", "--no-snapshot", "--", "sleep", "600")
    job = submit(site, "inside", "--nodes", "1", "--launcher", "torchrun", "--tasks-per-node", "2", "--dependency",
                 f"afterany:{gate.id}", HF_TOKEN="-")  # fmt: skip
    write_files(project, {"src/part.py": 'NAME = "two"\n'})
    site.cli("cancel", gate.id)
    site.wait_state(job, "COMPLETED")
    write_files(project, {"src/part.py": 'NAME = "one"\n'})
    lines = [line for line in job.out.read_text().splitlines() if " of 2 " in line]
    assert sorted(line[: len("0: one")] for line in lines) == [f"{rank}: one" for rank in range(2)]
    assert len(starts(project)) == before + 1, "one for the node's two ranks"


def test_an_image_that_fails_to_start_ends_the_job_with_its_message(site: Site, project: Path) -> None:
    job = submit(site, "inside", "--no-check", "--container-image", str(project / "none.sif"))
    site.wait_state(job, "FAILED")
    assert "FATAL:   could not open image" in job.err.read_text()
    assert "could not open image" in site.cli("why", job.id).stdout
    assert os.listdir(job.attempts()[-1])
