"""Hostile values on a real Slurm, through the command line: they arrive byte for byte, or are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.hostile_texts import NASTY
from tests.support.installed_command import ONE_RANK, Site

HOLD = "--sbatch-arg=--hold"
NAMES = [
    "a,b",
    "it's",
    'q"uote',
    "back\\slash",
    "\\",
    '\\"',
    "#",
    "a #b",
    "$(id)",
    "`id`",
    "%j%x",
    "-x",
    "--wrap=x",
    " lead",
]
NAMES += ["{{ x }}", "é🙂", "\x1b[31m", "tab\there", "cr\rx", "a'b\"c\\d#e", "\udcff\udc80", "'; --wrap=x '", "~!*?"]
FOLDER = 'it\'s "a" 100%j %% #$(x);& é🙂 {{ y }}'
DUMP = """import json, os, sys
with open(sys.argv[1], "w") as file:
    json.dump({"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}, file)
print("hello from", os.getcwd().encode("utf-8", "replace").decode())
"""


@pytest.fixture(scope="module")
def site(new_site: Callable[[Lab | None], Site], lab: Lab) -> Iterator[Site]:
    made = new_site(lab)
    (made.project / FOLDER).mkdir()
    (made.project / FOLDER / "tr ain's.py").write_text(DUMP)
    yield made


def slurm_says(lab: Lab, *argv: str) -> str:
    """A Slurm command's answer, its bytes kept."""
    return os.fsdecode(lab.run(list(argv), text=False).stdout)


def test_everything_arrives_in_one_job(site: Site) -> None:
    folder = site.project / FOLDER
    words = [text for text in NASTY if text != ":"]  # srun's own, and refused
    env = {f"V{number}": text for number, text in enumerate(NASTY)}
    env_words = [f"--env={key}={value}" for key, value in env.items()]
    # names that the script could take for its own, in the shell and asked for
    shell = {"WORK": "/my/work", "TOKEN": "mine", "CLUSTER": "c", "RUN_ID": "r"}
    asked = {"WORK_DIR": "$WORK", "NODES": "mine", "STATUS": "9", "PYTHON": "none"}
    env_words += [f"--env={key}={value}" for key, value in asked.items()]
    name = 'it\'s, "me" #1\\'
    script = ["--", "tr ain's.py", "out.json", *words]
    told = site.json(
        "submit", *site.scheduler, *ONE_RANK, "--job-name", name, *env_words, *script, cwd=folder, env=shell
    )
    out, err = map(Path, told["logs"])
    assert out.parent == folder / "logs"
    state = site.wait_state(told["job_id"], "COMPLETED", "FAILED")
    assert state["state"] == "COMPLETED", err.read_text()
    seen = json.loads((folder / "out.json").read_text())
    assert seen["argv"] == words
    assert {key: seen["env"][key] for key in env} == env
    assert seen["cwd"] == str(folder)
    for key, value in (shell | asked).items():
        assert seen["env"].get(key) == value, key
    assert f"hello from {folder}" in out.read_text()
    assert f"hello from {folder}" in site.cli("logs", told["job_id"]).stdout
    assert site.state(told["job_id"])["name"] == name


def test_names_and_comments(site: Site, lab: Lab) -> None:
    """Held jobs: what Slurm says of them is what was typed."""
    typed = [(name, NASTY[number]) for number, name in enumerate(NAMES)]
    ids = [
        site.json("submit", *site.scheduler, *ONE_RANK, HOLD, f"--job-name={name}", f"--comment={comment}",
                  "--", "/bin/true")
        for name, comment in typed
    ]  # fmt: skip
    for told, (name, comment) in zip(ids, typed, strict=True):
        token = next((Path(told["run_dir"]) / "submissions").glob("*.json")).stem
        job = told["job_id"]
        assert slurm_says(lab, "squeue", "--noheader", f"--jobs={job}", "--format=%j") == f"{name}.{token[:8]}\n"
        assert slurm_says(lab, "squeue", "--noheader", f"--jobs={job}", "--format=%k") == f"{comment}\n"
        shown = slurm_says(lab, "scontrol", "show", "job", job)
        assert f"   StdOut={site.project}/logs/train_{job}.out\n" in shown
        assert "   StdErr=" in shown and "JobState=PENDING Reason=JobHeldUser" in shown
    shown = {state["job_id"]: state["name"] for state in site.listed()}
    assert {told["job_id"] for told in ids} <= shown.keys()
    assert [shown[told["job_id"]] for told in ids] == [name for name, _ in typed]
    site.cli("cancel", *(told["job_id"] for told in ids))


@pytest.mark.parametrize("name", ["a b", "it's", 'q"', "#x", "$(x)", "é🙂", "-x", "\udcff"])
def test_folders(site: Site, lab: Lab, name: str) -> None:
    folder = site.project / name
    folder.mkdir()
    told = site.json("submit", *site.scheduler, *ONE_RANK, HOLD, "--", "/bin/true", cwd=folder)
    shown = slurm_says(lab, "scontrol", "show", "job", told["job_id"])
    assert f"   WorkDir={folder}\n" in shown
    for stream, end in (("StdOut", "out"), ("StdErr", "err")):
        assert f"   {stream}={folder}/logs/train_{told['job_id']}.{end}\n" in shown
    site.cli("cancel", told["job_id"])


@pytest.mark.parametrize("name", ["back\\slash", "new\nline"])
def test_folders_that_are_refused(site: Site, name: str) -> None:
    folder = site.project / name
    folder.mkdir()
    done = site.cli("submit", *site.scheduler, *ONE_RANK, HOLD, "--", "/bin/true", cwd=folder, status=2)
    assert done.stderr.count("\n") == 2 and list(folder.iterdir()) == []


def test_what_is_refused_never_reaches_slurm(site: Site, lab: Lab) -> None:
    all_jobs = ["squeue", "--noheader", "--states=all", "--format=%A"]
    before = lab.run(all_jobs).stdout.split()
    for words in (
        ("--job-name=a\nb", "--", "/bin/true"), ("--comment=a\n#SBATCH --wrap=x", "--", "/bin/true"),
        ("--env=A=a\nb", "--", "/bin/true"), ("--", "/bin/true", "a\nb"), ("--", "/bin/echo", ":"),
    ):  # fmt: skip
        done = site.cli("submit", *site.scheduler, *ONE_RANK, "--partition=low", *words, status=2)
        assert done.stderr.count("\n") == 2 and done.stdout == ""
    assert set(lab.run(all_jobs).stdout.split()) <= set(before)
