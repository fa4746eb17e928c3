"""The syntax trees of Python files, and the names of what they call."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def dotted(node: ast.expr) -> str:
    """The name of what is called: `json.loads`; with nothing before its first dot if that is no name: `.strip`.

    `ast.unparse` would write the whole expression, and take a hundred times as long.
    """
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
