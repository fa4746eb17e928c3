"""What the job's script does around the ranks: files, claim, attempt number, and what a file system shows late."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.jobspec.spec import Command
from tests.support.patience import HUNG
from tests.support.staged_script import TOKEN, Staged, stage

SLURM = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "lab", "SLURM_RESTART_COUNT": "0"}
LATE_SHOWN = ('--script "$0"', '--shown-late 600 --script "$0"')
SOON_SHOWN = ('--script "$0"', '--shown-late 2 --script "$0"')
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")


def modes(folder: Path) -> dict[str, str]:
    """Path -> mode of all below a folder."""
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.lstat().st_mode) & 0o777) for path in folder.rglob("*")
    }


Slow = dict[str, tuple[Staged, "subprocess.Popen[str]", float]]


@pytest.fixture(scope="module", autouse=True)
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    """Two jobs that wait longest for what a file system shows late: started before the first test, and when."""
    late, environ = marked_late(tmp_path_factory.mktemp("end-mark"), 31)
    hidden = stage(tmp_path_factory.mktemp("submission"), body='touch "$CLUSTERRUN_RUN_DIR/started"', local=False)
    hidden.submission.rename(hidden.run_dir / "hidden")
    started = {
        "end mark": (late, late.start(environ), time.monotonic()),
        "submission": (hidden, hidden.start(SLURM), time.monotonic()),
    }
    yield started
    for _, process, _ in started.values():
        process.terminate()
        process.communicate(timeout=HUNG)


def test_a_submission_record_that_is_shown_late_is_waited_for_in_a_slurm_job(slow: Slow) -> None:
    """The first of this file: the job waits for 90 s, which the tests before it could take on a busy machine."""
    run, process, since = slow["submission"]
    time.sleep(max(0.0, since + 11 - time.monotonic()))
    assert process.poll() is None
    (run.run_dir / "hidden").rename(run.submission)
    assert process.wait(HUNG) == 0 and (run.run_dir / "started").exists()


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "folder", "file"), [(False, "0o700", "0o600"), (True, "0o750", "0o640")])
def test_what_the_job_makes_is_closed_and_what_the_users_code_makes_has_their_umask(
    tmp_path: Path, shared: bool, folder: str, file: str
) -> None:
    tmp_path.chmod(0o2775)
    run = stage(tmp_path, Command("touch", (str(tmp_path / "by_rank"),)), setup=["touch by_setup"], umask=0o002,
                shared=shared)  # fmt: skip
    before = set(modes(run.run_dir))
    with (tmp_path / "out").open("a") as out, (tmp_path / "err").open("a") as err:
        assert run.start(stdout=out, stderr=err).wait(HUNG) == 0, (tmp_path / "err").read_text()
    made = {name: mode for name, mode in modes(run.run_dir).items() if name not in before}
    here = f"attempts/{TOKEN}.0.0"
    assert {Path(name).name for name in made} >= {
        TOKEN, "owner", "attempt_number", "log-start", "log-clock", "start.json", "node-0.ranks", "end.json",
    }  # fmt: skip
    for name, mode in made.items():
        assert mode == (folder if name in (here, f"claims/{TOKEN}", "checkpoints") else file), f"{name} has {mode}"
    assert {oct((tmp_path / name).stat().st_mode & 0o777) for name in ("by_rank", "by_setup")} == {"0o664"}


def test_a_umask_set_by_a_setup_line_reaches_the_ranks_and_not_our_files(tmp_path: Path) -> None:
    run = stage(tmp_path, Command("touch", (str(tmp_path / "by_rank"),)), setup=["umask 000"])
    run.run()
    assert oct((tmp_path / "by_rank").stat().st_mode & 0o777) == "0o666"
    assert modes(run.attempt)["end.json"] == "0o600"


def test_a_setup_line_that_exits_leaves_a_closed_end_record(tmp_path: Path) -> None:
    run = stage(tmp_path, setup=["umask 000; exit 4"])
    run.run(status=4)
    assert (run.end()["status"], run.end()["unmarked"]) == (4, 0)
    assert modes(run.attempt)["end.json"] == "0o600"


def test_links_in_the_way_of_our_files_are_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    names = [".end.json", "end.json", "log-start", "start.json"]
    attempt = f'"$CLUSTERRUN_RUN_DIR/attempts/{TOKEN}.0.0"'
    plant = [f"mkdir -m 700 {attempt}", *(f"ln -sf {victim} {attempt}/{name}" for name in names)]
    run = stage(tmp_path, Command("true"), setup=plant)
    run.run()
    assert victim.read_text() == "mine"
    assert run.end()["status"] == 0
    assert [path.name for path in run.attempt.iterdir() if path.is_symlink()] == [".end.json"], "which nobody writes"


@needs_root
@pytest.mark.parametrize("which", ["", "claims", "attempts", f"attempts/{TOKEN}.0.0"])
def test_a_folder_of_another_user_is_not_worked_in(tmp_path: Path, which: str) -> None:
    run = stage(tmp_path, body="touch started")
    (run.run_dir / which).mkdir(exist_ok=True)
    os.chown(run.run_dir / which, 65534, 65534)
    said = run.run(status=1)
    assert "another user" in said or "cannot write" in said
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("which", ["claims", "attempts"])
def test_a_folder_that_is_a_link_is_not_worked_in(tmp_path: Path, which: str) -> None:
    run = stage(tmp_path, body="touch started")
    (run.run_dir / which).rmdir()
    (tmp_path / "elsewhere").mkdir()
    (run.run_dir / which).symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in run.run(status=1)
    assert not list((tmp_path / "elsewhere").iterdir()) and not (tmp_path / "started").exists()


# -- an end before the ranks ------------------------------------------------------------------------------------------


def test_a_python_that_is_gone_leaves_an_end_record(tmp_path: Path) -> None:
    run = stage(tmp_path, change=("CR_PYTHON={{ spec.python | sh }}", "CR_PYTHON=/no/python"))
    assert "/no/python cannot run" in run.run(status=127)
    assert run.end()["status"] == 127 and modes(run.attempt)["end.json"] == "0o600"


def test_a_setup_line_makes_a_python_usable_that_could_not_start(tmp_path: Path) -> None:
    line = f"ln -s {shlex.quote(sys.executable)} {tmp_path}/python"
    run = stage(tmp_path, body="touch started", setup=[line],
                change=("CR_PYTHON={{ spec.python | sh }}", f"CR_PYTHON={tmp_path}/python"))  # fmt: skip
    run.run()
    assert (tmp_path / "started").exists() and run.end()["status"] == 0


@pytest.mark.parametrize("where", ["setup", "ranks"])
def test_a_termination_is_recorded_wherever_the_job_is(tmp_path: Path, where: str) -> None:
    wait = "touch up; until false; do sleep 0.05; done"
    run = stage(tmp_path, body=wait, setup=[wait] if where == "setup" else [])
    process = run.start()
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    process.terminate()
    process.communicate(timeout=HUNG)
    assert process.returncode == 143
    assert (run.end()["status"], run.end()["signal"]) == (143, "TERM")


def test_a_signal_to_the_batch_script_alone_reaches_the_ranks(tmp_path: Path) -> None:
    run = stage(tmp_path, body="trap 'echo got USR1; exit 0' USR1; touch up; while :; do sleep 0.05; done")
    process = run.start()
    while not (tmp_path / "up").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=HUNG)
    assert process.returncode == 0 and "got USR1" in out


def test_a_copy_that_finds_the_run_claimed_runs_no_setup_line(tmp_path: Path) -> None:
    run = stage(tmp_path, body="true", setup=["echo x >>setup"])
    run.run()
    assert "is already running" in run.run({"CLUSTERRUN_LOCAL_JOB_ID": "L2"}, status=75)
    assert (tmp_path / "setup").read_text() == "x\n"
    assert run.end()["job"] == "L1"


# -- attempt number and log-start -------------------------------------------------------------------------------------

TELL = 'echo "attempt $CLUSTERRUN_ATTEMPT_NUMBER in $CLUSTERRUN_ATTEMPT_NUMBER_FILE"'


def test_each_start_of_a_run_begins_its_next_attempt(tmp_path: Path) -> None:
    run = stage(tmp_path, body=TELL)
    for restart in range(3):
        said = run.run({"SLURM_RESTART_COUNT": str(restart)})
        assert f"attempt {restart + 1} in {run.run_dir}/attempt_number" in said
        assert (run.run_dir / "attempt_number").read_text() == f"{restart + 1}\n"


def test_a_copy_that_leaves_begins_no_attempt(tmp_path: Path) -> None:
    run = stage(tmp_path, body=TELL)
    run.run()
    assert "is already running" in run.run({"CLUSTERRUN_LOCAL_JOB_ID": "L2"}, status=75)
    assert (run.run_dir / "attempt_number").read_text() == "1\n"


def test_each_task_of_an_array_has_its_own_attempt_number(tmp_path: Path) -> None:
    run = stage(tmp_path, body=TELL)
    for task in "38":
        assert f"attempt 1 in {run.run_dir}/attempt_number_{task}" in run.run({"SLURM_ARRAY_TASK_ID": task})


def test_an_attempt_number_that_is_none_stops_the_job(tmp_path: Path) -> None:
    run = stage(tmp_path, body="touch started")
    (run.run_dir / "attempt_number").write_text("-1; x\n")
    assert "does not contain a number" in run.run(status=1)
    assert not (tmp_path / "started").exists()


def test_a_start_that_was_taken_over_before_its_attempt_leaves(tmp_path: Path) -> None:
    """A node stops between claim and attempt, the job starts again elsewhere, and the node comes back."""
    run = stage(tmp_path, body=TELL)
    stalled = run.start({"STALL": str(tmp_path / "go")})
    while not (run.run_dir / "claims" / TOKEN).exists():
        time.sleep(0.02)
    assert "attempt 1 in" in run.run({"SLURM_RESTART_COUNT": "1", "STALL": ""})
    (tmp_path / "go").touch()
    _, said = stalled.communicate(timeout=HUNG)
    assert stalled.returncode == 75 and "has been restarted" in said
    assert (run.run_dir / "attempt_number").read_text() == "1\n"


def test_log_start_holds_the_sizes_of_both_logs_as_the_job_found_them(tmp_path: Path) -> None:
    run = stage(tmp_path, body="echo more; echo more >&2")
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("x" * 100)
    err.write_text("y" * 30)
    with out.open("a") as one, err.open("a") as two:
        assert run.start(stdout=one, stderr=two).wait(HUNG) == 0
    assert (run.attempt / "log-start").read_text() == "100 30\n"


# -- what a file system shows late, and what it never shows ----------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"CLUSTERRUN_LOCAL_JOB_ID": ""}])
def test_a_script_run_by_hand_answers_at_once(tmp_path: Path, environ: dict[str, str]) -> None:
    run = stage(tmp_path, body="touch started", local=False, change=LATE_SHOWN)  # run() gives up long before that
    run.submission.unlink()
    assert "was not submitted by clusterrun" in run.run(environ, status=2)
    assert not (tmp_path / "started").exists()


def test_a_slurm_job_without_a_submission_says_so_in_the_end(tmp_path: Path) -> None:
    run = stage(tmp_path, body="touch started", local=False, change=SOON_SHOWN)
    run.submission.unlink()
    assert "was not submitted by clusterrun" in run.run(SLURM, status=2)


def test_the_command_that_a_script_run_by_hand_prints_works_when_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    run = stage(folder, body="touch started", local=False)
    run.submission.unlink()
    said = run.run(status=2)
    command = said.split("this script anyway: ")[1].strip()
    assert shlex.split(command)[1:] == ["bash", str(run.script)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    done = subprocess.run(command, shell=True, cwd=folder, env=clean, capture_output=True, text=True, timeout=HUNG)
    assert done.returncode == 0 and (folder / "started").exists(), done.stderr


LATE = """
import os, subprocess, sys
real = os.pwrite
def pwrite(file, data, offset):
    path = os.readlink(f"/proc/self/fd/{file}")
    if path.endswith("node-1.ranks") and offset:
        late = "import os, sys, time; time.sleep(%s); os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'{}', 1024)"
        subprocess.Popen([sys.executable, "-S", "-c", late, path], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return len(data)
    return real(file, data, offset)
os.pwrite = pwrite
"""


def marked_late(tmp_path: Path, seconds: int, change: tuple[str, str] = ("", "")) -> tuple[Staged, dict[str, str]]:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(LATE % seconds)
    return stage(tmp_path, nodes=2, change=change), {"PYTHONPATH": str(tmp_path / "site")}


def test_end_marks_that_are_shown_31_seconds_late_are_waited_for(slow: Slow) -> None:
    run, process, _ = slow["end mark"]
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, f"{out}\n{err}"
    assert (run.end()["status"], run.end()["unmarked"]) == (0, 0)


def test_ranks_without_an_end_mark_are_counted_in_the_end_record(tmp_path: Path) -> None:
    run, environ = marked_late(tmp_path, 60, SOON_SHOWN)
    assert "only 1 of 2 ranks recorded their end" in run.run(environ, status=1)
    assert (run.end()["status"], run.end()["unmarked"]) == (1, 1)


def test_the_rendezvous_killed_while_the_ranks_run_does_not_fail_the_run(tmp_path: Path) -> None:
    work = Command("bash", ("-c", "touch up.$RANK; until [ -e go ]; do sleep 0.1; done"))
    run = stage(tmp_path, work, nodes=2)
    process = run.start()
    while not ((tmp_path / "up.0").exists() and (tmp_path / "up.1").exists()):
        assert process.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (helper,) = [pid for pid in children if b"rendezvous.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(helper), 9)
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=HUNG)
    assert process.returncode == 0, err
    assert (run.end()["status"], run.end()["unmarked"]) == (0, 0)
