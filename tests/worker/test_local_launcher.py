from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.worker.node.local_launcher import PIECE, Labeler, rank_environment, visible_devices
from tests.support.patience import HUNG


def command(worker: Path, nodes: int, tasks: int, script: str, *options: str) -> list[str]:
    step = [
        sys.executable,
        str(worker / "node" / "local_launcher.py"),
        "--nodes",
        str(nodes),
        "--tasks-per-node",
        str(tasks),
    ]
    return [*step, "--devices", "cpu", *options, "--", "sh", "-c", script]


def run(worker: Path, nodes: int, tasks: int, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(worker, nodes, tasks, script, *options), capture_output=True, text=True, timeout=HUNG)


def gone(marker: str) -> bool:
    """No process has the marker on its command line any more."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                return False
        except OSError:
            continue
    return True


def wait_for(condition, seconds: float = HUNG) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not (done := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return done


def test_label_is_as_wide_as_the_largest_rank() -> None:
    assert Labeler(2, 11).feed(b"a\n") == b" 2: a\n"
    assert Labeler(10, 11).feed(b"a\n\nb") == b"10: a\n10: \n"
    assert Labeler(0, 10).feed(b"a\n") == b"0: a\n"


def test_a_long_line_is_cut_like_srun_does() -> None:
    labeler = Labeler(0, 1)
    out = labeler.feed(b"x" * (2 * PIECE + 5)) + labeler.feed(b"y\n")
    assert out == b"0: " + b"x" * PIECE + b"\n0: " + b"x" * PIECE + b"\n0: xxxxxy\n"
    assert labeler.rest == b""


@given(st.lists(st.binary(max_size=3000), max_size=8))
def test_however_the_bytes_come_lines_and_memory_are_the_same(chunks: list[bytes]) -> None:
    def join(text: bytes) -> bytes:
        """What the logs' reader does: pieces of exactly PIECE bytes go on in the next line."""
        lines = [line.removeprefix(b"0: ") for line in text.split(b"\n")[:-1]]
        return b"".join(line if len(line) == PIECE else line + b"\n" for line in lines)

    whole = b"".join(chunks)
    labeler, out = Labeler(0, 1), b""
    for chunk in chunks:
        out += labeler.feed(chunk)
        assert len(labeler.rest) < PIECE
    out += labeler.close()
    if not any(len(line) % PIECE == 0 and line for line in whole.split(b"\n")):  # the one ambiguous case
        assert join(out) == whole + (b"" if whole.endswith(b"\n") or not whole else b"\n")


def test_every_simulated_node_has_its_own_slice_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5, GPU-ab,7")
    devices = visible_devices()
    assert devices == ["4", "5", "GPU-ab", "7"]
    third = rank_environment(3, nodes=2, per_node=2, devices=devices)
    assert (third["CUDA_VISIBLE_DEVICES"], third["LOCAL_RANK"], third["CLUSTERRUN_NODE_NAME"]) == (
        "GPU-ab,7",
        "1",
        "local1",
    )
    assert rank_environment(0, 2, 2, None)["CUDA_VISIBLE_DEVICES"] == ""


def test_streams_are_labelled_and_apart(worker: Path) -> None:
    done = run(worker, 2, 1, "echo out $RANK $LOCAL_RANK $WORLD_SIZE $GROUP_RANK; printf 'no newline' >&2; cat")
    assert sorted(done.stdout.splitlines()) == ["0: out 0 0 2 0", "1: out 1 0 2 1"]
    assert sorted(done.stderr.splitlines()) == ["0: no newline", "1: no newline"]
    assert done.returncode == 0


def test_the_first_bad_rank_ends_the_others_and_gives_the_status(worker: Path) -> None:
    began = time.monotonic()
    done = run(worker, 2, 2, "[ $RANK = 2 ] && exit 3; exec sleep 61.25")
    assert done.returncode == 3 and "rank 2 on local1 exited with 3" in done.stderr
    assert time.monotonic() - began < 60 and gone("61.25")


