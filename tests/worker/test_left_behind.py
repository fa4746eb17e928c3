"""What others left on a node: GPU memory by a stand-in for nvidia-smi under every fault, segments, and ports."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterrun.run_folder.check_findings import BROKEN, DIFFERS, Finding
from clusterrun.worker import entry
from clusterrun.worker.node import left_behind, processes
from clusterrun.worker.rank.distenv import DistEnv
from tests.support.nvidia_smi import GPU, SECOND, NvidiaSmi, installed, row
from tests.support.patience import HUNG

MIG, OTHER_MIG = "MIG-11111111-aaaa-bbbb-cccc-000000000001", "MIG-22222222-aaaa-bbbb-cccc-000000000002"
ME = getpass.getuser()
Start = Callable[..., int]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvidiaSmi:
    """In a rank of job 7 that was given GPU 0."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(left_behind, "SMI_S", HUNG)
    for name in left_behind.SHARING:
        monkeypatch.delenv(name, raising=False)
    return installed(tmp_path / "programs", monkeypatch)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python program with these variables, and return its pid once it has printed a line."""
    with ExitStack() as stack:

        def run(code: str = "", **variables: str) -> int:
            environ = {name: value for name, value in os.environ.items() if name != "SLURM_JOB_ID"} | variables
            command = [sys.executable, "-c", f"{code}\nprint(flush=True)\ninput()"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = stack.enter_context(subprocess.Popen(command, env=environ, **pipes))  # type: ignore[call-overload]
            stack.callback(process.kill)
            assert process.stdout.readline() == b"\n"
            return int(process.pid)

        yield run


class Proc:
    """A made-up /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "uptime").write_text("90000.50 1.0\n")

    def add(self, pid: int, name: str = "python3", uid: int = 4711, job: str = "", flags: int = 0, state: str = "S",
            **files: str) -> None:  # fmt: skip
        folder = self.folder / str(pid)
        folder.mkdir()
        started = (90000 - 3 * 3600) * os.sysconf("SC_CLK_TCK")
        (folder / "stat").write_text(f"{pid} ({name}) {state} 1 1 1 0 -1 {flags} {'0 ' * 12}{started} 0\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        scope = f"/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0" if job else "/user.slice"
        (folder / "cgroup").write_text(f"0::{scope}\n")
        for file, text in files.items():
            (folder / file).write_text(text)


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    made = Proc(tmp_path / "proc")
    monkeypatch.setattr(processes, "PROC", made.folder)
    return made


def refuse(pid: int, signal: int) -> None:
    if signal == 0:
        raise PermissionError(1, "Operation not permitted")


# -- GPU memory --------------------------------------------------------------------------------------------------------


def test_process_of_another_job_is_named_with_its_owner_age_and_size(smi: NvidiaSmi, start: Start) -> None:
    pid = start(SLURM_JOB_ID="118")
    smi.says(row(pid, 40960))
    (found,) = left_behind.on_gpus("n2")
    assert (found.status, found.check, found.where) == (BROKEN, "left behind", ("n2",))
    name = Path(f"/proc/{pid}/comm").read_text().strip()
    assert found.text.startswith(f"n2: process {pid} ({name}) of {ME}, job 118, started ")
    assert found.text.endswith(" s ago, holds 40.0 GiB of GPU memory") and found.action == f"end it on n2: kill {pid}"
    (call,) = smi.calls
    assert "--id=0" in call.split()


def test_process_of_this_job_is_not_named_by_environment_nor_by_cgroup(
    smi: NvidiaSmi, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.says(row(start(SLURM_JOB_ID="7"), 40960))
    assert left_behind.on_gpus("n2") == []
    proc = Proc(tmp_path / "proc")
    monkeypatch.setattr(processes, "PROC", proc.folder)
    proc.add(31, job="7")
    smi.says(row(31, 40960))
    assert left_behind.on_gpus("n2") == []
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("CLUSTERRUN_JOB_ID", "L3")
    assert len(left_behind.on_gpus("local0")) == 1
    (proc.folder / "31/environ").write_text("A=b\0CLUSTERRUN_JOB_ID=L3\0")
    assert left_behind.on_gpus("local0") == []


def test_process_of_another_user_is_named_by_what_everybody_may_read(smi: NvidiaSmi, proc: Proc) -> None:
    proc.add(31, uid=0, job="118")
    (proc.folder / "31/environ").mkdir()  # cannot be read
    smi.says(row(31, 2048))
    (found,) = left_behind.on_gpus("n2")
    assert found.text == "n2: process 31 (python3) of root, job 118, started 3 h ago, holds 2.0 GiB of GPU memory"
    if os.getuid():
        assert found.action == "use --exclude n2, and tell your administrators"


def test_process_that_proc_hides_is_named_but_not_one_that_has_ended(
    smi: NvidiaSmi, proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.says(row(999_999_999, 2048))
    assert left_behind.on_gpus("n2") == []
    monkeypatch.setattr(os, "kill", refuse)
    (found,) = left_behind.on_gpus("n2")
    assert found.text == ("n2: process 999999999 of another user, which /proc hides, holds 2.0 GiB of GPU memory")
    assert found.action == "use --exclude n2, and tell your administrators"


@pytest.mark.parametrize("size", ["[N/A]", "[Insufficient Permissions]", "[Not Supported]", "400"])
def test_size_that_is_small_or_unknown_ends_no_launch(smi: NvidiaSmi, proc: Proc, size: str) -> None:
    proc.add(31)
    smi.says(row(31, size))
    (found,) = left_behind.on_gpus("n2")
    assert found.status == DIFFERS
    holds = "holds 400.0 MiB of GPU memory" if size == "400" else "holds GPU memory (nvidia-smi does not say how much)"
    assert found.text.endswith(holds)


@pytest.mark.parametrize("how", [{"flags": 0x40000C}, {"state": "Z"}])
def test_process_that_is_ending_ends_no_launch(smi: NvidiaSmi, proc: Proc, how: dict[str, object]) -> None:
    proc.add(31, **how)  # type: ignore[arg-type]
    smi.says(row(31, 40960))
    (found,) = left_behind.on_gpus("n2")
    assert found.status == DIFFERS and found.text.endswith(" holds 40.0 GiB of GPU memory, and is ending")


def test_memory_on_several_gpus_is_one_line_and_the_largest_come_first(
    smi: NvidiaSmi, proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{GPU},{SECOND}")
    for pid in range(31, 41):
        proc.add(pid)
    smi.says(*(row(pid, 100) for pid in range(32, 41)), row(31, 1024), row(31, 2048, SECOND))
    first, *rest = left_behind.on_gpus("n2")
    assert first.text.endswith(" holds 3.0 GiB of GPU memory on 2 GPUs") and "process 31 " in first.text
    assert len(rest) == left_behind.MOST_SHOWN - 1
    assert f"--id={GPU},{SECOND}" in smi.calls[0]


def test_name_of_a_process_cannot_write_into_the_log(smi: NvidiaSmi, proc: Proc) -> None:
    proc.add(31, name="a) b\n\x1b[2Jc")
    smi.says(row(31, 2048))
    (found,) = left_behind.on_gpus("n2")
    assert "process 31 (a) b??[2Jc) of" in found.text


def test_of_instances_only_those_of_this_job_count(
    smi: NvidiaSmi, proc: Proc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for pid in (31, 32, 33):
        proc.add(pid)
    smi.says(row(31, 2048, OTHER_MIG), row(32, 2048, MIG), row(33, 2048, GPU))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", MIG)
    (found,) = left_behind.on_gpus("n2")
    assert "process 32 " in found.text and "--id" not in smi.calls[-1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (found,) = left_behind.on_gpus("n2")
    assert "process 33 " in found.text
    (tmp_path / "gpu0/mig/gi1").mkdir(parents=True)
    monkeypatch.setattr(left_behind, "INSTANCES", tmp_path)
    assert left_behind.on_gpus("n2") == [], "the row does not say in which instance of GPU 0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU)
    (found,) = left_behind.on_gpus("n2")
    assert "process 33 " in found.text


@pytest.mark.parametrize(
    "script",
    [
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
        "echo 'No devices were found'; exit 6",
        "echo 'GPU-1, thirty-one, 2048'; echo 'GPU-1, 31'; echo ', , ,'; printf '\\377\\000\\n'",
        f"echo '{GPU}, 99999999999999999999, 2048'; echo '{GPU}, -1, 2048'; echo '{GPU}, 0, 2048'",
        "exec cat /dev/zero",
        f"while :; do echo '{GPU}, 31, 2048'; done",
        "exit 0",
        "kill -SEGV $$",
    ],
)
def test_answer_of_another_kind_finds_nothing(smi: NvidiaSmi, proc: Proc, script: str) -> None:
    proc.add(31)
    smi.does(script)
    assert left_behind.on_gpus("n2") == [] and len(smi.calls) == 1


def test_nvidia_smi_that_hangs_is_ended(smi: NvidiaSmi, proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "SMI_S", 0.5)
    proc.add(31)
    smi.does(f"echo '{GPU}, 31, 2048'; echo $$ >{smi.folder}/pid; exec sleep {HUNG}")
    assert left_behind.on_gpus("n2") == []
    if (smi.folder / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((smi.folder / "pid").read_text()), 0)


def test_nvidia_smi_that_no_signal_reaches_is_left_alone(
    smi: NvidiaSmi, proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "SMI_S", 0.2)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)  # as one that waits for the driver
    monkeypatch.setattr(subprocess.Popen, "__del__", lambda process: None)
    proc.add(31)
    smi.does(f"echo '{GPU}, 31, 2048'; exec sleep 10")
    assert left_behind.on_gpus("n2") == []


def test_without_nvidia_smi_a_search_finds_nothing(smi: NvidiaSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "are_all_visible", lambda: True)
    assert not (smi.folder / "nvidia-smi").exists() and search().found() == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("CUDA_VISIBLE_DEVICES", ""), ("CUDA_VISIBLE_DEVICES", "NoDevFiles"), ("CUDA_VISIBLE_DEVICES", "-1"),
     ("CUDA_VISIBLE_DEVICES", "0,--help"), ("SLURM_SHARDS_ON_NODE", "2"),
     ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")],
)  # fmt: skip
def test_gpus_that_are_not_this_jobs_alone_are_not_looked_at(
    smi: NvidiaSmi, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    smi.says(row(os.getppid(), 40960))
    monkeypatch.setenv(name, value)
    assert left_behind.on_gpus("n2") == [] and smi.calls == []


# -- the search --------------------------------------------------------------------------------------------------------


def search(then: Callable[[object], None] = lambda found: None) -> left_behind.Search:
    return left_behind.Search("n2", range(10_000, 20_000), then)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is left behind."""
    monkeypatch.setattr(processes, "are_all_visible", lambda: True)
    for name in ("in_shared_memory", "on_ports", "on_gpus"):
        monkeypatch.setattr(left_behind, name, lambda *arguments: [])
    return monkeypatch


def test_each_finding_is_a_line_of_the_log(quiet: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    quiet.setattr(
        left_behind, "on_gpus", lambda node: [Finding(BROKEN, "x", f"{node}: a", "do b"), Finding("", "", "c", "d")]
    )
    assert len(search(left_behind.tell).found()) == 2
    assert capsys.readouterr().err == "clusterrun: n2: a; do b\nclusterrun: c; d\n"


def test_look_that_fails_does_not_hide_what_others_find(quiet: pytest.MonkeyPatch) -> None:
    quiet.setattr(left_behind, "in_shared_memory", lambda node: os.statvfs("/none"))
    quiet.setattr(left_behind, "on_ports", lambda node, ports: [Finding(DIFFERS, "x", "a")])
    quiet.setattr(left_behind, "on_gpus", lambda node: 1 / 0)
    assert [one.text for one in search().found()] == ["a"]


def test_look_that_hangs_holds_nobody_up(quiet: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    quiet.setattr(left_behind, "LIMIT_S", 0.1)
    quiet.setattr(left_behind, "on_gpus", lambda node: [Finding(str(over.wait(HUNG)), "", "")])
    began = time.monotonic()
    assert search().found() == [] and time.monotonic() - began < HUNG
    over.set()


@pytest.mark.parametrize("ids", ["pid:[4026532211]", None])
def test_with_process_ids_of_its_own_a_container_finds_nothing(
    quiet: pytest.MonkeyPatch, proc: Proc, ids: str | None
) -> None:
    quiet.undo()
    quiet.setattr(processes, "PROC", proc.folder)
    quiet.setattr(left_behind, "on_gpus", lambda node: [Finding(BROKEN, "x", "a")])
    if ids is not None:
        (proc.folder / "self/ns").mkdir(parents=True)
        (proc.folder / "self/ns/pid").symlink_to(ids)
    assert search().found() == []


@pytest.mark.parametrize(
    ("local_rank", "checks_first", "looks"), [(0, False, True), (1, False, False), (0, True, False)]
)
def test_first_rank_of_a_node_looks_unless_the_checks_do(
    monkeypatch: pytest.MonkeyPatch, local_rank: int, checks_first: bool, looks: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(left_behind, "Search", lambda node, ports, then: asked.append(node))
    entry._look_around(DistEnv(2 + local_rank, local_rank, 4, 2, 1, "n2", "h", 2, "slurm", ("h", 1)), checks_first)
    assert asked == ["n2"] * looks


@pytest.mark.skipif(not processes.are_all_visible(), reason="this machine is a container with its own process ids")
def test_rank_says_what_others_hold_and_runs(smi: NvidiaSmi, start: Start, worker: Path, tmp_path: Path) -> None:
    pid = start(SLURM_JOB_ID="118")
    smi.says(row(pid, 40960))
    script = f'until [ -e "{tmp_path}/go" ]; do sleep 0.05; done; echo it runs'
    command = [sys.executable, "-u", str(worker / "__main__.py"), "command", "--", "sh", "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=dict(os.environ), text=True, **pipes) as rank:  # type: ignore[call-overload]
        try:
            line = rank.stderr.readline()
        finally:
            (tmp_path / "go").touch()
        out, _ = rank.communicate()
    assert f": process {pid} (" in line and "holds 40.0 GiB of GPU memory; end it on" in line
    assert rank.returncode == 0 and out.endswith("it runs\n")


# -- shared memory -----------------------------------------------------------------------------------------------------

MIB = 2**20


@pytest.fixture
def shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev/shm of 100 MiB, of which 60 are free."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(left_behind, "SHM", folder)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=100, f_bavail=60, f_frsize=MIB))
    return folder


def leave(shm: Path, name: str, size: int = 4, mode: int = 0o600, age: float = 0) -> Path:
    path = shm / name
    path.write_bytes(b"x" * size * MIB)
    path.chmod(mode)
    os.utime(path, times=(time.time() - age,) * 2)
    return path


def test_segments_that_nobody_uses_are_named_with_size_age_and_a_command(shm: Path) -> None:
    leave(shm, "nccl-aB3xQ9", 8, age=3 * 3600)
    leave(shm, "torch_999999998_42_0", 16)
    (found,) = left_behind.in_shared_memory("n2")
    assert found == Finding(
        DIFFERS, "left behind", f"n2: no process uses 2 segments in {shm} (24.0 MiB, up to 3 h old)",
        f"remove what you do not need on n2: rm {shm}/torch_999999998_42_0 {shm}/nccl-aB3xQ9", ("n2",),
    )  # fmt: skip
    assert sorted(path.name for path in shm.iterdir()) == ["nccl-aB3xQ9", "torch_999999998_42_0"]


def test_of_many_segments_the_largest_are_in_the_command(shm: Path) -> None:
    for number in range(1, 11):
        leave(shm, f"psm_{number:02}", number)
    (found,) = left_behind.in_shared_memory("n2")
    shown = [f"{shm}/psm_{number:02}" for number in range(10, 10 - left_behind.MOST_SHOWN, -1)]
    assert found.action.endswith(f"rm {' '.join(shown)} (and {10 - left_behind.MOST_SHOWN} more)")


def test_segment_that_is_mapped_or_open_anywhere_is_in_use(shm: Path, start: Start) -> None:
    opened, mapped = leave(shm, "nccl-opened"), leave(shm, "psm_mapped")
    start(f"held = open({str(opened)!r})")
    start(
        f"import mmap\nwith open({str(mapped)!r}, 'r+b') as file:\n    held = mmap.mmap(file.fileno(), 0)",
    )
    assert left_behind.in_shared_memory("n2") == []
    leave(shm, f"torch_{start()}_42_0")  # a batch on its way
    assert left_behind.in_shared_memory("n2") == []
    leave(shm, "torch_999999999_2_3")
    (found,) = left_behind.in_shared_memory("n2")
    assert "1 segment in" in found.text and "torch_999999999_2_3" in found.action


def test_data_of_the_user_and_what_others_can_open_are_no_segments(shm: Path) -> None:
    leave(shm, "imagenet.tar", 30)
    leave(shm, "torch_data; rm -r x", 30)
    leave(shm, "nccl-shared", 30, mode=0o644)
    (shm / "psm_folder").mkdir()
    (shm / "psm_link").symlink_to(shm / "imagenet.tar")
    assert left_behind.in_shared_memory("n2") == []


def test_segments_of_other_users_are_not_named(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(shm, "nccl-aB3xQ9", 30)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert left_behind.in_shared_memory("n2") == []


def test_little_is_not_worth_a_line_and_a_full_memory_ends_a_launch(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(shm, "nccl-aB3xQ9", 2)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=300, f_bavail=1, f_frsize=MIB))
    assert left_behind.in_shared_memory("n2") == []
    leave(shm, "torch_999999999_2_3", 2)
    (found,) = left_behind.in_shared_memory("n2")
    assert found.status == BROKEN


# -- ports -------------------------------------------------------------------------------------------------------------

LISTENS = """
import socket
held = socket.socket()
held.bind(("127.0.0.1", 0))
held.listen()
print(held.getsockname()[1], file=open({file!r}, "w"), flush=True)
"""


def listener(start: Start, folder: Path, **variables: str) -> tuple[int, int]:
    """The pid of a process that listens, and its port."""
    file = folder / "port"
    pid = start(LISTENS.format(file=str(file)), **variables)
    return pid, int(file.read_text())


def test_port_that_a_process_of_an_ended_job_holds_is_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(processes, "jobs_of_node", lambda: {"7", "9"})
    pid, port = listener(start, tmp_path, SLURM_JOB_ID="118")
    (found,) = left_behind.on_ports("n2", range(port, port + 1))
    assert found.status == DIFFERS and found.action == f"end it on n2: kill {pid}"
    assert f"n2: process {pid} (" in found.text and ", job 118, started " in found.text
    assert found.text.endswith(f" holds port {port}, but its job has ended")
    assert left_behind.on_ports("n2", range(port + 1, port + 2)) == []
    monkeypatch.setattr(processes, "jobs_of_node", lambda: {"7", "118"})
    assert left_behind.on_ports("n2", range(port, port + 1)) == []
    monkeypatch.setattr(processes, "jobs_of_node", set)  # hidden
    assert left_behind.on_ports("n2", range(port, port + 1)) == []
    monkeypatch.delenv("SLURM_JOB_ID")
    assert left_behind.on_ports("n2", range(port, port + 1)) == []


@pytest.mark.parametrize("variables", [{"SLURM_JOB_ID": "7"}, {}, {"CLUSTERRUN_JOB_ID": "L3"}])
def test_port_of_this_job_or_of_no_slurm_job_is_not_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(processes, "jobs_of_node", lambda: {"7"})
    _, port = listener(start, tmp_path, **variables)
    assert left_behind.on_ports("n2", range(port, port + 1)) == []


@pytest.mark.parametrize("table", ["", "sl\n", "sl\n0: 0:ZZZZ 0:0 0A 0:0 0:0 0 {uid} 0 1\n", "sl\n\xff 1 2\n0: 0A"])
def test_table_of_sockets_may_hold_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setattr(left_behind, "NET", tmp_path)
    (tmp_path / "tcp").write_text(table.format(uid=os.getuid()), encoding="latin-1")
    assert left_behind._listening(range(1, 65_536)) == {}


def test_jobs_of_a_node_are_those_whose_steps_slurm_watches(proc: Proc) -> None:
    proc.add(31, cmdline="slurmstepd: [118.batch]\0")
    proc.add(32, cmdline="slurmstepd: [118.0]\0")
    proc.add(33, cmdline="slurmstepd: [7.extern]")
    proc.add(34, cmdline="grep slurmstepd: x")
    proc.add(35)
    assert processes.jobs_of_node() == {"118", "7"}


@pytest.mark.parametrize("stat", ["", "31 (x", "31 (x) S 1", "31 (x) S 1 1 1 0 -1 y" + " 0" * 20])
def test_process_whose_facts_are_cut_off_is_none(proc: Proc, stat: str) -> None:
    proc.add(31)
    (proc.folder / "31/stat").write_text(stat)
    assert processes.look_at(31) is None
