"""Following a log while it is written, cut, replaced, removed and written to after the end."""

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.logs.files import BLOCK
from clusterrun.logs.follow import Notice
from tests.support.log_texts import follow, texts


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "train_1.out", tmp_path / "train_1.err"


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
    assert isinstance(notice, Notice) and "truncated" in notice.text and "train_1.out" in notice.text


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
    assert [(x.text, isinstance(x, Notice)) for x in lines if not isinstance(x, Notice)] == [
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
    assert texts(x for x in lines if not isinstance(x, Notice)) == ["one", "two"]
    assert ["removed" in x.text for x in lines if isinstance(x, Notice)] == [True, False]


def test_follow_reads_on_in_a_file_whose_name_is_gone(logs):
    out = logs[0]
    with out.open("ab", buffering=0) as file:
        file.write(b"0: one\n")
        play = Play(out.unlink, lambda: file.write(b"0: two\n"))
        assert texts(x for x in play.follow(logs) if not isinstance(x, Notice)) == ["one", "two"]


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
    assert 3 <= opened.count(logs[0]) <= 6  # at first, every 30 of the 100 seconds, and at the end


def test_follow_does_not_take_a_hole_that_fills_for_a_new_file(logs):
    out = logs[0]
    out.write_bytes(b"0: a\n\0\0\0\0\0")
    play = Play(lambda: out.write_bytes(b"0: a\n0: b\n"), add(out, b"0: c\n"))
    assert [x for x in play.follow(logs) if isinstance(x, Notice)] == []


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
