"""How logs are shown: bytes for a pipe, lines for people, as they are, from a time on, in the order of writing."""

import os
import re
from dataclasses import replace

import pytest

from clusterrun.logs.files import Source, Tick
from clusterrun.logs.follow import Notice, Timing
from clusterrun.logs.request import DisplayFormat, LineFilter, LogRequest, detect_format
from clusterrun.logs.show import show, show_following
from tests.support.log_texts import pieces, read_lines, texts

PIPE, PEOPLE, RAW = DisplayFormat(), DisplayFormat(terminal=True), DisplayFormat(raw=True)
MINE, OTHERS = frozenset({os.getuid(), 0}), frozenset({os.getuid(), 0, 54321})


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "train_1.out", tmp_path / "train_1.err", world_size=16, owners=MINE)


def shown(source, look=PIPE, want=LineFilter(), **how):  # noqa: B008
    return b"".join(show([source], LogRequest(want, look, **how))).decode()


def test_out_passes_to_a_pipe_unchanged_and_err_is_marked(source):
    source.out.write_text(" 3: größer\t1\n15: b\nsrun: x\n")
    source.err.write_text(" 3: oops\nsrun: error: y\n")
    assert shown(source) == " 3: größer\t1\n15: b\nsrun: x\n 3! oops\n! srun: error: y\n"


def test_what_could_act_on_a_terminal_is_spelled_out_there_and_passes_unchanged_elsewhere(source):
    data = b" 3: \x1b[31mred\n 4: fine\n 5: \xff\xc2\x9b\n"
    source.out.write_bytes(data)
    assert shown(source, PEOPLE) == " 3| \\x1b[31mred\n 4| fine\n 5| �\\x9b\n"
    assert b"".join(show([source], LogRequest(display=PIPE))) == data


@pytest.mark.parametrize("owners", [OTHERS, None])
def test_nothing_in_the_log_of_another_users_job_acts_on_a_terminal_behind_a_pipe(source, owners):
    source.out.write_bytes(b" 3: \x1b[31mred\n 4: gr\xc3\xb6\xc3\x9fer\t1\n 5: \xff\xc2\x9b\n")
    source.err.write_bytes(b" 3: \x1b]0;title\x07\n 3: " + b"\x1b" * 2000 + b"\n")
    theirs = replace(source, owners=owners)
    expected = " 3: \\x1b[31mred\n 4: größer\t1\n 5: �\\x9b\n 3! \\x1b]0;title\\x07\n 3! " + "\\x1b" * 2000 + "\n"
    assert shown(theirs) == shown(theirs, tail=9) == expected
    assert b"".join(show([theirs], LogRequest(display=RAW))) == source.out.read_bytes() + source.err.read_bytes()


def test_nothing_acts_on_the_terminal_of_another_machine_that_reads_a_pipe_here(source):
    source.out.write_bytes(b" 3: \x1b[31mred\n")
    assert shown(source, detect_format(False, {"CLUSTERRUN_REMOTE": "end"})) == " 3: \\x1b[31mred\n"


def test_people_see_ranks_and_marks(source):
    source.out.write_text(" 3: a\nsrun: x\n")
    source.err.write_text("15: b\n")
    assert shown(source, PEOPLE) == " 3| a\n  | srun: x\n15! b\n"


def test_colours_are_put_around_the_rank_only(source):
    source.out.write_text(" 3: a\n")
    assert re.fullmatch("\x1b\\[3[2-6]m 3\x1b\\[0m\\| a\n", shown(source, DisplayFormat(terminal=True, colour=True)))


