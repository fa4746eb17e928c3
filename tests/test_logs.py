"""Reading logs: labels, pieces and progress bars, the last lines of large files, and following through every mishap."""

import os
import re
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.errors import RequestError
from clusterrun.job import JobId
from clusterrun.logs import LineReader, compile_grep, follow, log_paths, node_ranks, read_lines, select_tasks
from clusterrun.logs.files import BLOCK
from clusterrun.logs.lines import HELD_CAP, LINE_CAP


def pieces(rank, line, world_size):
    """What srun writes for one line of a task (``_task_build_message``, ``write_labelled_message``)."""
    label = b"%*d: " % (len(str(world_size - 1)), rank)
    whole = line + b"\n"
    chunks = [whole[i : i + 1024] for i in range(0, len(whole), 1024)]
    return [label + chunk.removesuffix(b"\n") + b"\n" for chunk in chunks]


def read(data, *, world_size=None, sizes=()):
    """The (rank, text) pairs of some bytes, fed in blocks of these sizes and then the rest."""
    reader, lines, at = LineReader("out", world_size=world_size), [], 0
    for size in (*sizes, len(data)):
        lines += reader.feed(data[at : at + size])
        at += size
    return [(line.rank, line.text) for line in [*lines, *reader.end()]]


# --- names


@pytest.mark.parametrize(
    ("job", "name"),
    [("123", "train_123"), ("123_0", "train_123_0"), ("L7", "train_L7"), ("123+1", "train_123"), ("5;east", "train_5")],
)
def test_log_paths_are_named_after_the_job(job, name):
    assert log_paths(Path("logs"), JobId.parse(job)) == (Path(f"logs/{name}.out"), Path(f"logs/{name}.err"))


# --- lines


LINE = st.one_of(
    st.text(st.characters(exclude_characters="\n\r"), max_size=40).map(lambda s: s.encode("utf-8", "replace")),
    # around the length of a piece, and characters of several bytes so that it falls inside one
    st.builds(
        lambda c, n: (c * n).encode()[:n],
        st.sampled_from("aä€😀"),
        st.sampled_from([1022, 1023, 1024, 1025, 2048, 3000]),
    ),
)


@given(
    ranks=st.lists(st.lists(LINE, max_size=4), min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 3000), max_size=20),
    random=st.randoms(use_true_random=False),
    known=st.booleans(),
)
def test_each_rank_gets_its_lines_back_however_srun_and_the_disk_cut_them(ranks, sizes, random, known):
    world_size = len(ranks)
    queues = [[p for line in lines for p in pieces(rank, line, world_size)] for rank, lines in enumerate(ranks)]
    stream = b""
    while any(queues):
        stream += random.choice([queue for queue in queues if queue]).pop(0)
    got = read(stream, world_size=world_size if known else None, sizes=sizes)
    for rank, lines in enumerate(ranks):
        assert [text for r, text in got if r == rank] == [line.decode("utf-8", "replace") for line in lines]


@given(
    data=st.binary(max_size=300) | st.text("01: \r\nx\x00\x1bä", max_size=300).map(str.encode),
    cuts=st.lists(st.integers(1, 9), max_size=60),
)
def test_hostile_bytes_read_the_same_in_any_blocks(data, cuts):
    assert read(data, sizes=cuts) == read(data)


@given(st.binary(max_size=2000))
def test_no_line_holds_a_newline_or_a_carriage_return(data):
    assert not any(set(text) & {"\n", "\r"} for _rank, text in read(data))


def test_a_line_of_exactly_one_piece_does_not_swallow_the_next():
    exact = b"0: " + b"x" * 1024 + b"\n0: \n"  # as seen on Slurm 22.05
    assert read(exact + b"0: next\n") == [(0, "x" * 1024), (0, "next")]


def test_a_piece_without_its_rest_comes_at_the_end():
    assert read(b"0: " + b"x" * 1024 + b"\n1: y\n") == [(1, "y"), (0, "x" * 1024)]


def test_lines_without_a_label_are_nobody_s():
    assert read(b"clusterrun: attempt 1\nsrun: error: node1: task 3: Killed\n") == [
        (None, "clusterrun: attempt 1"),
        (None, "srun: error: node1: task 3: Killed"),
    ]


