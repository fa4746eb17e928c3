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
_MPI = re.compile(r"\b(mpi4py|horovod|OMPI_COMM_WORLD_\w+|PMI_RANK|MV2_COMM_WORLD_\w+)\b")


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
    if "--local_rank" not in source and "--local-rank" not in source:
        return ""
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Call) and _name(node.func) in ("add_argument", "option"):
            for one in node.args:
                if isinstance(one, ast.Constant) and one.value in ("--local_rank", "--local-rank"):
                    return str(one.value)
    return ""


def knows_local_rank(source: str) -> bool:
    """Return whether a script names the variable LOCAL_RANK or SLURM_LOCALID, so needs no option for it."""
    names = ("LOCAL_RANK", "SLURM_LOCALID")
    return any(isinstance(node, ast.Constant) and node.value in names for node in ast.walk(_tree(source)))


def mpi_name(source: str) -> str:
    """Return the name by which a script uses MPI or Horovod (``mpi4py``), else an empty text."""
    found = _MPI.search(source)
    return found[1] if found else ""


def has_subcommands(source: str) -> bool:
    """Return whether a script may declare options of subcommands, which are not accepted before the subcommand."""
    return re.search(r"\badd_subparsers\(|\.group\(", source) is not None


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _tree(source: str) -> ast.AST:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own, which Python shows when it runs
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