@pytest.mark.parametrize(
    ("tty", "environ", "expected"),
    [
        (True, {"TERM": "xterm"}, DisplayFormat(terminal=True, colour=True, fold=True)),
        (True, {"TERM": "dumb"}, DisplayFormat(terminal=True, colour=False, fold=True)),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, DisplayFormat(terminal=True, colour=False, fold=True)),
        (False, {"TERM": "xterm"}, DisplayFormat()),
        (False, {"TERM": "xterm", "CLUSTERRUN_REMOTE": "link"}, DisplayFormat(escape=True)),
    ],
)
def test_the_format_is_decided_by_the_output(tty, environ, expected):
    assert detect_format(tty, environ) == expected


def test_folding_can_be_left_out():
    assert not detect_format(True, {}, fold=False).fold


def test_a_folded_line_tells_how_many_said_it_and_who_where_not_all(source):
    source.out.write_text("".join(f"{rank:2}: hello\n" for rank in range(16)) + " 1: b\n 2: b\n 7: b\n")
    assert (
        shown(source, DisplayFormat(terminal=True, fold=True)) == " 0| hello  (×16 ranks)\n 1| b  (×3 ranks: 1-2, 7)\n"
    )


def test_the_name_of_a_source_goes_before_each_line(source):
    source.out.write_text(" 1: a\n 2: \x1b\n")
    source.err.write_text(" 1: b\nc\n")
    named = replace(source, name="7_1")
    assert shown(named) == "7_1  1: a\n7_1  2: \x1b\n7_1  1! b\n7_1 ! c\n"
    assert shown(named, PEOPLE) == "7_1  1| a\n7_1  2| \\x1b\n7_1  1! b\n7_1   ! c\n"


def test_raw_is_byte_for_byte(source):
    data = b" 3: \x1b[31m\r\xff\n4: x\n" + b"".join(pieces(5, b"y" * 3000, 16)) + b"no newline"
    source.out.write_bytes(data)
    assert b"".join(show([source], LogRequest(display=RAW))) == data


def test_raw_lines_of_one_rank_are_as_in_the_file(source):
    source.out.write_bytes(b" 3: \x1ba\n 4: b\n 3: c\r\n")
    one = Source(source.out, world_size=16, ranks=frozenset({3}))
    assert b"".join(show([one], LogRequest(display=RAW))) == b" 3: \x1ba\n 3: c\r\n"
    assert b"".join(show([one], LogRequest(display=RAW, tail=1))) == b" 3: c\r\n"
    assert b"".join(show([source], LogRequest(LineFilter(grep=re.compile("^b")), RAW))) == b" 4: b\n"


def test_errors_are_what_looks_like_one(source):
    source.out.write_text(" 1: fine\n 1: ValueError: x\n")
    source.err.write_text(" 2: srun: error: y\n 2: warning\n")
    assert shown(source, want=LineFilter(errors=True)) == " 1: ValueError: x\n 2! srun: error: y\n"


@pytest.mark.parametrize("look", [PIPE, PEOPLE])
def test_the_last_lines(source, look):
    source.out.write_text("".join(f" 0: {i}\n" for i in range(100)))
    assert re.findall(r"\d+$", shown(source, look, tail=3), re.MULTILINE) == ["97", "98", "99"]


# --- two files in the order of writing


@pytest.fixture
def clocked(source):
    """Each second a line of out, then one of err; the clock saw every other second."""
    ticks, out, err = [], "", ""
    for second in range(10):
        out += f" 0: out {second}\n"
        err += f" 0: err {second}\n"
        if second % 2:
            ticks.append(Tick(1000.0 + second, len(out), len(err)))
    source.out.write_text(out)
    source.err.write_text(err)
    return Source(source.out, source.err, world_size=16, ticks=tuple(ticks))


def test_a_clock_tells_how_two_files_take_turns(clocked):
    lines = texts(read_lines((clocked.out, clocked.err), ticks=clocked.ticks))
    assert lines[:8] == ["out 0", "out 1", "err 0", "err 1", "out 2", "out 3", "err 2", "err 3"]
    assert sorted(lines) == sorted(f"{name} {i}" for name in ("out", "err") for i in range(10))


