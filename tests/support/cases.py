"""Cases that share one test, one lab and one user: a failure names its case."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def case(name: object) -> Iterator[None]:
    """Name this case in whatever fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {name}")
        raise
