"""Running other programs: timeouts, process groups, bytes, and a clean environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clusterrun.base.errors import CommandError
from clusterrun.system import shell
from tests.support.patience import HUNG, until
from tests.support.proc import state_of

ENV = {"PATH": "/usr/bin:/bin"}


def alive(pid: int) -> bool:
    return state_of(pid) not in ("Z", "")


def wait_for(path: Path, seconds: float = HUNG) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.01)
    return path.read_text()


def test_a_program_answers() -> None:
    done = shell.run(["sh", "-c", "echo out; echo err >&2; exit 7"], env=ENV)
    assert done == shell.Completed(7, "out\n", "err\n")


def test_words_are_words_and_no_shell() -> None:
    words = ["a b", "", "$(id)", "'", "\udcff", "-x", "*"]
    done = shell.run(["printf", "%s\\0", *words], env=ENV)
    assert done.stdout.split(r"\x00")[:-1] == [*words[:4], r"\xff", *words[5:]]
    done = shell.run(["printf", "%s\\0", *words], env=ENV, errors="surrogateescape")
    assert done.stdout.split("\0")[:-1] == words


def test_bytes_that_are_no_text_are_spelled_out() -> None:
    assert shell.run(["printf", r"a\377\376z"], env=ENV).stdout == r"a\xff\xfez"


def test_what_it_is_given_to_read() -> None:
    assert shell.run(["cat"], env=ENV, stdin="é\udcff").stdout == "é\\xff"
    assert shell.run(["cat"], env=ENV).stdout == "", "without it there is nothing to read, and no waiting"


def test_a_signal_is_a_status() -> None:
    assert shell.run(["sh", "-c", "kill -KILL $$"], env=ENV).status == 137


def test_folder_umask_and_environment(tmp_path: Path) -> None:
    done = shell.run(["sh", "-c", "pwd; umask; env | sort"], env=ENV | {"A": "b"}, cwd=tmp_path, umask=0o027)
    lines = done.stdout.split("\n")
    assert lines[:2] == [str(tmp_path), "0027"] and "A=b" in lines
    assert not any(line.startswith("HOME=") for line in lines)


@pytest.mark.parametrize("argv", [["/nowhere/x"], ["/"], ["/etc/passwd"]])
def test_what_cannot_be_started(argv: list[str]) -> None:
    with pytest.raises(CommandError) as error:
        shell.run(argv, env=ENV)
    assert error.value.status is None and not error.value.timed_out and error.value.detail.endswith(argv[0])
    with pytest.raises(CommandError):
        shell.start(argv, env=ENV)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="could not be started"):
        shell.run(["true"], env=ENV, cwd=tmp_path / "none")


def test_a_time_out_ends_all_that_was_started(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CommandError) as error:
        shell.run(
            ["sh", "-c", f"echo early; echo why >&2; sleep 600 & echo $! >{tmp_path}/pid; wait"], env=ENV, timeout=5
        )
    assert time.monotonic() - began < HUNG
    assert error.value.timed_out and error.value.status is None
    assert (error.value.stdout, error.value.stderr, error.value.detail) == ("early\n", "why\n", "why")
    assert not alive(int(wait_for(tmp_path / "pid")))


def test_a_child_that_left_the_group_does_not_hold_us(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CommandError):
        shell.run(["sh", "-c", f"setsid sleep 600 & echo $! >{tmp_path}/pid; wait"], env=ENV, timeout=5)
    assert time.monotonic() - began < HUNG
    os.kill(int(wait_for(tmp_path / "pid")), signal.SIGKILL)


def test_an_interrupt_ends_the_program(tmp_path: Path) -> None:
    code = (
        "import signal\nfrom clusterrun.system import shell\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background begins without it
        f"shell.run(['sh', '-c', 'echo $$ >{tmp_path}/pid; exec sleep 60'], env={ENV!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    pid = int(wait_for(tmp_path / "pid"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HUNG)
    until(lambda: not alive(pid))


@pytest.mark.parametrize("call", ["run(['sleep', '60'], env=ENV)", "start(['sleep', '60'], env=ENV)"])
def test_an_interrupt_between_the_fork_and_popens_return_ends_the_program(call: str, tmp_path: Path) -> None:
    code = (
        "import signal, subprocess\nfrom clusterrun.system import shell\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "real = subprocess._fork_exec\n"
        "def fork(*args):\n"
        "    pid = real(*args)\n"
        f"    open('{tmp_path}/pid', 'w').write(f'{{pid}}\\n')\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    return pid\n"
        "subprocess._fork_exec = fork\n"
        f"ENV = {ENV!r}\nshell.{call}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HUNG)
    assert "KeyboardInterrupt" in done.stderr and done.returncode != 0
    assert not alive(int(wait_for(tmp_path / "pid")))


def test_an_interrupt_that_came_while_a_program_failed_to_start_is_not_lost() -> None:
    def fork(*args: object) -> int:
        signal.raise_signal(signal.SIGINT)
        raise FileNotFoundError(2, "No such file")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(subprocess, "_fork_exec", fork)
            shell.run(["/nowhere/x"], env=ENV)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_inherits_which_signals_are_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ignored = shell.run(["grep", "SigIgn", "/proc/self/status"], env=ENV).stdout.split()[1]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    blocked = shell.run(["grep", "SigBlk", "/proc/self/status"], env=ENV).stdout.split()[1]
    assert int(ignored, 16) & 1 << (signal.SIGINT - 1) and int(blocked, 16) == 0


def test_the_time_out_returns_only_when_the_last_of_the_group_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL is sent to all at once, and a busy machine carries it out when it gets to it."""
    real, late = os.killpg, threading.Timer(0.5, lambda: real(int((tmp_path / "group").read_text()), signal.SIGKILL))

    def leader_first(group: int, signum: int) -> None:
        os.kill(group, signum)
        if not (tmp_path / "group").exists():
            (tmp_path / "group").write_text(str(group))
            late.start()

    monkeypatch.setattr(os, "killpg", leader_first)
    monkeypatch.setattr(shell, "_DEATH", HUNG)
    with pytest.raises(CommandError):
        shell.run(["sh", "-c", f"sleep 60 >&- 2>&- & echo $! >{tmp_path}/pid; wait"], env=ENV, timeout=5)
    assert not alive(int(wait_for(tmp_path / "pid")))


