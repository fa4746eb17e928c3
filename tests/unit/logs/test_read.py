"""Reading what is there: all lines, the last ones of large files, and what is not a plain file."""

import os
import re
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import RequestError
from clusterrun.base.job import JobId, log_paths
from clusterrun.logs.reading import BEFORE
from tests.support.log_texts import follow, pieces, read_lines, texts


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "train_1.out", tmp_path / "train_1.err"


@pytest.mark.parametrize(
    ("job", "name"),
    [("123", "train_123"), ("123_0", "train_123_0"), ("L7", "train_L7"), ("123+1", "train_123"), ("5;east", "train_5")],
)
def test_log_paths_are_named_after_the_job(job, name):
    assert log_paths(Path("logs"), JobId.parse(job)) == (Path(f"logs/{name}.out"), Path(f"logs/{name}.err"))


def test_out_comes_before_err_and_each_line_says_which(logs):
    logs[0].write_text("0: a\n0: b\n")
    logs[1].write_text("0: c\n")
    assert [(line.stream, line.text) for line in read_lines(logs)] == [("out", "a"), ("out", "b"), ("err", "c")]


@pytest.mark.parametrize(("stream", "expected"), [("out", ["a"]), ("err", ["c"]), ("both", ["a", "c"])])
def test_only_the_streams_asked_for_are_read(logs, stream, expected):
    logs[0].write_text("a\n")
    logs[1].write_text("c\n")
    assert texts(read_lines(logs, stream=stream)) == expected


def test_a_log_that_does_not_exist_has_no_lines(logs):
    assert list(read_lines(logs)) == []


def test_a_last_line_without_its_newline_is_read(logs):
    logs[0].write_text("0: a\n0: b")
    assert texts(read_lines(logs)) == ["a", "b"]


def test_filters_by_rank_and_pattern(logs):
    logs[0].write_text("batch loss\n0: loss 1\n1: loss 2\n1: other\n2: loss 3\n")
    assert texts(read_lines(logs, ranks={1, 2}, grep=re.compile("^loss"))) == ["loss 2", "loss 3"]


@given(count=st.integers(0, 30), tail=st.integers(0, 40), newline=st.booleans())
def test_tail_is_the_end_of_all_lines(tmp_path_factory, count, tail, newline):
    path = tmp_path_factory.mktemp("t") / "log"
    path.write_text("\n".join(f"0: {i}" for i in range(count)) + ("\n" if newline and count else ""))
    both = (path, path.with_name("none"))
    every = texts(read_lines(both))
    assert texts(read_lines(both, tail=tail)) == (every[-tail:] if tail else [])


def test_tail_of_a_large_file_is_the_end_of_all_lines(logs):
    logs[0].write_bytes(
        b"".join(b"".join(pieces(i % 8, b"line %d " % i + b"x" * (i * 7 % 150), 8)) for i in range(40_000))
    )
    every = texts(read_lines(logs))
    for tail in (1, 50, 9_000, 10_001, 39_999, 10**9):
        assert texts(read_lines(logs, tail=tail)) == every[-tail:], tail


def test_tail_with_filters_looks_back_for_lines_that_pass(logs):
    logs[0].write_text("3: rare\n" + "0: often\n" * 200_000 + "3: rarer\n" + "0: often\n" * 50_000)
    assert texts(read_lines(logs, tail=2, ranks={3})) == ["rare", "rarer"]


def test_tail_joins_pieces_that_began_before_the_place_it_reads_from(logs):
    long_line = pieces(1, b"begin " + b"x" * 50_000, 2)
    others = [b"0: other\n" * 6] * len(long_line)
    mixed = b"".join(b for pair in zip(long_line, others, strict=True) for b in pair)
    # The end of the file is moved, so that each part of the long line is once where counting begins.
    short = b"0: " + b"s" * 96 + b"\n"
    for after in range((BEFORE - len(mixed)) // len(short), BEFORE // len(short), 40):
        logs[0].write_bytes(short * 3_000 + mixed + short * after)
        line = next(iter(read_lines(logs, tail=after + 7)))
        assert (line.rank, len(line.text)) == (1, 50_006)


def test_tail_of_one_very_long_line_is_its_beginning(logs):
    logs[0].write_bytes(b"0: first\n0: start" + b"y" * 3_000_000 + b"\n")
    (line,) = read_lines(logs, tail=1)
    assert (line.rank, line.text[:6], line.cut > 2_700_000) == (0, "starty", True)


def bytes_read() -> int:
    """What this process has read from files up to now."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_tail_of_a_5_gb_file_reads_little_and_needs_little_memory(logs):
    with logs[0].open("wb") as file:
        file.truncate(5 * 10**9)  # sparse: reading it all would take seconds, or run out of memory
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"0: line %d\n" % i for i in range(60_000)))
    read, before = bytes_read(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert texts(read_lines(logs, tail=100))[-1] == "line 59999"
    assert bytes_read() - read < 10**8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_reading_ends_at_the_size_the_file_had(logs):
    logs[0].write_text("0: a\n")
    seen = []
    for line in read_lines(logs, stream="out"):
        seen.append(line.text)
        with logs[0].open("a") as file:
            file.write("0: more\n")
    assert seen == ["a"]


# --- what is not a plain file


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_what_is_planted_after_the_first_look_is_refused_too(logs, kind, monkeypatch):
    logs[1].write_text("plain\n")
    plain = logs[1].lstat()
    plant(kind, logs[0])
    monkeypatch.setattr(Path, "lstat", lambda _path: plain)
    with pytest.raises(RequestError):
        list(read_lines(logs))


def plant(kind, path):
    if kind == "link":
        target = path.with_name("secret")
        target.write_text("0: secret\n")
        path.symlink_to(target)
    elif kind == "dangling":
        path.symlink_to(path.with_name("nowhere"))
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder", "device"])
@pytest.mark.parametrize("how", [read_lines, lambda p: read_lines(p, tail=3), lambda p: follow(p, stop=lambda: True)])
def test_what_is_not_a_plain_file_is_refused_without_waiting(logs, kind, how):
    plant(kind, logs[0])
    with pytest.raises(RequestError, match="not a regular file") as caught:
        list(how(logs))
    assert str(logs[0]) in caught.value.message
    assert caught.value.exit_code == 2


def test_a_file_that_may_not_be_read_is_refused_in_words(logs):
    logs[0].write_text("x")
    logs[0].chmod(0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)  # root may read everything; nobody may not
    try:
        with pytest.raises(RequestError, match="Permission denied"):
            list(read_lines(logs))
    finally:
        os.seteuid(me)


def test_no_file_stays_open(logs):
    logs[0].write_text("0: a\n" * 10)
    before = len(os.listdir("/proc/self/fd"))
    lines = follow(logs, stop=lambda: False, sleep=lambda _: None)
    next(lines)
    lines.close()
    next(reading := read_lines(logs))
    reading.close()
    assert len(os.listdir("/proc/self/fd")) == before
