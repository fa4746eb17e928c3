"""What an exception says of a rank: in one line, and by kind."""

from __future__ import annotations

import os
import re
import traceback
from types import TracebackType

LONGEST_ERROR = 500  # characters
CODE_ERRORS = (ImportError, ModuleNotFoundError, SyntaxError, IndentationError, NameError)
LOST_CONNECTION = (  # in errors of gloo, NCCL and TCPStore
    "closed by peer|reset by peer|[Bb]roken pipe|remote process exited|Connection was likely closed"
)
LOST_PEER = ("lost-connection", "peer-lost")  # kinds of errors that only show that another process has ended


def is_lost_connection(error: str) -> bool:
    """Return whether an error only shows that another process has ended, or that its node is lost."""
    return re.search(LOST_CONNECTION, error) is not None


def describe_error(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    return f"{name}: {lines[0]}"[:LONGEST_ERROR] if lines else name


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, its name if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def exception_kind(error: BaseException) -> str:
    """Return the kind of an exception: `lost-connection` shows that another process has ended.

    `code-error` comes again at each start, `collective-error` may follow from the end of another rank.
    """
    if type(error) in CODE_ERRORS:
        return "code-error"
    text = describe_error(error)
    if is_lost_connection(text):
        return "lost-connection"
    return "collective-error" if re.search("NCCL error|DistBackendError", text) else "exception"


def locate(trace: TracebackType | None) -> tuple[str | None, int | None]:
    """Return the file and line of a traceback's innermost frame outside libraries, else of the innermost."""
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if not f.filename.startswith("<") and not _is_library(f.filename)]
    chosen = (own or frames)[-1:]
    return (chosen[0].filename, chosen[0].lineno) if chosen else (None, None)


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or filename.startswith(os.path.dirname(os.__file__) + os.sep)
