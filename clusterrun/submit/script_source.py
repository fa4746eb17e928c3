"""What a Python script's source says about how it is launched. Reads the file; executes nothing."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from clusterrun.config.files import is_file

LIMIT = 1 << 20
"""The maximum size of a script that is searched, in bytes."""
_LOCAL_RANK = ("--local_rank", "--local-rank")
_SUBCOMMANDS = re.compile(r"\badd_subparsers\(|\.group\(")
_STARTERS = re.compile(
    r"(?:\S*/)?(torchrun|accelerate launch)(?:\s|$)|(?:.*\s)?(torch\.distributed\.(?:run|launch))(?:\s|$)"
)
_CALLS = ("elastic_launch", "launch_agent", "spawn", "start_processes", "notebook_launcher", "debug_launcher")


def read_text(path: Path) -> str:
    """Return the text of a regular file of at most ``LIMIT`` bytes, else an empty text."""
    try:
        if is_file(path) and path.stat().st_size <= LIMIT:
            return path.read_text("utf-8", "replace")
    except OSError:
        pass
    return ""


def source_of(program: Sequence[str], cwd: Path) -> str:
    """Return the source of a script or of ``-m MODULE`` below the current folder, else an empty text."""
    first, module = [*program, "", ""][:2]
    if first == "-m" and module:
        base = cwd / module.replace(".", "/")
        return read_text(base.with_suffix(".py")) or read_text(base / "__main__.py")
    return read_text(cwd / first) if first.endswith(".py") else ""


def local_rank_option(source: str) -> str:
    """Return the spelling of an option ``--local_rank`` or ``--local-rank`` that a script declares, else an empty text.

    Declared means a string argument of ``add_argument``, or of click's ``option``.
    """
    if not re.search("--local[_-]rank", source):
        return ""
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_argument", "option"):
            for text in _texts(node.args):
                if text in _LOCAL_RANK:
                    return text
    return ""


def wanted_local_rank(source: str) -> str:
    """Return the option of ``local_rank_option`` if the script cannot do without.

    It can if it names the variable LOCAL_RANK or SLURM_LOCALID. Options of subcommands are not accepted before the
    subcommand.
    """
    option = local_rank_option(source)
    if not option or _SUBCOMMANDS.search(source):
        return ""
    reads_variable = {"LOCAL_RANK", "SLURM_LOCALID"}.intersection(_texts(ast.walk(_tree(source))))
    return "" if reads_variable else option


def refuses_option(source: str, option: str) -> bool:
    """Return whether a script's argparse would end it with a usage error at this option."""
    strict = "ArgumentParser(" in source and ".parse_args(" in source and "parse_known_args" not in source
    return strict and option not in source and "local_rank" not in source


def started_launcher(source: str) -> str:
    """Return what a script starts its ranks with (``torchrun``, ``spawn``), as far as its source says it, else ``""``.

    That is a program in a string other than a docstring, or a call of torch or accelerate.
    """
    tree = _tree(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Call):
            name = _called(node.func)
        elif id(node) not in docstrings:
            name = _started_by(*_texts([node]))
        if name:
            return name
    return ""


def _called(function: ast.expr) -> str:
    """Return the name of a function that starts ranks: ``spawn`` for ``torch.multiprocessing.spawn``; else empty."""
    if isinstance(function, ast.Call):  # elastic_launch(config, main)(args)
        return _called(function.func)
    name = str(getattr(function, "attr", getattr(function, "id", "")))
    return name if name in _CALLS else ""


def _started_by(command: str = "") -> str:
    """Return the launcher that a string starts, else an empty text."""
    match = _STARTERS.match(command)
    return "" if match is None else match[1] or match[2]


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the strings among nodes of a syntax tree."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _tree(source: str) -> ast.AST:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own, which Python shows when it runs
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
