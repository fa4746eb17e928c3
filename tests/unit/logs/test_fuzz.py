"""Hostile logs: whatever is in the files, reading and following ends, and nothing that acts on a terminal comes out.

`make faults` runs 10,000 files, `make test` some. A failure names its seed.
"""

from __future__ import annotations

import random
import re

import pytest

from clusterrun.logs.files import Source
from clusterrun.logs.follow import Notice, Timing
from clusterrun.logs.request import DisplayFormat, LineFilter, LogRequest
from clusterrun.logs.show import show, show_following
from clusterrun.terminal.safe_text import safe_text
from tests.support.log_texts import pieces

OURS = re.compile(rb"\x1b\[(?:31|3[2-6]|2|0)m")  # the colours that are put around ranks and marks
ACTS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
LOOKS = (
    DisplayFormat(terminal=True),
    DisplayFormat(terminal=True, fold=True),
    DisplayFormat(terminal=True, colour=True, fold=True),
)
WANTS = (
    LineFilter(),
    LineFilter(errors=True),
    LineFilter(grep=re.compile("a|7")),
    LineFilter("err"),
    LineFilter("out"),
)
TEXTS = (
    "\x1b[31m", "\x1b]0;t\x07", "\x1b]52;c;aGk=\x07", "\x1bP1$r\x1b\\", "\x9b2J", "\x07", "\0", "\x7f", "\b", "\v",
    "\f", "\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\x85", "größer", "模型", "🙂", "█▌ 50%", "\t", "  ",
    "loss 0.5 ", "Traceback (most recent call last):", "ValueError: x", "srun: error: ", "x" * 1024, "y" * 5000,
    "z" * 300_000,
)  # fmt: skip
BYTES = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f", b"\xe2\x96", b"\xc2\x9b", b"\x1b", b"\xfe\xff", b"\xc0\x9b")
LABELS = (
    b" 3: ",
    b"15: ",
    b"16: ",
    b"3: ",
    b"",
    b"",
    b"03: ",
    b"999999999999: ",
    b"-1: ",
    b": ",
    b"\xd9\xa3: ",
    b"4294967294: ",
)
ENDS = (b"\n", b"\n", b"\n", b"\n", b"", b"\r", b"\r\n", b"\n\n", b"\0")


def hostile(draw: random.Random) -> bytes:
    """A file of some kind: labelled lines, pieces, bars, noise, or all of them."""
    kind = draw.randrange(5)
    if kind == 0:
        return draw.randbytes(draw.randrange(3000))
    parts = []
    for _ in range(draw.randrange(60)):
        text = "".join(
            draw.choices(TEXTS, weights=[5] * (len(TEXTS) - 1) + [1 if kind == 4 else 0], k=draw.randrange(5))
        )
        line = text.encode("utf-8", "surrogatepass")
        if draw.random() < 0.3:
            line += draw.choice(BYTES)
        if kind == 1 and draw.random() < 0.7:
            line = b"\r%d%%|" % draw.randrange(101) + line
        if kind == 2 or draw.random() < 0.2:
            parts += pieces(draw.randrange(16), line, 16)
        else:
            parts += [draw.choice(LABELS), line, draw.choice(ENDS)]
    if kind == 3:
        draw.shuffle(parts)
    return b"".join(parts)


def check(data: bytes, seed: int) -> None:
    left = OURS.sub(b"", data)
    found = ACTS.search(left)
    assert not found, f"seed {seed}: {left[max(0, found.start() - 40) : found.end() + 40]!r}"
    text = left.decode("utf-8")  # and it can be sent to a terminal
    assert safe_text(text) == text, f"seed {seed}"


def run(seed: int, folder) -> None:
    draw = random.Random(seed)
    out, err = folder / f"{seed}.out", folder / f"{seed}.err"
    data = hostile(draw)
    out.write_bytes(data)
    err.write_bytes(hostile(draw))
    ranks = draw.choice([None, None, frozenset({3}), frozenset(range(40))])
    source = Source(out, err, draw.choice(["", "7_1"]), draw.choice([None, 1, 16]), ranks)
    want, tail = draw.choice(WANTS), draw.choice([None, None, 0, 3, 20_000])
    for look in LOOKS:
        check(b"".join(show([source], LogRequest(want, look, tail=tail))), seed)
    for look in (DisplayFormat(), DisplayFormat(raw=True)):
        assert b"".join(show([source], LogRequest(want, look, tail=tail))) is not None
    if draw.random() < 0.5:
        follow(draw, source, want, data, seed)
    out.unlink()
    err.unlink()


def follow(draw: random.Random, source: Source, want: LineFilter, data: bytes, seed: int) -> None:
    """Follow the file as it is written piece by piece, and now and then cut or removed on the way."""
    source.out.write_bytes(b"")
    at, steps, clock = 0, 0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal at, steps, clock
        clock, steps = clock + seconds, steps + 1
        size = draw.choice([1, 100, 5000, 200_000])
        if draw.random() < 0.05:
            source.out.unlink(missing_ok=True)
        elif draw.random() < 0.05 and source.out.exists():
            source.out.write_bytes(b"")
        else:
            with source.out.open("ab") as file:
                file.write(data[at : at + size])
        at += size

    following = show_following(
        [source],
        LogRequest(want, draw.choice(LOOKS)),
        stop=lambda: steps > 20 or at > len(data),
        timing=Timing(sleep=sleep, now=lambda: clock),
    )
    for piece in following:
        check(piece.text.encode() if isinstance(piece, Notice) else bytes(piece), seed)
    source.out.touch()


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_some_hostile_logs_come_out_harmless(start, tmp_path):
    for seed in range(start, start + 100):
        run(seed, tmp_path)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_ten_thousand_hostile_logs_come_out_harmless(tmp_path):
    for seed in range(1000, 11_000):
        run(seed, tmp_path)
