"""--stage-env on two nodes: the ranks run from a copy of their environment on each node's disk, which is removed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.installed_command import ONE_RANK, Job, Site, until

Submit = Callable[..., Job]
SCRIPT = """
import json, os, pathlib, sys
seen = {"prefix": sys.prefix, "executable": sys.executable, "path": os.environ["PATH"].split(":")[0],
        "mode": oct(os.stat(sys.prefix).st_mode & 0o777), "left": os.listdir(os.path.dirname(sys.prefix))}
pathlib.Path(sys.argv[1], "rank" + os.environ["RANK"]).write_text(json.dumps(seen))
if "wait" in sys.argv:
    import signal
    signal.pause()
"""


#: The script below a shell: ranks of a command import no torch.
COMMAND = ("sh", "-c", 'exec python where.py "$@"', "sh")


@pytest.fixture(scope="module")
def venv(site: Site) -> Path:
    """A small environment: its packages are those of the tests' own, which a .pth file names."""
    folder = site.home / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (own,) = Path(sys.prefix).glob("lib/python*/site-packages")
    (packages / "dev.pth").write_text(f"{own}\n")
    (site.project / "where.py").write_text(SCRIPT)
    return folder


@pytest.fixture
def submit(site: Site, venv: Path, lab: Lab, tmp_path: Path) -> Iterator[Submit]:
    def make(*words: str, options: tuple[str, ...] = (), program: tuple[str, ...] = COMMAND) -> Job:
        return site.submit(
            "--stage-env", "--venv", str(venv), "--nodes", "2", *ONE_RANK, "--env", f"TMPDIR={lab.local_disk}",
            *options, "--", *program, str(tmp_path), *words,
        )  # fmt: skip

    yield make
    site.close()


def seen(tmp_path: Path) -> list[dict[str, str]]:
    return [json.loads((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)]


def local_files(lab: Lab) -> list[str]:
    """What is on the local disks of the first two nodes."""
    nodes = ",".join(lab.node_names[:2])
    return lab.run(["srun", "-N2", "-w", nodes, "--overlap", "ls", str(lab.local_disk)]).stdout.split()


def test_the_ranks_use_a_copy_that_is_gone_after_the_end(
    site: Site, lab: Lab, venv: Path, submit: Submit, tmp_path: Path
) -> None:
    job = submit(program=("where.py",))
    assert site.wait_end(job)["status"] == 0
    first, second = seen(tmp_path)
    assert first["prefix"] == second["prefix"] != str(venv)
    assert first["prefix"].startswith(f"{lab.local_disk}/clusterrun-env-{job.id}-") and first["mode"] == "0o700"
    assert first["executable"] == f"{first['prefix']}/bin/python" and first["path"] == f"{first['prefix']}/bin"
    until(lambda: not local_files(lab), 30, lambda: f"left: {local_files(lab)}")
    (line,) = [line for line in job.out.read_text().splitlines() if "Environment:" in line]
    assert f"copied to {first['prefix']} on 2 nodes" in line
    assert f"s from {venv}, " in line and line.endswith(" s from the copy")

    (archive,) = site.project.glob(".clusterrun/cache/environment-*/environment.tar.gz")
    before = archive.stat().st_ino
    assert archive.stat().st_mode & 0o777 == 0o600 and archive.parent.stat().st_mode & 0o777 == 0o700
    options = ("--stage-env", "--venv", str(venv), *ONE_RANK)
    said = site.cli("submit", *site.scheduler, *options, "--", "where.py", str(tmp_path))
    assert "packed before" in said.stderr
    (again,) = site.project.glob(".clusterrun/cache/environment-*/*")
    assert again.stat().st_ino == before


def test_the_copy_is_removed_when_the_job_is_cancelled(site: Site, lab: Lab, submit: Submit, tmp_path: Path) -> None:
    job = submit("wait")
    until(lambda: (tmp_path / "rank0").exists() and (tmp_path / "rank1").exists(), 120, job.err.read_text)
    site.cli("cancel", job.id)
    site.wait_end(job)
    until(lambda: not local_files(lab), 30, lambda: f"left: {local_files(lab)}\n{job.err.read_text()}")


@pytest.mark.parametrize(("free", "why"), [(0, " full there?)"), (20_480, "No space left on device")])
def test_a_full_disk_leaves_the_environment_in_place(
    free: int, why: str, site: Site, lab: Lab, venv: Path, submit: Submit, tmp_path: Path
) -> None:
    node, full = lab.node_names[1], lab.local_disk / "full"
    lab.run(["srun", "-w", node, "sh", "-c", f"head -c 100M /dev/zero >{full}; truncate -s -{free} {full}"])
    try:
        job = submit(options=("--nodelist", ",".join(lab.node_names[:2])))
        assert site.wait_end(job)["status"] == 0
        assert [one["prefix"] for one in seen(tmp_path)] == [str(venv)] * 2
        (line,) = [line for line in job.err.read_text().splitlines() if "environment not copied" in line]
        assert line.startswith("clusterrun: environment not copied to the nodes: ") and why in line
        assert line.endswith(f"; the ranks use {venv}")
        until(lambda: local_files(lab) == ["full"], 30, lambda: f"left: {local_files(lab)}")
    finally:
        lab.run(["srun", "-w", node, "rm", "-f", str(full)])
