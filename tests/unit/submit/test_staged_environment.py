"""--stage-env at submission: what is packed, when it is packed again, and what is refused."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from clusterrun.submit.request import SubmitArgs, load_request
from tests.support.command_desk import Desk


@pytest.fixture
def venv(desk: Desk) -> Path:
    folder = desk.project / "my env"
    info = folder / "lib/python3.12/site-packages/thing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("thing.py\n")
    (folder / "bin").mkdir()
    for name in ("python", "activate"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (desk.project / "train.py").touch()
    return folder


def submit(desk: Desk, *words: str, status: int = 0) -> str:
    desk.slurm.answer("sbatch", f"{101 + len([*desk.project.glob('.clusterrun/runs/*')])}\n")
    said = desk.type("submit", "--no-check", *words, "--", "train.py")
    assert said.status == status, said.err
    return said.err


def archives(desk: Desk) -> list[Path]:
    return sorted(desk.project.glob(".clusterrun/cache/environment-*/*"))


def test_an_environment_is_packed_once_and_again_after_its_packages_have_changed(desk: Desk, venv: Path) -> None:
    options = "--stage-env", "--venv", str(venv)
    assert f"environment: packing {venv}" in submit(desk, *options)
    (archive,) = archives(desk)
    with tarfile.open(archive) as packed:
        assert {"./pyvenv.cfg", "./bin/python"} <= {*packed.getnames()}
    assert [archive.stat().st_mode & 0o777, archive.parent.stat().st_mode & 0o777] == [0o600, 0o700]
    inode = archive.stat().st_ino
    os.utime(archive, (1, 1))
    assert f"environment: {venv}, packed before" in submit(desk, *options)
    assert archives(desk) == [archive] and archive.stat().st_ino == inode and archive.stat().st_mtime > 1
    (venv / "lib/python3.12/site-packages/thing-1.0.dist-info/RECORD").write_text("thing.py\nmore.py\n")
    assert "packing" in submit(desk, *options) and len(archives(desk)) == 2


def test_an_environment_that_holds_the_project_is_refused(desk: Desk, venv: Path) -> None:
    for name in ("bin", "lib", "pyvenv.cfg"):
        (venv / name).rename(desk.project / name)
    said = submit(desk, "--stage-env", "--venv", str(desk.project), status=2)
    assert "contains the project" in said and "hint: create the environment in a folder of its own" in said
    assert not archives(desk)


def test_byte_code_that_another_process_is_writing_is_left_out(desk: Desk, venv: Path) -> None:
    (venv / "lib/python3.12/site-packages/thing.pyc.140234").write_text("half")
    submit(desk, "--stage-env", "--venv", str(venv))
    with tarfile.open(archives(desk)[0]) as packed:
        assert not [name for name in packed.getnames() if ".pyc." in name]


def test_the_run_names_its_package_and_the_script_has_the_option(desk: Desk, venv: Path) -> None:
    submit(desk, "--stage-env", "--venv", str(venv))
    (record,) = desk.project.glob(".clusterrun/runs/*/environment.json")
    assert json.loads(record.read_text()) == {"archive": str(archives(desk)[0])}
    assert "--stage-env" in (record.parent / "script.sh").read_text()


def test_what_cannot_be_packed_is_refused_and_nothing_is_written(desk: Desk, venv: Path) -> None:
    (venv / "pyvenv.cfg").unlink()
    err = submit(desk, "--stage-env", "--venv", str(venv), status=2)
    assert f"{venv}/bin/python is not in a virtual or conda environment" in err
    (venv / "pyvenv.cfg").touch()
    (desk.project / ".clusterrun/cache").write_text("a file")
    assert f"--stage-env: cannot pack {venv}" in submit(desk, "--stage-env", "--venv", str(venv), status=2)
    assert not [*desk.project.glob(".clusterrun/runs/*")] and desk.slurm.count("sbatch") == 0


def test_the_table_of_a_job_file_has_the_key_stage(desk: Desk, venv: Path) -> None:
    job = desk.project / "job.toml"
    job.write_text('script = "train.py"\n[environment]\nvenv = "my env"\nstage = true\n')
    request = load_request(SubmitArgs(job=str(job)), desk.project, {"PATH": os.environ["PATH"]})
    assert request.values["stage-env"].value is True


def test_the_runs_of_a_sweep_share_an_archive(desk: Desk, venv: Path) -> None:
    desk.slurm.answer("sbatch", "101\n")
    options = "--no-check", "--stage-env", "--venv", str(venv), "--grid", "lr=1,2"
    said = desk.type("sweep", *options, "--", "train.py", "{lr}")
    assert said.status == 0, said.err
    assert len([*desk.project.glob(".clusterrun/runs/*/environment.json")]) == 2 and len(archives(desk)) == 1
