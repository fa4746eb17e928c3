"""Write what srun would write for 16 ranks, at a rate and for a time: `python -m benchmarks.ranks OUT SECONDS`.

Lines of 10 B to 20 kB (as many of each order of magnitude) in pieces of 1024 bytes that fall between each other, one
line of 100 kB of UTF-8, and progress bars of 10,000 updates from 8 ranks. Lines of rank 3 tell their number and when
they were written. Prints how many it wrote.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

RANKS, RATE, CHOSEN, PIECE = 16, 20_000, 3, 1024
BARS, UPDATES = 8, 10_000
TICK = 0.01  # seconds


def labelled(rank: int, line: bytes) -> list[bytes]:
    """One line of a task, in the pieces that srun writes."""
    whole = line + b"\n"
    pieces = [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]
    return [b"%2d: %s\n" % (rank, piece.removesuffix(b"\n")) for piece in pieces]


def mixed(lines: list[list[bytes]], draw: random.Random) -> bytes:
    """Return the pieces of several tasks' lines interleaved, each task's in order."""
    waiting = [list(pieces) for pieces in lines]
    out = []
    while waiting:
        at = draw.randrange(len(waiting))
        out.append(waiting[at].pop(0))
        if not waiting[at]:
            waiting[at] = waiting[-1]
            waiting.pop()
    return b"".join(out)


def pool(draw: random.Random, count: int) -> list[bytes]:
    """Blocks of lines of all ranks but the chosen one, each of one tick's lines."""
    others = [rank for rank in range(RANKS) if rank != CHOSEN]
    text = bytes(draw.choices(b"abcdefghijklmnopqrstuvwxyz 0123456789.", k=20_000))
    blocks = []
    for _ in range(count):
        lines = []
        for i in range(int(RATE * TICK * (RANKS - 1) / RANKS)):
            size = int(10 ** draw.uniform(1, 4.3))
            lines.append(labelled(others[i % len(others)], text[:size]))
        rows = [mixed(lines[at : at + len(others)], draw) for at in range(0, len(lines), len(others))]
        blocks.append(b"".join(rows))
    return blocks


def main() -> None:
    """Write at the rate until the time is over; a machine that is too slow is told."""
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    draw = random.Random(1)
    blocks = pool(draw, 40)
    filler = bytes(draw.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=20_000))
    ticks, number, size = int(seconds / TICK), 0, 0
    chosen = max(1, int(RATE * TICK / RANKS))
    began = time.monotonic()
    with out.open("ab", buffering=0) as file:
        for tick in range(ticks):
            size += file.write(blocks[tick % len(blocks)])
            for bar in range(8, 8 + BARS):
                states = range(tick * UPDATES // ticks, (tick + 1) * UPDATES // ticks)
                lines = [labelled(bar, b"\r%3d%%|#####     | %d/%d" % (s * 100 // UPDATES, s, UPDATES)) for s in states]
                size += file.write(b"".join(piece for line in lines for piece in line))
            for _ in range(chosen):
                length = int(10 ** draw.uniform(1, 4.3))
                line = b"line %d at %.6f %s" % (number, time.monotonic(), filler[:length])
                size += file.write(b"".join(labelled(CHOSEN, line)))
                number += 1
            if tick == ticks // 2:
                line = b"line %d at %.6f %s" % (number, time.monotonic(), "ä€".encode() * 20_000)
                size += file.write(b"".join(labelled(CHOSEN, line)))
                number += 1
            time.sleep(max(0.0, began + (tick + 1) * TICK - time.monotonic()))
    took = time.monotonic() - began
    print(number, size, f"{took:.2f}")


if __name__ == "__main__":
    main()
