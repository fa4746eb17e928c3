"""How far the files of a job's logs were printed, so that a later connection continues there. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusterrun.base.decode import Damaged, as_int, as_text

Places = Mapping[str, "Place"]


class Place(NamedTuple):
    """How far a file was printed: an offset, the bytes before it in hex, and whether its unfinished lines were too."""

    at: int
    mark: str = ""
    ended: bool = False


@dataclass(frozen=True)
class Resume:
    """Print frames. ``places`` are those of the last frame of each file, ``job`` is that of an earlier connection.

    With a ``job``, a file without a place is new; and names such as ``last``, which may mean another job by now, do
    not count.
    """

    places: Places = field(default_factory=dict)
    job: str = ""


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
