"""What my job writes while others may reach its folders: it follows no link of theirs, and runs no pickle of theirs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from tests.security.people import WAITS, Town
from tests.security.test_planted_files import common
from tests.support.patience import until

OVER = ("COMPLETED", "FAILED")
#: Plants links to a file of a's under every name that a job is known to write, wherever it may, for ever.
PLANTER = """
import os, sys
runs, aim = sys.argv[1:]
names = [".end.json", "end.json", "launch.json", "check.json", "first_failure.json", "start.json", "stopped",
         "log-start", "log-clock", "attempt_number", ".attempt_number", "node-0.ranks", ".start.json", "owner",
         "hold.json", "hang_request.json", "hang.json", "stacks-rank-0.txt", ".stacks-rank-0.txt.tmp"]
print("ready", flush=True)
while True:
    for folder, below, _ in os.walk(runs):
        for name in names:
            try:
                os.symlink(aim, f"{folder}/{name}")
            except OSError:
                pass
"""
#: What b puts in the place of a pickle: unpickled, it leaves a mark.
EVIL = """
import os, pickle, sys
class Evil:
    def __reduce__(self):
        return os.system, (sys.argv[2],)
with open(sys.argv[1] + ".b", "wb") as file:
    pickle.dump(Evil(), file)
os.chmod(sys.argv[1] + ".b", 0o644)
os.rename(sys.argv[1] + ".b", sys.argv[1])
"""
FUNCTION = """
import os, sys
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
flags = {"gpus-per-node": Value(0, "test"), "tasks-per-node": Value(1, "test"), "shared": Value(True, "test"),
         "sbatch-arg": Value(["--hold"], "test")}
job = Cluster().submit_function(len, "four", flags=flags)
print(job.job_id, flush=True)
if sys.argv[1:]:
    sys.stdin.readline()
    print(job.results())
"""


def share(town: Town, path: Path) -> None:
    """A folder of a's with the common group, which new files in it get too; others of the group may enter it."""
    path.mkdir(exist_ok=True)
    os.chown(path, town.a.user.uid, common(town))
    path.chmod(0o2755)


def open_ones(folder: Path) -> list[str]:
    """What others may write below a folder."""
    return [
        f"{path.relative_to(folder)} {path.lstat().st_mode & 0o7777:o}"
        for path in folder.rglob("*")
        if not path.is_symlink() and path.stat().st_mode & 0o022
    ]


@pytest.mark.parametrize("umask", [0o002, 0o000], ids=["002", "000"])
@pytest.mark.parametrize("shared", [(), ("--shared",)], ids=["private", "shared"])
def test_nothing_that_a_job_leaves_for_clusterrun_is_writable_by_others(
    town: Town, umask: int, shared: tuple[str, ...]
) -> None:
    share(town, town.a.project)
    script = town.a.write(town.a.home / "writes.sh", "#!/bin/bash\necho result > $HOME/project/result\n", 0o755)
    job = town.a.submit(*shared, "--", str(script), umask=umask)["job_id"]
    until(lambda: town.a.state_of(job)["state"] == "COMPLETED", 60, "the end of the job", 0.5)
    assert open_ones(town.a.project / ".clusterrun") == open_ones(town.a.project / "logs") == []
    assert (town.a.project / "result").stat().st_mode & 0o777 == 0o666 & ~umask, "the user's own files keep their umask"


def test_links_that_others_plant_in_a_shared_run_are_not_followed(town: Town) -> None:
    share(town, town.a.project)
    town.a.submit("--shared", WAITS, "--", str(town.a.home / "hello.sh"), umask=0o002)
    runs = town.a.project / ".clusterrun" / "runs"
    planter = town.b.start("python3", "-c", PLANTER, str(runs), str(town.a.home / "results.txt"), umask=0o002)
    assert planter.stdout is not None and planter.stdout.readline() == "ready\n"
    ids = [town.a.submit("--shared", "--", str(town.a.home / "hello.sh"), umask=0o002)["job_id"] for _ in range(2)]
    for job in ids:
        until(lambda job=job: town.lab.job(job).get("JobState") in OVER, 90, f"the end of {job}", 0.5)
    assert (town.a.home / "results.txt").read_text() == "three months of work\n"
    assert [str(path) for path in runs.rglob("*") if path.is_symlink()] == [], "others could plant links"
    assert [town.a.state_of(job)["outcome"] for job in ids] == ["done", "done"]


