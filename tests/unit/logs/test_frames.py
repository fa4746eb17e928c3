"""Followed logs in frames: read again after any cut, each line comes once."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs.files import Source
from clusterrun.logs.follow import Notice, Timing
from clusterrun.logs.frames import begin_frames, parse_place, read_frames, read_job
from clusterrun.logs.request import DisplayFormat, LogRequest, Place, Resume, compile_grep
from clusterrun.logs.show import show_following


class Reader:
    """The far end of a link: it prints what arrives whole, and remembers the places."""

    def __init__(self) -> None:
        self.printed = b""
        self.places: dict[str, Place] = {}

    def read(self, data: bytes) -> None:
        for file, place, output in read_frames(io.BytesIO(data)):
            self.printed += output
            if place is not None:
                self.places[file] = place

    @property
    def resume(self) -> Resume:
        return Resume(dict(self.places), "1" if self.places else "")


def frames(source: Source, request: LogRequest, reader: Reader, *, over: bool) -> bytes:
    """What one connection carries: frames of the logs as they are now, and of their end if the job is over."""
    sent: list[bytes] = []
    steps = iter([False, True])
    timing = Timing(sleep=lambda _: None, grace=0.0)
    for piece in show_following(
        [source], replace(request, resume=reader.resume), stop=lambda: next(steps), timing=timing
    ):
        if not isinstance(piece, Notice):
            sent.append(piece)
    # a link that is cut carries nothing of the end
    return b"".join(sent if over else [one for one in sent if b'"ended": true' not in one.partition(b"\n")[0]])


KINDS = {
    "pipe": LogRequest(follow=True),
    "tail": LogRequest(follow=True, tail=2),
    "terminal": LogRequest(follow=True, display=DisplayFormat(terminal=True, fold=True)),
    "raw": LogRequest(follow=True, display=DisplayFormat(raw=True)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(
    parts=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 1)), max_size=6),
    size=st.sampled_from([10, 1024, 3000]),
)
def test_cut_anywhere_each_line_comes_once(tmp_path_factory, kind, parts, size) -> None:
    """A part is a number of lines, whether the last of them is unfinished, and how much of the answer arrives."""
    log: Path = tmp_path_factory.mktemp("logs") / "train_1.out"
    request, source, reader, written, number = KINDS[kind], Source(log), Reader(), b"", 0
    log.write_bytes(b"")
    for count, unfinished, arrives in parts:
        for _ in range(count):
            number += 1
            written += b"%d: line %d %s\n" % (number % 2, number, b"x" * (size if number % 3 else 0))
        log.write_bytes(written[:-5] if unfinished and count else written)
        sent = frames(source, request, reader, over=False)
        reader.read(sent[: round(len(sent) * arrives)])
    log.write_bytes(written)
    reader.read(frames(source, request, reader, over=True))
    fresh = Reader()
    fresh.read(frames(source, replace(request, tail=None), fresh, over=True))
    if kind == "tail":  # the first connection showed the last lines; from there on nothing is missing
        assert fresh.printed.endswith(reader.printed)
    else:
        assert reader.printed == fresh.printed
    before = reader.printed
    reader.read(frames(source, request, reader, over=True))
    assert reader.printed == before  # the end was printed: nothing comes again


def test_a_filter_counts_what_it_leaves_out(tmp_path: Path) -> None:
    log, reader = tmp_path / "train_1.out", Reader()
    wanted = replace(LogRequest(follow=True), filter=replace(LogRequest().filter, grep=compile_grep("yes")))
    log.write_bytes(b"0: yes 1\n0: no\n")
    reader.read(frames(Source(log), wanted, reader, over=False))
    assert reader.places[":out"].at == log.stat().st_size
    log.write_bytes(b"0: yes 1\n0: no\n0: yes 2\n")
    reader.read(frames(Source(log), wanted, reader, over=True))
    assert reader.printed == b"0: yes 1\n0: yes 2\n"


def test_a_log_that_was_replaced_meanwhile_is_read_from_the_start(tmp_path: Path) -> None:
    log, reader = tmp_path / "train_1.out", Reader()
    log.write_bytes(b"0: first\n")
    reader.read(frames(Source(log), LogRequest(follow=True), reader, over=False))
    log.write_bytes(b"0: other\n0: more\n")
    reader.read(frames(Source(log), LogRequest(follow=True), reader, over=True))
    assert reader.printed == b"0: first\n0: other\n0: more\n"


def test_a_log_that_appears_after_a_cut_is_read_from_the_start(tmp_path: Path) -> None:
    out, err, reader = tmp_path / "train_1.out", tmp_path / "train_1.err", Reader()
    request = LogRequest(follow=True, tail=1)
    out.write_bytes(b"0: a\n")
    reader.read(frames(Source(out, err), request, reader, over=False))
    err.write_bytes(b"0: b\n0: c\n")
    reader.read(frames(Source(out, err), request, reader, over=True))
    assert reader.printed == b"0: a\n0! b\n0! c\n"


def test_noise_of_a_login_shell_is_skipped() -> None:
    frame = b'{"n": 2, "file": ":out", "at": 2, "mark": "6869", "ended": false}\nhi'
    stream = io.BytesIO(b"Welcome!\n" + begin_frames("7") + frame + b'{"n": 5')
    assert read_job(stream) == "7"
    assert list(read_frames(stream)) == [(":out", Place(2, "6869"), b"hi")]
    assert read_job(io.BytesIO(b"no frames\n")) is None


NOT_FRAMES = (b"[]", b'{"n": -1}', b'{"n": "2"}', b'{"n": 0, "at": -1}', b"line", b'{"n": 0, "at": 0, "mark": "zz"}')


@pytest.mark.parametrize("header", NOT_FRAMES)
def test_anything_but_frames_is_an_error(header: bytes) -> None:
    with pytest.raises(ValueError):
        list(read_frames(io.BytesIO(header + b"\n")))


@given(st.dictionaries(st.sampled_from(["at", "mark", "ended"]), st.none() | st.integers() | st.text(max_size=5)))
def test_a_place_is_valid_or_refused(data) -> None:
    try:
        place = parse_place(data)
    except ValueError:
        return
    assert place is None or (place.at >= len(bytes.fromhex(place.mark)))