def test_a_signalled_rank_gives_128_and_its_number(worker: Path) -> None:
    assert run(worker, 1, 2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 60").returncode == 137


def test_who_ignores_term_is_killed_after_the_grace(worker: Path) -> None:
    began = time.monotonic()
    done = run(
        worker, 1, 2, "trap '' TERM; [ $RANK = 0 ] && sleep 0.5 && exit 4; sleep 62.25; sleep 62.25", "--grace", "1"
    )
    assert done.returncode == 4 and 0.9 < time.monotonic() - began < 60
    assert wait_for(lambda: gone("62.25"))


def test_term_ends_the_whole_tree(worker: Path) -> None:
    script = "sleep 63.25 & echo ready; sleep 63.25; echo not reached"
    step = subprocess.Popen(command(worker, 2, 2, script), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert step.stdout is not None
    assert all("ready" in step.stdout.readline() for _ in range(4))
    step.send_signal(signal.SIGTERM)
    out, _ = step.communicate(timeout=HUNG)
    assert step.returncode == 143 and "not reached" not in out
    assert wait_for(lambda: gone("63.25"))


def test_ranks_die_with_a_killed_step(worker: Path) -> None:
    step = subprocess.Popen(command(worker, 1, 2, "exec sleep 64.25"), stdout=subprocess.DEVNULL)
    assert wait_for(lambda: children(step.pid, "sleep") == 2)
    step.kill()
    step.wait()
    assert wait_for(lambda: gone("64.25"))


def test_usr1_is_passed_on_once(worker: Path) -> None:
    script = "trap 'echo got; exit 0' USR1; echo ready; i=0; while [ $i -lt 3000 ]; do sleep 0.1; i=$((i+1)); done"
    step = subprocess.Popen(command(worker, 1, 2, script), stdout=subprocess.PIPE, text=True)
    assert step.stdout is not None
    assert {step.stdout.readline(), step.stdout.readline()} == {"0: ready\n", "1: ready\n"}
    step.send_signal(signal.SIGUSR1)
    out, _ = step.communicate(timeout=HUNG)
    assert sorted(out.splitlines()) == ["0: got", "1: got"] and step.returncode == 0


def test_sixty_four_ranks(worker: Path) -> None:
    done = run(worker, 8, 8, "echo $RANK $CLUSTERRUN_NODE_NAME")
    expected = {f"{r:>2}: {r} local{r // 8}" for r in range(64)}
    assert done.returncode == 0 and set(done.stdout.splitlines()) == expected


def test_a_background_child_does_not_hold_the_step(worker: Path) -> None:
    began = time.monotonic()
    assert run(worker, 1, 1, "sleep 65.25 & echo done").returncode == 0
    assert time.monotonic() - began < 60 and wait_for(lambda: gone("65.25"))


def test_a_closed_output_does_not_end_the_run(worker: Path, tmp_path: Path) -> None:
    script = f"i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; echo end > {tmp_path}/end"
    step = subprocess.Popen(command(worker, 1, 1, script), stdout=subprocess.PIPE)
    assert step.stdout is not None
    step.stdout.close()
    assert step.wait(HUNG) == 0 and (tmp_path / "end").exists()


@pytest.mark.parametrize(
    ("options", "status"), [((), 127), (("--devices", "cuda"), 2)], ids=["no such command", "too few devices"]
)
def test_what_cannot_start_says_so_in_one_line(worker: Path, options: tuple[str, ...], status: int) -> None:
    step = [
        sys.executable,
        str(worker / "node" / "local_launcher.py"),
        "--nodes",
        "1",
        "--tasks-per-node",
        "2",
        *options,
    ]
    environ = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*step, "--", "/no/such"], capture_output=True, text=True, env=environ, timeout=HUNG)
    assert done.returncode == status and done.stderr.count("\n") == 1


def children(pid: int, name: str) -> int:
    """How many children of a process run a program of this name."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            comm, rest = entry.read_text().split("(", 1)[1].rsplit(")", 1)
        except (OSError, ValueError):
            continue
        count += comm == name and int(rest.split()[1]) == pid
    return count