@pytest.mark.parametrize(
    "line", ["16: too large", "3: too narrow", "03: zero", "003: too wide", "-1: x", "٣٣: x", ": x", "1 : x"]
)
def test_what_srun_would_not_write_for_16_ranks_is_text(line):
    assert read(f"{line}\n".encode(), world_size=16) == [(None, line)]


def test_labels_are_as_wide_as_the_largest_rank():
    assert read(b" 3: a\n15: b\n", world_size=16) == [(3, "a"), (15, "b")]


def test_without_a_world_size_any_number_is_a_label():
    assert read(b"  3: a\n15: b\n") == [(3, "a"), (15, "b")]


def test_only_one_label_comes_off():
    assert read(b"0: 1: text\n0:   indented\n") == [(0, "1: text"), (0, "  indented")]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\r 10%\r 20%\r100%\n", "100%"),
        (b"\r 10%\r100%\r      \r\n", "100%"),  # a bar that wipes itself
        (b"windows\r\n", "windows"),
        (b"\r\r\r\n", ""),
        (b"old\rnew", "new"),
    ],
)
def test_of_a_progress_bar_the_last_state_that_shows_anything_is_kept(raw, text):
    assert read(b"0: " + raw) == [(0, text)]


def test_a_progress_bar_in_pieces_keeps_its_last_state():
    bar = b"".join(b"\r step %6d" % i for i in range(5000))
    assert read(b"".join(pieces(0, bar, 1))) == [(0, " step   4999")]


def test_a_long_line_is_cut_and_says_by_how_much():
    reader = LineReader("out")
    for _ in range(64):
        reader.feed(b"y" * LINE_CAP)
    (line,) = reader.feed(b"end\n")
    assert (line.text, line.cut) == ("y" * LINE_CAP, 63 * LINE_CAP + 3)


def test_a_long_line_in_pieces_is_cut_too():
    (line,) = LineReader("out", world_size=4).feed(b"".join(pieces(2, b"z" * 100_000, 4)))
    assert (line.rank, len(line.text), line.cut) == (2, LINE_CAP, 100_000 - LINE_CAP)


def test_the_line_after_a_cut_one_is_whole():
    reader = LineReader("out")
    reader.feed(b"0: " + b"y" * 3 * LINE_CAP)
    cut, after = reader.feed(b"\n1: after\n")
    assert (cut.rank, cut.cut, after) == (0, 2 * LINE_CAP, ("out", 1, "after", 0, False))


def test_a_progress_bar_outlives_the_cut():
    reader = LineReader("out")
    reader.feed(b"0: " + b"y" * 2 * LINE_CAP)
    reader.feed(b"\r 50%\r")
    (line,) = reader.feed(b"99%\n")
    assert (line.rank, line.text, line.cut) == (0, "99%", 0)


def test_a_cut_is_still_told_after_the_blanks_before_it_are_gone():
    reader = LineReader("out")
    reader.feed(b"x" + b" " * LINE_CAP + b"lost" * 10)
    reader.feed(b"\r" + b" " * 20)
    (line,) = reader.feed(b"\n")
    assert (line.text, line.cut > 0) == ("x", True)


