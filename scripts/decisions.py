"""The functions that decide more than nine things, which is more than a reader holds at once.

usage: python scripts/decisions.py [FOLDER]     prints their number of decisions and names, worst first

A decision is an `if`, loop, `except`, `case`, conditional expression, each further operand of `and`/`or`, and each
comprehension with each of its conditions. Those of an inner function count for the outer one too.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

LIMIT = 9
STATEMENTS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.IfExp)


def weight(node: ast.AST) -> int:
    """Return how many decisions this one node of a syntax tree makes, without the nodes inside it."""
    if isinstance(node, STATEMENTS):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return 0


def decisions(node: ast.AST) -> int:
    """Return how many decisions a piece of code makes, those of everything inside it counted."""
    return sum(map(weight, ast.walk(node)))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each function with its name, dotted for methods and inner functions."""
    for child in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield name, child
        yield from functions(child, name)


def dense_functions(folder: Path) -> dict[str, int]:
    """Return the functions of a folder's Python files that decide more than LIMIT things: `file.py:name` to number."""
    dense: dict[str, int] = {}
    for path in sorted(folder.rglob("*.py")):
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8"))):
            made = decisions(function)
            if made > LIMIT:
                dense[f"{path.relative_to(folder).as_posix()}:{name}"] = made
    return dense


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="clusterrun", type=Path)
    found = dense_functions(parser.parse_args().folder)
    for where, made in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        print(f"{made:4}  {where}")
