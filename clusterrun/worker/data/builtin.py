"""Text that comes with Python, for jobs without data: no file, no network, no import."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...base.errors import WorkerError

#: Modules by topic, chosen for much prose in little source; missing ones are skipped.
MODULES: dict[str, tuple[str, ...]] = {
    "text": ("textwrap", "difflib", "re", "shlex", "codecs", "configparser", "email.message", "optparse"),
    "files": ("genericpath", "posixpath", "pathlib", "pathlib._local", "shutil", "tempfile", "tarfile", "bz2"),
    "net": ("socketserver", "ftplib", "smtplib", "imaplib", "http.client", "urllib.parse", "ipaddress"),
    "concurrency": ("threading", "queue", "concurrent.futures._base", "asyncio.events", "asyncio.locks",
                    "asyncio.transports", "asyncio.tasks", "multiprocessing.context", "multiprocessing.managers"),
    "numbers": ("statistics", "random", "_pydecimal", "numbers", "fractions"),
    "data": ("collections", "_collections_abc", "heapq", "graphlib", "weakref", "datetime", "_pydatetime", "calendar"),
    "code": ("inspect", "bdb", "unittest.case", "symtable", "traceback"),
}  # fmt: skip
SHOWN = {"_pydecimal": "decimal", "_collections_abc": "collections.abc", "_pydatetime": "datetime",
         "genericpath": "os.path", "posixpath": "os.path", "concurrent.futures._base": "concurrent.futures",
         "pathlib._local": "pathlib"}  # fmt: skip
SHORTEST = 20  # characters; shorter docstrings are left out
BRIEF = "You answer questions about Python's standard library in one sentence."


Doc = tuple[str, str, str, str]
"""A docstring of the standard library: its dotted name, text, kind (function, class, method or module) and topic."""


def documents() -> list[str]:
    """Return the topics of Python's own help, about 80 texts and 465 000 characters of English."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise WorkerError(
            "this Python lacks the module pydoc_data (Python's help texts): set data= to a text file"
        ) from None
    return [topics[name] for name in sorted(topics)]


def conversations() -> list[dict[str, Any]]:
    """Return chats about the standard library: rows of `messages`, each with `role` and `content`.

    Every docstring is in one chat only, so that a held-out part is new to the model. Some ask for one sentence (with
    a system message), some for all of it, some ask twice.
    """
    return [{"messages": _chat(name, kind, text)} for name, text, kind, _ in docstrings()]


def labelled() -> list[dict[str, str]]:
    """Return docstrings to be classified: rows of `text`, `kind` and `topic`; a text never holds its own name."""
    rows = []
    for name, text, kind, topic in docstrings():
        own = name.rpartition(".")[2]
        rows.append({"text": re.sub(rf"\b{own}\b", "it", text), "kind": kind, "topic": topic})
    return rows


@functools.cache
def docstrings() -> tuple[Doc, ...]:
    """Return the public docstrings of MODULES, sorted by name, no text twice; raises WorkerError if there are none."""
    folder = Path(sysconfig.get_path("stdlib"))
    by_text: dict[str, Doc] = {}
    for topic, modules in MODULES.items():
        for module in modules:
            for name, text, kind in _of_module(folder, module):
                by_text.setdefault(text, (name, text, kind, topic))
    if not by_text:
        raise WorkerError(f"this Python has no standard library sources in {folder}: set data= to a file")
    return tuple(sorted(by_text.values()))


def _of_module(folder: Path, module: str) -> Iterator[tuple[str, str, str]]:
    base = folder.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        return _walk(tree, SHOWN.get(module, module), "module")
    return iter(())


def _walk(node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, text and kind of each public docstring in a part of a module."""
    text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").strip()
    if len(text) >= SHORTEST:
        yield name, text, kind
    if isinstance(node, ast.FunctionDef):
        return
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_"):
            inner = "class" if isinstance(child, ast.ClassDef) else "function" if kind == "module" else "method"
            yield from _walk(child, f"{name}.{child.name}", inner)


def _chat(name: str, kind: str, text: str) -> list[dict[str, str]]:
    first, _, rest = (part.strip() for part in text.partition("\n\n"))
    first = " ".join(first.split())
    ask = f"What is the {kind} {name}?" if kind in ("class", "module") else f"What does {name} do?"
    # a stable hash of the name: hash() differs between processes
    style = zlib.crc32(name.encode()) % 4
    if style == 0:
        return [_say("system", BRIEF), _say("user", ask), _say("assistant", first)]
    if style == 1 and rest:
        more = f"Tell me more about {name.rpartition('.')[2]}."
        return [_say("user", ask), _say("assistant", first), _say("user", more), _say("assistant", rest)]
    if style == 2:
        return [_say("user", f"Explain {name} in full."), _say("assistant", text)]
    return [_say("user", ask), _say("assistant", text if style == 3 else first)]


def _say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
