"""Progress bars in the pieces that srun --unbuffered makes of them: the last state, some on the way, none lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs import lines as log_lines
from clusterrun.logs.lines import EVERY, SETTLED, LineReader, as_returns
from tests.support.log_texts import pieces, texts


def state(rank, count, total=100):
    return b"%d: \r%3d%%|####   | %d/%d\n" % (rank, count * 100 // total, count, total)


def read(data):
    reader = LineReader("err", world_size=8)
    return [*reader.feed(data), *reader.end()]


def test_of_many_states_of_many_ranks_the_last_of_each_is_shown():
    data = b"".join(state(rank, i, 10_000) for i in range(10_001) for rank in range(8))
    assert [(x.rank, x.text) for x in read(data)] == [(rank, "100%|####   | 10000/10000") for rank in range(8)]


def test_the_last_state_comes_before_the_next_line_of_its_rank_and_not_before_another_s():
    data = state(0, 1) + state(0, 2) + b"1: other\n0: next\n"
    assert texts(read(data)) == ["other", "  2%|####   | 2/100", "next"]


def test_the_newline_that_ends_a_bar_is_no_line():
    assert texts(read(state(0, 100) + b"0: \n0: next\n")) == ["100%|####   | 100/100", "next"]


def test_a_bar_that_wipes_itself_leaves_what_it_showed():
    assert texts(read(state(0, 50) + b"0: \r          \r\n")) == [" 50%|####   | 50/100"]


def test_what_moves_between_nested_bars_or_wipes_a_line_is_no_part_of_a_state():
    data = b"0: \r 0%|  | 0/5\n0: \r\x1b[K 2%|# | 1/60\x1b[A\n0: \r 3%|# | 2/60\x1b[A\n"
    assert texts(read(data)) == [" 3%|# | 2/60"]


def test_two_bars_after_each_other_are_two():
    data = b"".join(state(0, i) for i in range(101)) * 2
    assert texts(read(data)) == ["100%|####   | 100/100"] * 2


@pytest.mark.parametrize("name", [b"", b"Epoch 1/3: ", b"Epoch %d/3: "])
@pytest.mark.parametrize("whole", [True, False])
def test_the_bars_of_epochs_are_all_shown_whole_lines_or_states(name, whole):
    data = b""
    for epoch in range(1, 4):
        states = [b"\r" + (name % epoch if b"%" in name else name) + b"%3d%%|###" % i for i in range(0, 101, 2)]
        lines = [b"".join(states)] if whole else states
        data += b"".join(piece for line in lines for piece in pieces(0, line, 8))
    assert [text[-7:] for text in texts(read(data))] == ["100%|###"[-7:]] * 3


def test_what_counts_nothing_is_no_bar():
    assert texts(read(b"0: \rloading\n0: \rsaving\rsaved\n")) == ["loading", "saved"]


@pytest.mark.parametrize("line", [b"0: windows\r\n", b"0: step 1\r\n"])
def test_a_line_that_ends_in_a_carriage_return_is_a_line(line):
    assert len(read(line * 3)) == 3


def test_a_pipe_is_shown_a_state_each_minute():
    reader = LineReader("err", world_size=8)
    shown = []
    for i in range(1000):  # 200 seconds, five states in each
        shown += reader.feed(state(0, i, 1000))
        shown += reader.late(i / 5)
    assert texts(shown) == [f"{i // 10:3}%|####   | {i}/1000" for i in (0, 300, 600, 900)]


def test_a_pipe_is_shown_a_state_each_minute_of_a_line_that_is_still_written_and_its_last():
    reader, shown = LineReader("err"), []
    for i in range(1000):  # 200 seconds
        shown += reader.feed(b"\r%3d%%|####   | %d/1000" % (i // 10, i))
        shown += reader.late(i / 5)
    shown += reader.feed(b"\r100%|done\nnext\n")
    assert [text[:4] for text in texts(shown)] == ["  0%", " 30%", " 60%", " 90%", "100%", "next"]


def test_a_state_of_a_line_that_is_still_written_is_not_shown_again():
    reader = LineReader("err")
    reader.feed(b"\r 40%|####\r 50%")
    assert texts(reader.late(0.0)) == [" 40%|####"]
    reader.feed(b"|##")
    assert reader.late(EVERY + 1) == []


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_what_tqdm_writes_while_it_draws_is_a_line(size, ends):
    states = [b"\r %d%%|#  | %d/20 [00:00<00:01, 9.7it/s]" % (5 * i, i) for i in range(21)]
    written = b"\r%b\r{'loss': 0.3}%b" % (b" " * 40, ends)  # as the Trainer of transformers does
    data = b"".join([*states[:4], written, *states[4:8], written, *states[8:], b"\n"])
    reader = LineReader("out")
    lines = [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]
    assert texts([*lines, *reader.end()]) == ["{'loss': 0.3}"] * 2 + [states[-1][1:].decode()]
    labelled = b"".join(b"".join(pieces(0, line, 8)) for line in data.split(b"\n")[:-1])
    assert texts(read(labelled)) == texts(read(data))


def test_of_two_bars_that_are_drawn_together_the_states_are_not_all_printed():
    drawn = (b"\r\x1b[2K\x1b[1A\x1b[2KA ---- %d%%\nB ---- %d%%" % (i, i // 2) for i in range(100))  # as rich does
    assert len(read(b"".join(drawn) + b"\n")) == 2


@pytest.mark.parametrize("are_live", [True, False, None])
def test_the_last_whole_state_is_not_lost_where_a_log_ends_within_the_next(are_live):
    reader = LineReader("err")
    lines = reader.feed(b"\r10% ########\r20%\rEpo")
    lines += [] if are_live is None else reader.late(1.0, are_live=are_live)
    assert texts([*lines, *reader.end()]) == ["20%", "Epo"]


@pytest.mark.parametrize("are_live", [True, False])
def test_an_older_state_is_not_printed_after_a_newer_one(are_live):
    reader = LineReader("err")
    lines = reader.feed(b"\r99%\n") + reader.feed(b"\r100% #######\r")
    lines += reader.late(0.0, are_live=are_live) + reader.late(SETTLED, are_live=are_live)
    assert texts([*lines, *reader.feed(b"done\n"), *reader.end()]) == ["100% #######", "done"]


def test_no_bar_before_the_offset_is_printed():
    reader = LineReader("err")
    reader.skip(b"\r50%\n\r51% ########\r")
    assert texts(reader.feed(b"done\n")) == ["done"]


def test_a_long_line_after_a_return_is_shortened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, shorten = [], log_lines.from_last_state
    monkeypatch.setattr(log_lines, "from_last_state", lambda payload: calls.append(payload) or shorten(payload))
    reader = LineReader("out")
    for data in [b"0123456789ab\r", b"text", *[b"x" * 1024] * 50, b"\r", *[b" " * 1024] * 50]:
        reader.feed(data)
    assert len(calls) == 3 * 2  # what is whole of it, and all


def test_a_state_that_was_shown_is_not_shown_again():
    reader = LineReader("err", world_size=8)
    reader.feed(state(0, 1))
    assert len(reader.late(0.0)) == 1
    assert reader.late(EVERY + 1) == [] and reader.feed(b"0: next\n")[0].text == "next" and reader.end() == []


@pytest.mark.parametrize("are_live", [True, False])
def test_a_bar_that_is_done_is_printed_soon_and_once(are_live):
    reader = LineReader("err", world_size=8)
    reader.feed(state(0, 99))
    reader.late(0.0, are_live=are_live)
    reader.feed(state(0, 100))
    assert reader.late(0.5, are_live=are_live) == [] and len(reader.bars()) == 1
    assert texts(reader.late(0.5 + SETTLED, are_live=are_live)) == ["100%|####   | 100/100"]
    assert reader.bars() == [] and reader.late(EVERY * 2) == [] and reader.end() == []


def unfinished(counts, rank=0):
    """The pieces that srun has sent of a line on which a bar is drawn."""
    line = b"".join(b"\r%3d%%|%-30s| %d/100 [00:10<00:50]" % (i, b"#" * (i // 4), i) for i in counts)
    return b"".join(b"%d: %b\n" % (rank, line[at : at + 1024]) for at in range(0, len(line) - 1023, 1024))


@pytest.mark.parametrize("step", [1, 700, 1 << 20])
def test_of_a_bar_on_an_unfinished_line_the_newest_whole_state_is_known_and_never_a_cut_one(step):
    reader, data, known = LineReader("err", world_size=8), unfinished(range(100)), []
    for at in range(0, len(data), step):
        assert reader.feed(data[at : at + step]) == []
        known += texts(reader.bars())
    assert known and all(text.endswith("/100 [00:10<00:50]") for text in known)
    counts = [int(text.split("%")[0]) for text in known]
    assert counts == sorted(counts) and counts[-1] > 80
    assert texts(reader.late(0.0)) == known[-1:]
    assert texts(LineReader("err", world_size=8).feed(data)) == [] and texts(read(data)) == known[-1:]


def test_a_bar_is_yielded_once_when_its_line_ends():
    reader = LineReader("err", world_size=8)
    assert reader.feed(unfinished(range(50))) == [] and len(reader.bars()) == 1
    lines = reader.feed(b"0: [00:10<00:50]\r100%|####| 100/100\n0: next\n")
    assert texts(lines) == ["100%|####| 100/100", "next"] and reader.bars() == []


@pytest.mark.parametrize("ends", [b"\r", b""])
def test_a_bar_in_a_log_without_labels_is_known_while_it_is_drawn(ends):
    reader = LineReader("err")
    for i in range(1, 9):
        state = b"%d%%|##| %d/10" % (10 * i, i)
        assert reader.feed(state + ends if ends else b"\r" + state) == []
    assert texts(reader.bars()) == ["80%|##| 8/10" if ends else "70%|##| 7/10"]
    assert texts(reader.feed(b"\nnext\n")) == ["80%|##| 8/10", "next"]


@given(
    said=st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"\r 5%", b"\r 9%", b"word", b"", b"\r  ", b"x\r"]))),
    late=st.booleans(),
)
def test_lines_of_words_are_never_lost_or_moved_for_a_bar(said, late):
    reader, lines = LineReader("out", world_size=3), []
    for i, (rank, text) in enumerate(said):
        lines += reader.feed(b"%d: %s\n" % (rank, text))
        lines += reader.late(float(i)) if late else []
    lines += reader.end()
    for rank in range(3):
        words = [text.decode().rstrip("\r") for r, text in said if r == rank and text in (b"word", b"x\r")]
        assert [x.text for x in lines if x.rank == rank and x.text in ("word", "x")] == words


def drawn_back(steps: int) -> bytes:
    """A bar as Keras draws it: as many backspaces as the last state is long, then the next."""
    states = [b"%2d/%d [%s] - loss: 0.%04d" % (n, steps, b"=" * (n % 7), 9000 - n) for n in range(1, steps + 1)]
    return b"".join(state + b"\b" * len(state) for state in states[:-1]) + states[-1]


@pytest.mark.parametrize("size", [1, 7, 100, 1 << 20])
@pytest.mark.parametrize("labelled", [True, False])
def test_of_a_bar_of_backspaces_the_last_state_is_shown(size: int, labelled: bool) -> None:
    data = drawn_back(60)
    if labelled:  # srun sends pieces of 1024 bytes
        data = b"".join(b"0: " + data[at : at + 1024] + b"\n" for at in range(0, len(data), 1024)) + b"0: done\n"
    else:
        data += b"\ndone\n"
    reader = LineReader("out", world_size=2 if labelled else None)
    lines = [line for at in range(0, len(data), size) for line in reader.feed(data[at : at + size])]
    assert [line.text.strip() for line in lines + reader.end()] == ["60/60 [====] - loss: 0.8940", "done"]


def test_a_few_backspaces_are_text() -> None:
    reader = LineReader("out")
    assert [line.text for line in reader.feed(b"a\x08b |\x08/\x08-\n")] == ["a\x08b |\x08/\x08-"]


def test_a_long_line_with_backspaces_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0

    def counting(data: bytes) -> bytes:
        nonlocal searched
        searched += len(data)
        return as_returns(data)

    monkeypatch.setattr(log_lines, "as_returns", counting)
    reader, piece = LineReader("out"), b"|\b/\b-\b+\b" * 128
    for _ in range(300):
        reader.feed(b"0: " + piece + b"\n")
    assert searched < 3 * 300 * len(piece)
