"""Profiles, job files, templates and folders that cannot be used: one line, a hint, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.command_desk import Desk, refused

PROGRAM = [sys.executable, "-m", "clusterrun"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('partition = "gpu"\nnods = 2\n', "clusterrun.toml:2: unknown key 'nods'", "did you mean nodes?"),
        ("partition = gpu\n", "clusterrun.toml:1: ", "quotes"),
        ('a = "\n', "clusterrun.toml:1: ", ""),
        ("[profile.x]\nnodes = 1\n\n[profile.x]\n", "clusterrun.toml:4: ", ""),
        ('\nnodes = "two"\n', "clusterrun.toml:2: nodes must be a whole number, not the string 'two'", ""),
        ("nodes = 0\n", "--nodes must be at least 1, not 0 (clusterrun.toml:1)", ""),
        ('task = "lm"\n', "clusterrun.toml:1: the task key belongs in a job file", "jobs/NAME.toml"),
        ('job = "none"\n', "no job file 'none'", ""),
        ("nodes = " + "9" * 5000 + "\n", "clusterrun.toml", ""),
    ],
)
def test_a_wrong_profile(desk: Desk, text: str, message: str, hint: str) -> None:
    desk.write("clusterrun.toml", text)
    line, told = refused(desk, "submit")
    assert line.startswith(message) and hint in told, (line, told)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('task = "lm"\n\nnodez = 2\n', "jobs/sft.toml:3: unknown key 'nodez'", "did you mean nodes?"),
        ("nodes = 2\n", "jobs/sft.toml: the file does not say what to run", "task ="),
        ('task = "lm"\nscript = "a.py"\n', "jobs/sft.toml:2: task and script conflict", "keep one"),
        ('script = "none.py"\n', "no such script: ", ""),
        ("task = lm\n", "jobs/sft.toml:1: ", "quotes"),
        ('script = "train.py"\nargs = "x"\n', "jobs/sft.toml:2: args must be a list of strings", ""),
    ],
)
def test_a_wrong_job_file(desk: Desk, text: str, message: str, hint: str) -> None:
    desk.write("jobs/sft.toml", text)
    line, told = refused(desk, "submit", "sft")
    assert line.startswith(message) and hint in told, (line, told)


def test_a_template_that_does_not_render(desk: Desk) -> None:
    path = desk.write("my.j2", "#!/bin/bash\n# {{ token | sh }}\n{{ nobody | sh }}\n")
    for verb in ("submit", "render"):
        line, _ = refused(desk, verb, "--template", "my.j2")
        assert line == f"{path}:3: 'nobody' is undefined"


def test_setup_lines_that_are_not_shell(desk: Desk) -> None:
    for text in ("if true", "echo 'open", "cat <<EOF", "}"):
        said = desk.type("submit", "--python", sys.executable, "--setup", "true", "--setup", text)
        assert said.status == 2 and f"clusterrun: --setup: syntax error in line 2: {text}\n" in said.err, said
        assert sorted(desk.files()) == ["train.py"] and desk.slurm.count("sbatch") == 0


def test_a_log_folder_that_cannot_be_written(desk: Desk) -> None:
    desk.write("logs", "a file")
    line, _ = refused(desk, "submit", "--", "train.py")
    assert line == f"cannot store records and logs in {desk.project}/logs: not a folder"


@pytest.mark.parametrize("name", ["logs", ".clusterrun", ".clusterrun/runs"])
def test_a_folder_of_records_or_logs_that_others_may_write(desk: Desk, name: str) -> None:
    folder = desk.project / name
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    line, hint = refused(desk, "submit", "--", "train.py")
    assert line == f"cannot store records and logs in {folder}: other users have write access"
    assert hint == f"chmod go-w {folder}"


def test_a_folder_that_is_not_ours_to_write(desk: Desk) -> None:
    mortal = []
    if os.geteuid() == 0:  # without its capabilities root is stopped by a folder's mode as everybody is
        mortal = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    desk.project.chmod(0o555)
    try:
        done = subprocess.run([*mortal, *PROGRAM, "submit", "--", "train.py"], capture_output=True, text=True)
    finally:
        desk.project.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        f"clusterrun: cannot write records and logs: {desk.project}: Permission denied",
        "  hint: submit from a writable folder with free space",
    ]
    assert desk.files().keys() == {"train.py"} and desk.slurm.count("sbatch") == 0


def test_a_folder_that_is_gone(desk: Desk) -> None:
    gone = desk.project / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for words in (["submit"], ["render"], ["list"], ["status", "1"], ["logs", "1"], ["cancel", "1"], ["init"]):
        line, hint = refused(desk, *words)
        assert "the current folder " in line and hint.startswith("cd to "), words