def test_unfinished_lines_of_very_many_ranks_stay_in_bounds():
    reader = LineReader("out")
    fed = 0
    lines = []
    for rank in range(2 * HELD_CAP // 1024):
        lines += reader.feed(b"%d: " % rank + b"x" * 1024 + b"\n")
        fed += 1
    assert len(lines) == fed - HELD_CAP // 1024
    assert len(lines) + len(reader.end()) == fed


# --- all lines, and the last ones


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "train_1.out", tmp_path / "train_1.err"


def texts(lines):
    return [line.text for line in lines]


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


@pytest.mark.parametrize("tail", [1, 50, 9_000, 10_001, 39_999, 10**9])
def test_tail_of_a_large_file_is_the_end_of_all_lines(logs, tail):
    logs[0].write_bytes(
        b"".join(b"".join(pieces(i % 8, b"line %d " % i + b"x" * (i * 7 % 150), 8)) for i in range(40_000))
    )
    every = texts(read_lines(logs))
    assert texts(read_lines(logs, tail=tail)) == every[-tail:]


def test_tail_with_filters_looks_back_for_lines_that_pass(logs):
    logs[0].write_text("3: rare\n" + "0: often\n" * 200_000 + "3: rarer\n" + "0: often\n" * 50_000)
    assert texts(read_lines(logs, tail=2, ranks={3})) == ["rare", "rarer"]


def test_tail_joins_pieces_that_began_before_the_place_it_reads_from(logs):
    long_line = pieces(1, b"begin " + b"x" * 50_000, 2)
    others = [b"0: other\n" * 6] * len(long_line)
    mixed = b"".join(b for pair in zip(long_line, others, strict=True) for b in pair)
    # The end of the file is moved, so that each part of the long line is once where counting begins.
    short = b"0: " + b"s" * 96 + b"\n"
    for after in range((BLOCK - len(mixed)) // len(short), BLOCK // len(short), 40):
        logs[0].write_bytes(short * 3_000 + mixed + short * after)
        line = next(iter(read_lines(logs, tail=after + 7)))
        assert (line.rank, len(line.text)) == (1, 50_006)


def test_tail_of_one_very_long_line_is_its_beginning(logs):
    logs[0].write_bytes(b"0: first\n0: start" + b"y" * 3_000_000 + b"\n")
    (line,) = read_lines(logs, tail=1)
    assert (line.rank, line.text[:6], line.cut > 2_900_000) == (0, "starty", True)


def test_tail_of_a_5_gb_file_answers_at_once_in_little_memory(logs):
    with logs[0].open("wb") as file:
        file.truncate(5 * 10**9)  # sparse: reading it all would take seconds, or run out of memory
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(b"0: line %d\n" % i for i in range(60_000)))
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert texts(read_lines(logs, tail=100))[-1] == "line 59999"
    assert time.perf_counter() - began < 1
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
    with pytest.raises(RequestError, match="not a plain file") as caught:
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


# --- following


class Play:
    """A run played in steps: each sleep of the follower is one; after the last, the job is over."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.slept = []
        self.asked = 0

    def sleep(self, seconds):
        self.slept.append(seconds)
        if self.steps:
            self.steps.pop(0)()

    def stop(self):
        self.asked += 1
        return not self.steps

    def follow(self, logs, **options):
        return follow(logs, stop=self.stop, sleep=self.sleep, **options)


def add(path, data):
    def write():
        with path.open("ab") as file:
            file.write(data)

    return write


def nothing():
    pass


def test_follow_gives_both_streams_as_they_come(logs):
    out, err = logs
    play = Play(add(out, b"0: a\n"), add(err, b"0: b\n"), add(out, b"0: c\n"))
    assert [(line.stream, line.text) for line in play.follow(logs)] == [("out", "a"), ("err", "b"), ("out", "c")]


def test_follow_takes_turns_between_two_large_files(logs):
    for path in logs:
        path.write_bytes(b"0: x\n" * (BLOCK // 2))
    streams = [line.stream for line in Play().follow(logs)]
    assert sum(a != b for a, b in pairwise(streams)) > 3


def test_follow_holds_a_line_until_its_newline(logs):
    out = logs[0]
    seen_early = []
    lines = []
    play = Play(add(out, b"0: hal"), lambda: seen_early.extend(lines), add(out, b"f\n"))
    lines.extend(texts(play.follow(logs)))
    assert (seen_early, lines) == ([], ["half"])


def test_follow_gives_an_unfinished_line_at_the_end(logs):
    logs[0].write_text("0: a\n0: half")
    assert texts(Play().follow(logs)) == ["a", "half"]


def test_follow_asks_whether_to_stop_only_when_nothing_is_new(logs):
    logs[0].write_bytes(b"0: x\n" * BLOCK)  # several blocks
    play = Play()
    list(play.follow(logs))
    assert play.asked == 1


@pytest.mark.parametrize(
    ("tail", "expected"), [(None, ["1", "2", "3", "4", "5"]), (2, ["2", "3", "4", "5"]), (0, ["4", "5"])]
)
def test_follow_begins_with_the_last_lines(logs, tail, expected):
    logs[0].write_text("0: 1\n0: 2\n0: 3\n0: 4")  # the fourth is not complete
    play = Play(add(logs[0], b"\n0: 5\n"))
    assert texts(play.follow(logs, tail=tail)) == expected


def test_follow_filters_what_comes(logs):
    play = Play(add(logs[0], b"0: loss\n1: loss\n1: other\n"))
    assert [(x.rank, x.text) for x in play.follow(logs, ranks={1}, grep=re.compile("loss"))] == [(1, "loss")]


def test_follow_says_that_a_file_was_cut_and_begins_again(logs):
    out = logs[0]
    out.write_text("0: one\n0: two\n")
    play = Play(lambda: os.truncate(out, 0), add(out, b"0: three\n"))
    first, second, notice, third = play.follow(logs)
    assert (first.text, second.text, third.text) == ("one", "two", "three")
    assert notice.notice and "cut" in notice.text and "train_1.out" in notice.text


def test_follow_sees_the_cut_of_a_file_that_ended_in_zeros(logs):
    out = logs[0]
    out.write_bytes(b"0: one\n" + b"\0" * 100)
    play = Play(lambda: os.truncate(out, 0), add(out, b"0: two\n"))
    assert texts(play.follow(logs))[-1] == "two"


def test_follow_sees_a_file_that_was_cut_and_has_outgrown_its_old_size(logs):
    out = logs[0]
    out.write_text("0: one\n")
    play = Play(lambda: out.write_text("0: the second attempt, longer than the first\n"))
    lines = list(play.follow(logs))
    assert [(x.text, x.notice) for x in lines if not x.notice] == [
        ("one", False),
        ("the second attempt, longer than the first", False),
    ]


def test_follow_reads_a_replaced_file_to_its_end_and_goes_on_in_the_new_one(logs, tmp_path):
    out = logs[0]
    out.write_text("0: one\n")

    def replace():
        add(out, b"0: last words")()
        (tmp_path / "new").write_text("0: two\n")
        (tmp_path / "new").replace(out)

    first, last, notice, second = Play(replace, nothing).follow(logs)
    assert (first.text, last.text, second.text) == ("one", "last words", "two")
    assert "replaced" in notice.text


def test_follow_says_once_that_a_file_is_gone_and_waits_for_it(logs):
    out = logs[0]
    out.write_text("0: one\n")
    play = Play(out.unlink, nothing, nothing, add(out, b"0: two\n"), nothing)
    lines = list(play.follow(logs))
    assert texts(x for x in lines if not x.notice) == ["one", "two"]
    assert ["gone" in x.text for x in lines if x.notice] == [True, False]


def test_follow_reads_on_in_a_file_whose_name_is_gone(logs):
    out = logs[0]
    with out.open("ab", buffering=0) as file:
        file.write(b"0: one\n")
        play = Play(out.unlink, lambda: file.write(b"0: two\n"))
        assert texts(x for x in play.follow(logs) if not x.notice) == ["one", "two"]


def test_follow_ends_where_a_file_is_replaced_by_a_pipe(logs):
    out = logs[0]
    out.write_text("0: one\n")

    def replace():
        out.unlink()
        os.mkfifo(out)

    with pytest.raises(RequestError, match="named pipe"):
        list(Play(replace, nothing).follow(logs))


def test_follow_waits_a_grace_after_the_end_for_late_bytes(logs):
    play = Play(nothing)
    late = iter([nothing, nothing, add(logs[0], b"0: late\n")])
    play_sleep = play.sleep

    def sleep(seconds):
        play_sleep(seconds)
        if not play.steps:
            next(late, nothing)()

    assert texts(follow(logs, stop=play.stop, sleep=sleep, poll=0.2, grace=1.0)) == ["late"]


def test_follow_ends_after_the_grace(logs):
    play = Play()
    list(play.follow(logs, poll=0.25, grace=1.0))
    assert sum(play.slept) == 1.0


def test_follow_does_not_go_on_for_ever_after_the_end(logs):
    slept = []

    def sleep(seconds):  # something that outlived the job writes at every chance
        slept.append(seconds)
        add(logs[0], b"0: still here\n")()

    list(follow(logs, stop=lambda: True, sleep=sleep))
    assert sum(slept) < 60


def test_follow_opens_the_file_again_after_a_while(logs, monkeypatch):
    logs[0].write_text("0: a\n")
    opened = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *a, **k: (opened.append(path), real_open(path, *a, **k))[1])
    play = Play(*[nothing] * 400)
    assert texts(play.follow(logs, stream="out", poll=0.25, reopen=30, grace=0)) == ["a"]
    assert 3 <= len(opened) <= 6  # at first, every 30 of the 100 seconds, and at the end


def test_follow_does_not_take_a_hole_that_fills_for_a_new_file(logs):
    out = logs[0]
    out.write_bytes(b"0: a\n\0\0\0\0\0")
    play = Play(lambda: out.write_bytes(b"0: a\n0: b\n"), add(out, b"0: c\n"))
    assert [x for x in play.follow(logs) if x.notice] == []


def test_follow_loses_and_doubles_nothing_beside_a_real_writer(logs):
    out = logs[0]
    code = (
        "import os, sys\nfd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)\n"
        "for i in range(40_000):\n    data = b'%2d: line %d\\n' % (i % 16, i)\n    at = i % len(data)\n"
        "    os.write(fd, data[:at])\n    os.write(fd, data[at:])\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(out)]) as writer:
        got = texts(follow(logs, stop=lambda: writer.poll() is not None, poll=0.01, grace=0.05, world_size=16))
    assert got == [f"line {i}" for i in range(40_000)]


# --- what to look for


START = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r} for r in range(4)]}
PER_NODE = {"ranks": [{"rank": r, "node": f"node{1 + r // 2}", "task": r // 2} for r in range(4)]}


def test_node_ranks_are_read_from_the_start_record():
    assert node_ranks(START) == {"node1": {0, 1}, "node2": {2, 3}}


@pytest.mark.parametrize(
    "start", [{}, {"ranks": None}, {"ranks": [1, {}, {"rank": "0", "node": "n"}, {"rank": 0, "node": 7}]}]
)
def test_a_broken_start_record_names_no_ranks(start):
    assert node_ranks(start) == {}


@pytest.mark.parametrize(
    ("ranks", "nodes", "tasks"),
    [
        ([1], [], {1}),
        ([1, 3], [], {1, 3}),
        ([], ["node2"], {2, 3}),
        ([3], ["node2"], {3}),
        ([], ["node1", "node2"], {0, 1, 2, 3}),
    ],
)
def test_ranks_and_nodes_become_tasks(ranks, nodes, tasks):
    assert select_tasks(START, ranks, nodes) == tasks


def test_before_the_ranks_have_come_a_rank_is_its_task():
    assert select_tasks(None, [3, 5], []) == {3, 5}


@pytest.mark.parametrize(
    ("start", "ranks", "nodes", "message"),
    [
        (None, [], ["node1"], "have not come together yet"),
        (None, [-1], [], "no rank -1"),
        (START, [4], [], "no rank 4"),
        (START, [], ["node9"], "no node node9"),
        (START, [0], ["node2"], "rank 0 is not on node2"),
        (PER_NODE, [3], [], "cannot be told apart"),
    ],
)
def test_what_cannot_be_shown_is_refused(start, ranks, nodes, message):
    with pytest.raises(RequestError, match=message) as caught:
        select_tasks(start, ranks, nodes)
    assert caught.value.hint


def test_a_refusal_names_what_there_is():
    with pytest.raises(RequestError) as caught:
        select_tasks(START, [9], [])
    assert "0-3" in caught.value.hint


def test_a_node_with_one_label_for_all_its_ranks_can_be_asked_for():
    assert select_tasks(PER_NODE, [], ["node2"]) == {1}


@pytest.mark.parametrize(("pattern", "place"), [("a(b", "character 2"), ("[z-a]", "character 2"), ("*", "character 1")])
def test_a_bad_pattern_is_refused_with_its_place(pattern, place):
    with pytest.raises(RequestError, match=place):
        compile_grep(pattern)


def test_a_pattern_too_large_for_python_is_refused():
    with pytest.raises(RequestError):
        compile_grep("a{99999999999999999999}")


def test_a_good_pattern_is_compiled_without_a_warning(recwarn):
    assert compile_grep("[[a]").search("[")
    assert not recwarn.list
