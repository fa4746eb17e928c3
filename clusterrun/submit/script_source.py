"""What a Python script's source says about how it is launched. Reads the file; executes nothing."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from clusterrun.config.files import is_file

LIMIT = 1 << 20
"""The maximum size of a script that is searched, in bytes."""
_SUBCOMMANDS = re.compile(r"\badd_subparsers\(|\.group\(")


def read_text(path: Path) -> str:
    """Return the text of a regular file of at most ``LIMIT`` bytes, else an empty text."""
    try:
        return path.read_text("utf-8", "replace") if is_file(path) and path.stat().st_size <= LIMIT else ""
    except OSError:
        return ""


def source_of(program: Sequence[str], cwd: Path) -> str:
    """Return the source of a script or of ``-m MODULE`` below the current folder, else an empty text."""
    if program[:1] == ["-m"] and len(program) > 1:
        base = cwd / program[1].replace(".", "/")
        return read_text(base.with_suffix(".py")) or read_text(base / "__main__.py")
    return read_text(cwd / program[0]) if program and program[0].endswith(".py") else ""


def local_rank_option(source: str) -> str:
    """Return the spelling of an option ``--local_rank`` or ``--local-rank`` that a script declares, else an empty text.

    Declared means a string argument of ``add_argument``, or of click's ``option``.
    """
    for node in ast.walk(_tree(source)) if re.search("--local[_-]rank", source) else ():
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("add_argument", "option"):
            for one in node.args:
                if isinstance(one, ast.Constant) and one.value in ("--local_rank", "--local-rank"):
                    return str(one.value)
    return ""


def wanted_local_rank(source: str) -> str:
    """Return the option of ``local_rank_option`` if the script cannot do without.

    It can if it names the variable LOCAL_RANK or SLURM_LOCALID. Options of subcommands are not accepted before the
    subcommand.
    """
    option = local_rank_option(source)
    if not option or _SUBCOMMANDS.search(source):
        return ""
    texts = {node.value for node in ast.walk(_tree(source)) if isinstance(node, ast.Constant)}
    return "" if {"LOCAL_RANK", "SLURM_LOCALID"} & texts else option


def refuses_option(source: str, option: str) -> bool:
    """Return whether a script's argparse would end it with a usage error at this option."""
    strict = "ArgumentParser(" in source and ".parse_args(" in source and "parse_known_args" not in source
    return strict and option not in source and "local_rank" not in source


_STARTERS = re.compile(
    r"(?:\S*/)?(torchrun|accelerate launch)(?:\s|$)|(?:.*\s)?(torch\.distributed\.(?:run|launch))(?:\s|$)"
)
_CALLS = ("elastic_launch", "launch_agent", "spawn", "start_processes", "notebook_launcher", "debug_launcher")


def started_launcher(source: str) -> str:
    """Return what a script starts its ranks with (``torchrun``, ``spawn``), as far as its source says it, else ``""``.

    That is a program in a string other than a docstring, or a call of torch or accelerate.
    """
    tree = _tree(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        name = _starter(node) if id(node) not in docstrings or isinstance(node, ast.Call) else ""
        if name:
            return name
    return ""


def _starter(node: ast.AST) -> str:
    """Return what a node of the syntax tree starts ranks with, else an empty text."""
    if isinstance(node, ast.Call):
        name = _name_of(node.func)
        return name if name in _CALLS else ""
    match = _STARTERS.match(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
    return "" if match is None else match[1] or match[2]


def _name_of(function: ast.expr) -> str:
    """Return the last name of what is called: ``spawn`` for ``torch.multiprocessing.spawn``."""
    if isinstance(function, ast.Call):  # elastic_launch(config, main)(args)
        return _name_of(function.func)
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _tree(source: str) -> ast.AST:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own, which Python shows when it runs
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