def test_the_last_lines_are_those_of_both_where_a_clock_tells(clocked):
    every = texts(read_lines((clocked.out, clocked.err), ticks=clocked.ticks))
    for tail in range(22):
        last = texts(read_lines((clocked.out, clocked.err), ticks=clocked.ticks, tail=tail))
        assert last == (every[-tail:] if tail else [])


@pytest.mark.parametrize(("since", "first"), [(0.0, "out 0"), (1004.5, "out 4"), (1003.0, "out 4"), (2000.0, None)])
def test_since_begins_at_the_last_tick_before_it(clocked, since, first):
    for look in (PIPE, PEOPLE, RAW, DisplayFormat(terminal=True, fold=True)):
        lines = shown(clocked, look, since=since).splitlines()
        assert (lines[0][4:] if lines else None) == first


@pytest.mark.parametrize("look", [PIPE, PEOPLE, DisplayFormat(terminal=True, fold=True)])
def test_a_bar_from_before_that_time_is_shown_with_its_next_state_only(source, look):
    before = b" 0: old\n 0: \r50%|x\n"
    source.out.write_bytes(before)
    ticked = Source(source.out, world_size=16, ticks=(Tick(1000.0, len(before), 0),))
    assert shown(ticked, look, since=1000.0) == ""
    with source.out.open("ab") as file:
        file.write(b" 0: \r60%|x\n")
    assert shown(ticked, look, since=1000.0)[4:] == "60%|x\n"


def test_ticks_from_before_a_cut_are_not_believed(source):
    source.out.write_text(" 0: a\n 0: b\n")
    source.err.write_text(" 0: c\n")
    ticks = (Tick(1.0, 500, 300), Tick(2.0, 6, 0), Tick(3.0, 6, 6))
    assert texts(read_lines((source.out, source.err), ticks=ticks)) == ["a", "c", "b"]


def test_ticks_that_tell_more_than_there_is_lose_nothing(source):
    source.out.write_text(" 0: a\n 0: b\n")
    ticks = (Tick(1.0, 6, 0), Tick(2.0, 600, 600))
    assert texts(read_lines((source.out, source.err), ticks=ticks)) == ["a", "b"]


def test_a_tick_inside_a_line_does_not_cut_it(source):
    source.out.write_text(" 0: hello\n 0: world\n")
    source.err.write_text(" 0: err\n")
    ticks = (Tick(1.0, 7, 3), Tick(2.0, 15, 8))
    assert sorted(texts(read_lines((source.out, source.err), ticks=ticks))) == ["err", "hello", "world"]


# --- following


class Play:
    """Steps, one at each sleep; a clock that the sleeps move."""

    def __init__(self, *steps):
        self.steps, self.time = list(steps), 0.0

    def sleep(self, seconds):
        self.time += seconds
        if self.steps:
            self.steps.pop(0)()

    def follow(self, source, look=PIPE, want=LineFilter(), bars=None, **how):  # noqa: B008
        return list(
            show_following(
                [source],
                LogRequest(want, look, **how),
                stop=lambda: not self.steps,
                timing=Timing(sleep=self.sleep, now=lambda: self.time),
                bars=bars,
            )
        )


def add(path, data):
    def write():
        with path.open("ab") as file:
            file.write(data)

    return write


def test_following_a_pipe_gives_what_reading_does(source):
    data = b"".join(b"".join(pieces(i % 16, b"line %d \x1b" % i + b"x" * (i * 37 % 3000), 16)) for i in range(200))
    steps = [add(source.out, data[at : at + 997]) for at in range(0, len(data), 997)]
    assert b"".join(Play(*steps).follow(source)).decode() == shown(source)


def test_following_folds_within_a_moment(source):
    many = b"".join(b"%2d: hello\n" % rank for rank in range(16))
    play = Play(add(source.out, many), lambda: None, add(source.out, b" 1: later\n"), *[lambda: None] * 9)
    text = b"".join(play.follow(source, DisplayFormat(terminal=True, fold=True))).decode()
    assert text == " 0| hello  (×16 ranks)\n 1| later\n"


