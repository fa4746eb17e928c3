"""Folders that other users can change: submit refuses them, or keeps its records and logs where nobody else comes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from tests.security.people import ONE_RANK, WAITS, Town, queued, running
from tests.security.unchanged import unchanged
from tests.support.patience import until

#: Takes each new run folder away and puts one of its own in its place: the same names, another script.
SWAPPER = """
import os, sys, time
runs, mark = sys.argv[1:]
done = set(os.listdir(runs))
delays = [0.12, 0.03, 0.06, 0.0, 0.25]
print("ready", flush=True)
while True:
    for name in set(os.listdir(runs)) - done:
        if name.startswith("."):
            continue
        time.sleep(delays[0])
        delays.append(delays.pop(0))
        try:
            os.rename(f"{runs}/{name}", f"{runs}/.{name}")
        except OSError:
            continue
        done.add(name)
        for folder in ("", "/submissions", "/claims", "/attempts"):
            os.mkdir(f"{runs}/{name}{folder}")
            os.chmod(f"{runs}/{name}{folder}", 0o777)
        with open(f"{runs}/{name}/script.sh", "w") as file:
            file.write(f"#!/bin/bash\\n#SBATCH --output=/dev/null\\n{mark}\\n")
        os.chmod(f"{runs}/{name}/script.sh", 0o777)
"""
#: Exchanges two folders for ever.
RENAMER = """
import os, sys
one, other = sys.argv[1:]
print("ready", flush=True)
while True:
    for source, target in ((one, one + ".off"), (other, one), (one, other), (one + ".off", one)):
        try:
            os.rename(source, target)
        except OSError:
            pass
