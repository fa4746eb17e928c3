"""One rank of a job that logs: `benchmarks/rank.py SECONDS LINES_PER_SECOND`, with RANK set.

Lines of 10 B to 20 kB, as many of each order of magnitude; ranks from 8 on draw a bar of 10,000 updates on stderr, the
chosen one tells number and time of each line and writes one of 100 kB of UTF-8. All end by telling what they did.
"""

from __future__ import annotations

import os
import random
import sys
import time

CHOSEN, LONG_ONE, DRAWING, UPDATES = 3, 100, 8, 10_000
TICK = 0.02  # seconds


def main() -> None:
    """Write until the time is over; where the lines are not taken as fast, fewer are written."""
    rank, seconds, rate = int(os.environ["RANK"]), float(sys.argv[1]), float(sys.argv[2])
    draw = random.Random(rank)
    filler = bytes(draw.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=20_000))
    began = time.monotonic()
    number, size, drawn = 0, 0, 0
    while (passed := time.monotonic() - began) < seconds:
        lines: list[bytes] = []
        while number < passed * rate and len(lines) < 2 * TICK * rate + 1:
            text = filler[: int(10 ** draw.uniform(1, 4.3))]
            if rank == CHOSEN and number == LONG_ONE:
                text = "ä€".encode() * 20_000
            lines.append(b"line %d at %.6f %s\n" % (number, time.monotonic(), text) if rank == CHOSEN else text + b"\n")
            number += 1
        size += _written(1, b"".join(lines))
        if rank >= DRAWING:
            due = min(UPDATES, int(UPDATES * passed / seconds) + 1)
            bar = b"".join(b"\r%3d%%|#####     | %d/%d" % (n * 100 // UPDATES, n, UPDATES) for n in range(drawn, due))
            size, drawn = size + _written(2, bar), due
        time.sleep(max(0.0, TICK - (time.monotonic() - began - passed)))
    _written(1, b"end %d %d %.2f\n" % (number, size, time.monotonic() - began))


def _written(stream: int, data: bytes) -> int:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(stream, rest) :]
    return len(data)


if __name__ == "__main__":
    main()
