"""The log clock: what the helper beside the job notes, and what is made of it, whatever stands in the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs.files import MOST, clock_ticks, parse_ticks, read_ticks
from clusterrun.worker.rank import rendezvous
from tests.support.installed_command import until


def attempt(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.mkdir()
    (path / "log-clock").write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_ticks_of_all_attempts_come_by_time(tmp_path: Path) -> None:
    second = attempt(tmp_path, "b", "30.5 200 20\n")
    first = attempt(tmp_path, "a", "10.25 0 0\n20 100 10\n")
    assert [tuple(t) for t in clock_ticks([second, first])] == [(10.25, 0, 0), (20.0, 100, 10), (30.5, 200, 20)]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"1 2",
        b"1 2 3 4",
        b"x 2 3",
        b"1 -2 3",
        b"nan 2 3",
        b"inf 2 3",
        b"1 2 " + b"9" * 5000,
        b"\xff \0 3",
        b"-1 2 3",
    ],
)
def test_a_line_that_is_no_tick_is_left_out(line: bytes) -> None:
    assert [tuple(t) for t in parse_ticks(b"5 1 1\n" + line + b"\n6 2 2\n")] == [(5, 1, 1), (6, 2, 2)]


def test_a_torn_last_line_is_left_out() -> None:
    assert [t.out for t in parse_ticks(b"5 100 1\n6 20")] == [100]
    assert [t.out for t in parse_ticks(b"5 100 1\n6 200 1")] == [100], "it may have been 200 12"


@given(st.binary(max_size=300))
def test_any_bytes_are_read(data: bytes) -> None:
    assert all(tick.time >= 0 and tick.out >= 0 for tick in parse_ticks(data))


def test_of_a_huge_clock_the_end_is_read(tmp_path: Path) -> None:
    folder = attempt(tmp_path, "a", b"1 1 1\n" + b"x" * MOST + b"\n9 9 9\n")
    assert [tuple(t) for t in clock_ticks([folder])] == [(9, 9, 9)]


def test_a_clock_that_is_a_link_a_folder_or_missing_is_none(tmp_path: Path) -> None:
    real = attempt(tmp_path, "real", "1 1 1\n")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "log-clock").symlink_to(real / "log-clock")
    (tmp_path / "folder" / "log-clock").mkdir(parents=True)
    assert clock_ticks([tmp_path / "link", tmp_path / "folder", tmp_path / "none"]) == []


def test_the_logs_themselves_are_the_last_tick(tmp_path: Path) -> None:
    folder = attempt(tmp_path, "a", "10 3 0\n")
    out, err = tmp_path / "o", tmp_path / "e"
    out.write_text("hello\n")
    err.write_text("")
    for path, time in ((out, 50), (err, 20)):
        os.utime(path, (time, time))
    assert [tuple(t) for t in read_ticks([folder], (out, err))] == [(10, 3, 0), (50, 6, 0)]
    assert read_ticks([], (out, err)) == (), "without a clock nothing is known"
    assert len(read_ticks([folder], (out, tmp_path / "gone"))) == 1


class Stop(Exception):
    pass


def keep(clock: Path, steps: int, each: object = lambda: None) -> None:
    """Let the clock of this process look that many times; ``each`` is done in between."""
    left = [steps]

    def sleep(_: float) -> None:
        left[0] -= 1
        if not left[0]:
            raise Stop
        each()  # type: ignore[operator]

    with pytest.raises(Stop):
        rendezvous._keep_clock(os.getpid(), clock, sleep)


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two files that stand for the descriptors 1 and 2 of the script."""
    paths = tmp_path / "out", tmp_path / "err"
    for path in paths:
        path.write_text("")
    real = rendezvous._log_size
    monkeypatch.setattr(rendezvous, "_log_size", lambda fd: real(str(paths[int(fd[-1]) - 1])))
    return paths


def test_the_clock_notes_only_what_changed(tmp_path: Path, logs: tuple[Path, Path]) -> None:
    texts = iter(["", "hello", "", "hello!"])
    keep(tmp_path / "clock", 4, lambda: (t := next(texts)) and logs[0].write_text(t))
    sizes = [line.split()[1:] for line in (tmp_path / "clock").read_text().splitlines()]
    assert sizes == [["0", "0"], ["5", "0"]]


def test_a_clock_that_cannot_be_written_is_silent(tmp_path: Path, logs: tuple[Path, Path]) -> None:
    rendezvous._keep_clock(os.getpid(), tmp_path / "no such folder" / "clock")  # comes back by itself
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    keep(tmp_path / "link", 3)
    assert not (tmp_path / "victim").exists()


def test_it_is_noted_less_often_the_longer_it_lasts(
    tmp_path: Path, logs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "CLOCK_LINES", 2)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        logs[0].write_text("x" * len(pauses))
        if len(pauses) == 5:
            raise Stop

    with pytest.raises(Stop):
        rendezvous._keep_clock(os.getpid(), tmp_path / "clock", sleep)
    assert pauses == [2, 4, 4, 8, 8]


def test_a_pipe_has_no_length_to_note(tmp_path: Path) -> None:
    script = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, stdout=-1, stderr=-1)
    try:
        rendezvous._keep_clock(script.pid, tmp_path / "clock")  # comes back by itself
        assert not (tmp_path / "clock").exists()
    finally:
        script.communicate(b"\n")


def test_the_helper_keeps_it_for_the_script_it_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        code = "import sys; print('hello', flush=True); print('oh', file=sys.stderr, flush=True); input()"
        script = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=out, stderr=err)
    try:
        until(lambda: (tmp_path / "err").stat().st_size, 20)
        monkeypatch.setenv("CLUSTERRUN_ATTEMPT_DIR", str(tmp_path))
        rendezvous.keep_clock(script.pid)
        until(lambda: clock_ticks([tmp_path]), 10)
        assert tuple(clock_ticks([tmp_path])[0])[1:] == (6, 3)
    finally:
        script.communicate(b"\n")
