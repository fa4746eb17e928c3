"""Followed logs in frames: output together with the offset in the log that it reaches.

`logs -f --remote` reads them. After a lost connection it requests the logs from the offsets of the last frame that
arrived whole, so no line is lost or doubled. The output begins with ``MAGIC`` and the job's id as a JSON string, each
on a line. A frame is a line of JSON and the bytes it announces:

    {"n": BYTES, "file": "NAME:STREAM", "at": OFFSET, "mark": HEX, "ended": false}

``mark`` is the end of the file before the offset: a file without it was truncated or replaced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from clusterrun.base.decode import Damaged, as_int, as_text, parse_json, parse_object
from clusterrun.logs.files import LogFile, Source, Stream
from clusterrun.logs.follow import Begin, FollowedFile, Notice
from clusterrun.logs.reading import Reader
from clusterrun.logs.request import Place, Resume

MAGIC = b"clusterrun frames 1\n"
"""The line before the first frame, with the version; a login shell may print something before it."""
HEARTBEAT = 15.0
"""Seconds without output until an empty frame: writing it fails if the reader is gone."""
_LONGEST = 64 * 1024  # bytes of a header


class FramedFile(FollowedFile[bytes]):
    """A followed file whose items are frames."""

    def __init__(
        self, source: Source, stream: Stream, new_reader: Callable[[], Reader[bytes]], begin: Begin[bytes] | None, *,
        resume: Resume, context: Callable[[LogFile, int], Reader[bytes]], flush: Callable[[], Sequence[bytes]],
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``context`` returns a reader that has read the bytes before an offset; ``flush`` the lines that wait."""
        super().__init__(source, stream, new_reader, None if resume.job else begin)
        self._key = f"{source.name}:{stream}"
        self._place = resume.places.get(self._key)
        self._context, self._flush, self._now = context, flush, now
        self._sent_at = now()

    def begin(self) -> Iterator[bytes | Notice]:
        """Open the file if it exists; continue where the place says, or yield the items to show first."""
        place = self._place
        if place is None:
            yield from self._frames(list(super().begin()))
            return
        yield from self._open()
        self._at, self._mark = place.at, bytes.fromhex(place.mark)  # step() compares them with the file
        if self._file is not None and not place.ended:
            before = b"".join(self._file.blocks(max(0, place.at - len(self._mark)), place.at))
            self.reader = self._context(self._file, place.at) if before == self._mark else self.reader

    def step(self, end: int | None = None) -> tuple[int, Sequence[bytes | Notice]]:
        """Read one block. Returns the number of new bytes, and a frame with what they completed."""
        count, items = super().step(end)
        due = count or self._now() - self._sent_at >= HEARTBEAT
        return count, list(self._frames(items)) if due else []

    def late(self, now: float) -> Sequence[bytes | Notice]:
        """Return a frame with the items that have waited long enough, if there are any."""
        items = super().late(now)
        return list(self._frames(items)) if items else []

    def end(self) -> Sequence[bytes | Notice]:
        """Return a frame with the unfinished items."""
        return list(self._frames(super().end(), ended=True))

    def _frames(self, items: Iterable[bytes | Notice], *, ended: bool = False) -> Iterator[bytes | Notice]:
        whole = list(items)
        yield from (item for item in whole if isinstance(item, Notice))
        data = b"".join([*(item for item in whole if isinstance(item, bytes)), *self._flush()])
        self._sent_at = self._now()
        if self._identity is not None:
            place = Place(self._at, self._mark.hex(), ended)
            yield json.dumps({"n": len(data), "file": self._key, **place._asdict()}).encode() + b"\n" + data
        else:
            yield b'{"n": 0}\n'


def begin_frames(job: str) -> bytes:
    """Return what comes before the first frame: ``job`` is an id that means the same job again."""
    return MAGIC + json.dumps(job).encode() + b"\n"


def read_job(stream: IO[bytes]) -> str | None:
    """Read what comes before the first frame and return the job's id, None if the stream ends before.

    Lines before ``MAGIC`` are skipped.
    """
    while (line := stream.readline(_LONGEST)) != MAGIC:
        if not line:
            return None
    line = stream.readline(_LONGEST)
    return str(parse_json(line)) if line.endswith(b"\n") else None


def read_frames(stream: IO[bytes]) -> Iterator[tuple[str, Place | None, bytes]]:
    """Yield (file, place, output) for each whole frame of a stream; an unfinished last one is left out.

    Raises Damaged for anything but frames.
    """
    while (line := stream.readline(_LONGEST)).endswith(b"\n"):
        header = parse_object(line)
        count = as_int(header.get("n"))
        if count is None or count < 0:
            raise Damaged(f"not a frame: {line[:80]!r}")
        data = stream.read(count)
        if len(data) < count:
            return
        yield str(header.get("file", "")), parse_place(header), data


def parse_place(data: Mapping[str, Any]) -> Place | None:
    """Return the place in a JSON object, None if there is none. Raises Damaged if it is not valid."""
    if "at" not in data:
        return None
    at, mark, ended = as_int(data["at"]), data.get("mark", ""), data.get("ended", False)
    try:
        if at is not None and len(bytes.fromhex(as_text(mark))) <= at and isinstance(mark, str):
            return Place(at, mark, bool(ended))
    except ValueError:  # no hexadecimal digits
        pass
    raise Damaged(f"not a position in a file: {str(data)[:80]}")