def test_bars_of_a_terminal_are_kept_while_they_are_drawn_and_printed_when_they_are_done(source):
    bars, kept = {}, []
    states = [b"%2d: \r%d%%|##| %d/9\n" % (rank, 10 * count, count) for count in (1, 2, 3) for rank in (1, 0)]
    look = lambda: kept.append([line for lines in bars.values() for line in lines])  # noqa: E731
    steps = [step for state in states for step in (add(source.err, state), look)]
    text = b"".join(Play(*steps, add(source.err, b" 0: done\n"), look).follow(source, PEOPLE, bars=bars)).decode()
    assert kept[1] == [" 0! 10%|##| 1/9", " 1! 10%|##| 1/9"] and kept[-1] == [" 1! 30%|##| 3/9"]
    assert text == " 0! 30%|##| 3/9\n 0! done\n 1! 30%|##| 3/9\n" and not any(bars.values())


@pytest.mark.parametrize("look", [PIPE, PEOPLE, RAW])
@pytest.mark.parametrize(("tail", "expected"), [(None, "123456"), (2, "23456"), (0, "456")])
def test_following_goes_on_after_the_last_lines(source, look, tail, expected):
    source.out.write_text(" 0: 1\n 0: 2\n 0: 3\n 0: 4")  # the fourth is not complete
    play = Play(add(source.out, b"\n 0: 5\n"), add(source.out, b" 0: 6\n"))
    text = b"".join(play.follow(source, look, tail=tail)).decode()
    assert "".join(re.findall(r"(\d)$", text, re.MULTILINE)) == expected


def test_following_begins_at_a_time(clocked):
    play = Play(add(clocked.out, b" 0: new\n"))
    text = b"".join(play.follow(clocked, since=1007.0)).decode()
    assert text == " 0: out 8\n 0: out 9\n 0! err 8\n 0! err 9\n 0: new\n"


@pytest.mark.parametrize("look", [PIPE, PEOPLE, RAW, DisplayFormat(terminal=True, fold=True)])
def test_following_begins_with_what_exists_in_the_order_of_reading(clocked, look):
    for how in ({}, {"since": 1004.5}, *({"tail": tail} for tail in range(22))):
        play = Play(lambda: None, add(clocked.err, b" 0: new\n"))
        size = clocked.err.stat().st_size
        followed = b"".join(play.follow(clocked, look, **how)).decode()
        os.truncate(clocked.err, size)
        *old, new = followed.splitlines(keepends=True)
        assert ("".join(old), new[4:]) == (shown(clocked, look, **how), "new\n"), how


def test_following_begins_with_more_last_lines_than_are_kept(source):
    source.out.write_text("".join(f" 0: {number}\n" for number in range(30_000)))
    followed = Play(add(source.out, b" 0: new\n")).follow(source, tail=20_000)
    lines = b"".join(followed).decode().splitlines()
    assert (len(lines), lines[0], lines[-1]) == (20_001, " 0: 10000", " 0: new")


def test_following_begins_with_the_last_lines_of_each_file_without_a_clock(source):
    for path in (source.out, source.err):
        path.write_text("".join(f" 0: {path.suffix} {number}\n" for number in range(5)))
    text = b"".join(Play(add(source.out, b" 0: new\n")).follow(source, tail=2)).decode()
    assert text == " 0: .out 3\n 0: .out 4\n 0! .err 3\n 0! .err 4\n 0: new\n"


def test_following_says_what_became_of_a_file(source):
    source.out.write_text(" 0: a\n")
    first, notice, second = Play(lambda: source.out.write_text(" 0: b, b\n"), lambda: None).follow(source)
    assert (first, second) == (b" 0: a\n", b" 0: b, b\n")
    assert isinstance(notice, Notice) and "was truncated" in notice.text