"""


def group_folder(town: Town, path: Path, mode: int = 0o2775) -> Path:
    """A folder of a's that the users' common group may write, as a project of a group is."""
    path.mkdir()
    os.chown(path, town.a.user.uid, town.a.user.groups[-1])
    path.chmod(mode)
    return path


def common(town: Town) -> int:
    """The id of the group that all users are in."""
    (shared,) = set(town.a.user.groups) & set(town.b.user.groups)
    return shared


def open_to_group(town: Town, path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    town.a.take(path)
    os.chown(path, town.a.user.uid, common(town))
    path.chmod(mode)


@pytest.mark.parametrize("mode", [0o2775, 0o777], ids=["group", "everybody"])
@pytest.mark.parametrize("part", [".clusterrun", ".clusterrun/runs", "logs"])
def test_submit_refuses_a_records_or_log_folder_that_others_can_change(town: Town, part: str, mode: int) -> None:
    folder = town.a.project / part
    (town.a.project / ".clusterrun").mkdir()
    open_to_group(town, folder, mode)
    town.a.own(town.a.project / ".clusterrun")
    open_to_group(town, folder, mode)
    hello = str(town.a.home / "hello.sh")
    before = queued(town, town.a)
    refused = town.a.type("submit", *ONE_RANK, WAITS, "--", hello, status=2)
    assert set(queued(town, town.a)) <= set(before)
    (hint,) = [line for line in refused.err.splitlines() if line.startswith("  hint: ")]
    assert "chmod" in hint and str(folder) in hint
    town.a.sh(hint.removeprefix("  hint: ").partition("   ")[0])
    town.a.submit(WAITS, "--", hello)


def test_the_short_cuts_to_runs_are_written_through_no_link_of_another_user(town: Town) -> None:
    for part, mode in ((".clusterrun", 0o755), (".clusterrun/jobs", 0o2775)):
        open_to_group(town, town.a.project / part, mode)
    town.b.sh(f"ln -s {town.a.home}/rc.d {town.a.project}/.clusterrun/jobs/{town.lab.cluster_name}")
    with unchanged(town.a.home, but=(town.a.state, town.a.project)):
        said = town.a.type("submit", "--json", *ONE_RANK, WAITS, "--", str(town.a.home / "hello.sh"), status=(0, 2))
    if said.status == 0:
        assert town.a.state_of(said.data["job_id"])["state"] == "PENDING"


@pytest.mark.parametrize("where", ["group project", "open runs folder"])
def test_a_run_folder_that_is_swapped_as_it_appears_never_runs_as_me(town: Town, where: str) -> None:
    project = group_folder(town, town.folder / "group") if where == "group project" else town.a.project
    os.chown(project, town.a.user.uid, common(town))
    runs = project / ".clusterrun" / "runs"
    if where == "group project":
        town.b.sh(f"mkdir -p {runs} && chmod 2775 {project}/.clusterrun {runs}", umask=0o002)
    else:
        open_to_group(town, project / ".clusterrun", 0o755)
        open_to_group(town, runs, 0o2775)
    swapper = town.b.start("python3", "-c", SWAPPER, str(runs), town.mark("swapped"))
    assert swapper.stdout is not None and swapper.stdout.readline() == "ready\n"
    ended = []
    for _ in range(5):
        said = town.a.type(
            "submit", *ONE_RANK, "--", str(town.a.home / "hello.sh"), cwd=project, umask=0o002, status=(0, 2, 3, 75)
        )
        ended.append(said.status)
    until(lambda: not running(town, town.a), 90, "the end of a's jobs", 0.5)
    assert town.marks(town.a) == []
    assert ended == [2 if where == "open runs folder" else 0] * 5


@pytest.mark.parametrize("plant", ["link", "hard link", "file of their own"])
@pytest.mark.parametrize("where", ["group project", "open log folder"])
def test_a_log_that_another_user_planted_is_not_written(town: Town, where: str, plant: str) -> None:
    project = group_folder(town, town.folder / "group") if where == "group project" else town.a.project
    logs = project / "logs"
    if where == "group project":
        town.b.sh(f"mkdir {logs} && chmod 2775 {logs}", umask=0o002)
    else:
        open_to_group(town, logs, 0o2775)
    os.chown(project, town.a.user.uid, common(town))
    last = int(town.sbatch(town.b, town.b.write(town.b.home / "x.sh", "#!/bin/sh\n"), "--output=/dev/null"))
    aim = town.a.home / "results.txt"
    how = {"link": f"ln -s {aim}", "hard link": f"ln {aim}", "file of their own": f"ln {town.b.home}/open"}[plant]
    town.b.write(town.b.home / "open", "", 0o666)
    ids = " ".join(str(number) for number in range(last + 1, last + 30))
    town.b.sh(f"for i in {ids}; do for s in out err; do {how} {logs}/train_$i.$s; done; done", status=None)
    with unchanged(town.a.home, but=(town.a.state, town.a.project)):
        said = town.a.type(
            "submit", "--json", *ONE_RANK, "--", str(town.a.home / "hello.sh"), cwd=project, umask=0o002, status=(0, 2)
        )
        until(lambda: not running(town, town.a), 60, "the end of a's job", 0.5)
    assert (town.b.home / "open").read_text() == "", "what my job prints is not theirs to read"
    assert (said.status == 2) == (where == "open log folder"), str(said)
    if said.status == 0:
        assert "hello of crlab-a" in town.a.type("logs", said.data["job_id"], cwd=project, status=0).out


def test_a_project_that_is_renamed_in_a_loop_never_runs_anything_of_theirs_as_me(town: Town) -> None:
    parent = group_folder(town, town.folder / "parent")
    project, other = parent / "project", parent / "other"
    project.mkdir()
    town.a.own(project)
    town.b.sh(f"mkdir -p {other}/.clusterrun/runs {other}/logs; chmod -R 0777 {other}; cd {other}/logs;"
              f"for i in $(seq 1 500); do ln -s {town.a.home}/results.txt train_$i.out; done")  # fmt: skip
    swapper = town.b.start("python3", "-c", SWAPPER, str(other / ".clusterrun" / "runs"), town.mark("swapped"))
    renamer = town.b.start("python3", "-c", RENAMER, str(project), str(other))
    for process in (swapper, renamer):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    line = shlex.join(["clusterrun", "submit", *ONE_RANK, "--", str(town.a.home / "hello.sh")])
    with unchanged(town.a.home, but=(town.a.state,)):
        for _ in range(4):
            town.a.sh(f"cd {project} && {line}", cwd=parent, status=None)
        town.b.leave()
        until(lambda: not running(town, town.a), 90, "the end of a's jobs", 0.5)
    assert town.marks(town.a) == []


def test_a_run_of_mine_that_another_user_renamed_is_not_taken_for_another(town: Town) -> None:
    project = town.a.project
    runs = []
    for _ in range(2):
        runs.append(town.a.submit(WAITS, "--", str(town.a.home / "hello.sh")))
    folder = project / ".clusterrun" / "runs"
    for path in (project, project / ".clusterrun", folder):  # as an older version may have left it, or a's own chmod
        os.chown(path, town.a.user.uid, common(town))
        path.chmod(0o2775)
    first, second = (Path(run["run_dir"]).name for run in runs)
    town.b.sh(f"cd {folder} && mv {first} away && mv {second} {first} && mv away {second}")
    town.a.type("cancel", first, status=None)
    states = [town.lab.job(run["job_id"]).get("JobState") for run in runs]
    assert states[1] == "PENDING", "the run that was typed is meant, or none"


@pytest.mark.parametrize("kind", ["endless", "fifo", "theirs", "group's"])
@pytest.mark.parametrize("option", ["template", "job file", "project profile", "user profile"])
def test_a_template_job_file_or_profile_that_others_can_write_is_not_used(town: Town, option: str, kind: str) -> None:
    rendered = town.a.type("render", *ONE_RANK, "--", str(town.a.home / "hello.sh"), status=0).out
    text = {"template": "#!/bin/bash\n# evil\n", "job file": 'command = "/bin/true"\nsetup = ["evil"]\n'}
    name = {"project profile": "clusterrun.toml", "job file": "jobs/mine.toml", "template": "own.j2"}.get(option)
    path = town.a.project / name if name else town.a.home / ".config" / "clusterrun" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path, 0o666)
    else:
        path.write_text(text.get(option, 'setup = ["evil"]\n'))
        path.chmod(0o664 if kind == "group's" else 0o644)
    town.a.take(path.parent)
    os.lchown(path, (town.b if kind == "theirs" else town.a).user.uid, common(town))
    words = {"template": ("--template", str(path), "--", str(town.a.home / "hello.sh")), "job file": ("mine",)}
    said = town.a.type("render", *ONE_RANK, *words.get(option, ("--", str(town.a.home / "hello.sh"))), status=(0, 2))
    assert "evil" not in said.out
    assert (said.status == 2) == (option in words), str(said)
    assert said.status == 2 or len(said.out.splitlines()) == len(rendered.splitlines())


def test_submitting_in_a_folder_like_tmp_uses_nothing_that_others_left_there(town: Town) -> None:
    where = town.folder / "tmp"
    where.mkdir()
    where.chmod(0o1777)
    town.b.sh(
        f"mkdir -p {where}/.clusterrun/runs {where}/.clusterrun/jobs {where}/logs; chmod -R 0777 {where}/.c* {where}/l*"
    )
    town.b.sh(f"ln -s {town.a.home}/rc.d {where}/.clusterrun/jobs/{town.lab.cluster_name}")
    with unchanged(town.a.home, but=(town.a.state,)):
        said = town.a.type("submit", "--json", *ONE_RANK, "--", str(town.a.home / "hello.sh"), cwd=where, status=0)
        until(lambda: not running(town, town.a), 60, "the end of a's job", 0.5)
    assert not said.data["run_dir"].startswith(str(where))
    town.a.type("logs", said.data["job_id"], cwd=where, status=0)


@pytest.mark.parametrize("aim", ["results.txt", "rc.d/new"])
def test_init_does_not_write_through_a_link_that_others_left(town: Town, aim: str) -> None:
    project = group_folder(town, town.folder / "group")
    town.b.sh(f"ln -s {town.a.home}/{aim} {project}/clusterrun.toml")
    with unchanged(town.a.home, but=(town.a.state,)):
        town.a.type("init", cwd=project)


def test_a_job_of_another_user_that_bears_my_token_is_not_taken_for_mine(town: Town) -> None:
    own = town.a.submit(WAITS, "--", str(town.a.home / "hello.sh"))["job_id"]
    name = town.lab.job(own)["JobName"]
    script = town.b.write(town.b.home / "x.sh", "#!/bin/sh\nsleep 600\n")
    theirs = town.sbatch(town.b, script, f"--job-name={name}", "--output=/dev/null")
    until(lambda: town.lab.job(theirs).get("JobState") == "RUNNING", 30, "the start of theirs")
    assert town.a.state_of(own)["state"] == "PENDING"
    assert [row["job_id"] for row in town.a.type("list", "--json", status=0).data] == [own]
    town.a.type("cancel", theirs, status=4)
    town.a.type("cancel", own, status=0)
    assert town.lab.job(own)["JobState"] == "CANCELLED"
    assert town.a.state_of(own)["state"] == "CANCELLED"
    assert town.lab.job(theirs)["JobState"] == "RUNNING"


def test_the_log_of_a_local_job_that_another_user_planted_is_not_written(town: Town) -> None:
    project = group_folder(town, town.folder / "group")
    town.b.sh(f"mkdir {project}/logs; chmod 2775 {project}/logs; cd {project}/logs;"
              f"for i in 1 2 3; do ln -s {town.a.home}/results.txt train_L$i.out; done", umask=0o002)  # fmt: skip
    words = ("--scheduler", "local", "--gpus-per-node", "0", "--tasks-per-node", "1")
    with unchanged(town.a.home, but=(town.a.state,)):
        said = town.a.type("submit", "--json", *words, "--", str(town.a.home / "hello.sh"), cwd=project, status=0)
        town.a.type("wait", said.data["job_id"], cwd=project, status=0)
    assert "hello of crlab-a" in town.a.type("logs", said.data["job_id"], cwd=project, status=0).out