def test_check_wants_success() -> None:
    assert shell.check_output(["echo", "x"], env=ENV) == "x\n"
    with pytest.raises(CommandError) as error:
        shell.check_output(["sh", "-c", "echo said >&2; exit 3"], env=ENV)
    assert (error.value.status, error.value.detail, error.value.message) == (3, "said", "sh: exit 3")


def test_start_leaves_the_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = shell.start(["sh", "-c", "ps -o sid= -p $$; umask; cat"], env=ENV, stdout=out, umask=0o077)
    assert process.wait(HUNG) == 0
    sid, umask = (tmp_path / "out").read_text().split()
    assert int(sid) == process.pid != os.getsid(0) and umask == "0077"


def test_a_program_may_end_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import signal\nfrom clusterrun.system import shell\n"
        f"p = shell.start(['sleep', '60'], env={ENV!r}, signal_at_parents_end=signal.SIGTERM)\n"
        f"open('{tmp_path}/pid', 'w').write(f'{{p.pid}}\\n')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    pid = int(wait_for(tmp_path / "pid"))
    until(lambda: not alive(pid))


# -- the environment -----------------------------------------------------------------------------------------------


def test_what_slurm_and_launchers_leave_is_dropped() -> None:
    left = [
        "SLURM_JOB_ID", "SLURM_EXPORT_ENV", "SBATCH_PARTITION", "SQUEUE_FORMAT", "SACCT_FORMAT", "SCANCEL_USER",
        "SINFO_ALL", "SLURMD_NODENAME", "SRUN_DEBUG", "PMI_RANK", "PMIX_RANK", "RANK",
        "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RUN_ID",
        "CLUSTERRUN_RUN_DIR",
    ]  # fmt: skip
    kept = [
        "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "PATH", "HOME", "RANKING", "MY_RANK", "SLURMISH",
        "CLUSTERRUN_STATE", "CLUSTERRUN_CONFIG", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "WORK", "TOKEN",
    ]  # fmt: skip
    clean, dropped = shell.scrub(dict.fromkeys([*left, *kept], "x"))
    assert sorted(clean) == sorted(kept) and dropped == sorted(left)


def test_slurms_answers_come_in_one_form() -> None:
    env = shell.query_environment(
        {"SQUEUE_FORMAT": "%i", "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE", "HOME": "/h"}
    )
    assert env["SLURM_TIME_FORMAT"] == "%s" and env["LC_ALL"] == "C.UTF-8" and env["TZ"] == "UTC"
    assert "SQUEUE_FORMAT" not in env and env["HOME"] == "/h"