@pytest.mark.parametrize("how", ["as others can", "by root"])
def test_a_pickle_of_another_user_is_not_opened_by_my_job(town: Town, how: str) -> None:
    share(town, town.a.project)
    job = town.a.sh(f"{town.a.env['VIRTUAL_ENV']}/bin/python -c '{FUNCTION}'", cwd=town.a.project, umask=0o002).strip()
    (pickled,) = town.a.project.glob(".clusterrun/runs/*/submitit/*.pkl")
    b = town.b
    if how == "as others can":
        b.sh(f"python3 -c '{EVIL}' {pickled} '{town.mark('unpickled')}'", status=None)
    else:  # however it came there
        made = b.home / pickled.name
        b.sh(f"python3 -c '{EVIL}' {made} '{town.mark('unpickled')}'")
        os.rename(made, pickled)
    town.a.sh(f"scontrol release {job}")
    until(lambda: town.a.state_of(job)["outcome"] not in ("running", "unknown"), 90, f"the end of {job}", 0.5)
    assert town.marks(town.a) == []
    if how == "by root":
        assert town.a.state_of(job)["outcome"] == "failed"
        assert "refusing to unpickle" in town.a.type("logs", job, status=0).out
    else:
        assert town.a.state_of(job)["outcome"] == "done"
        assert pickle.loads(next(pickled.parent.glob("*result.pkl")).read_bytes()) == ("success", 4)


@pytest.mark.parametrize("folder", ["submitit", ""])
def test_the_pickle_of_a_result_that_others_planted_is_not_opened(town: Town, folder: str) -> None:
    share(town, town.a.project)
    python = f"{town.a.env['VIRTUAL_ENV']}/bin/python"
    asks = town.a.start(python, "-c", FUNCTION, "results", cwd=town.a.project, umask=0o002)
    assert asks.stdout is not None
    job = asks.stdout.readline().strip()
    (run,) = (town.a.project / ".clusterrun" / "runs").iterdir()
    town.b.sh(f"python3 -c '{EVIL}' {run / folder}/{job}_0_result.pkl '{town.mark('unpickled')}'", status=None)
    asks.kill()
    assert not list(run.rglob(f"{job}_0_result.pkl")), "others could plant a result"


@pytest.mark.parametrize("kind", ["link", "theirs"])
def test_an_attempt_folder_that_was_there_before_the_job_is_not_used_by_it(town: Town, kind: str) -> None:
    """However it came there: the job makes its folders itself, or says why it does not run."""
    share(town, town.a.project)
    data = town.a.submit("--sbatch-arg=--hold", "--shared", "--", str(town.a.home / "hello.sh"), umask=0o002)
    run = Path(data["run_dir"])
    (token,) = [path.stem for path in (run / "submissions").glob("*.json")]
    planted = run / "attempts" / f"{token}.0.0"
    target = town.a.home / "private" if kind == "link" else planted
    target.mkdir()
    if kind == "link":
        town.a.own(target)
        planted.symlink_to(target)
        os.lchown(planted, town.b.user.uid, town.b.user.gid)
    else:
        town.b.own(planted)
        planted.chmod(0o777)
        (planted / ".end.json").symlink_to(town.a.home / "results.txt")
        (planted / "log-start").symlink_to(town.a.home / "results.txt")
    town.a.sh(f"scontrol release {data['job_id']}")
    until(lambda: town.lab.job(data["job_id"]).get("JobState") in OVER, 90, "the end", 0.5)
    assert (town.a.home / "results.txt").read_text() == "three months of work\n"
    if kind == "link":
        assert list(target.iterdir()) == []
    town.a.type("status", data["job_id"])
    town.a.type("why", data["job_id"])
