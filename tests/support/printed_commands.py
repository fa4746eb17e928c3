"""Every command that clusterrun prints or its documents show, read from the source: to be tried as they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import clusterrun
from tests.support.syntax import tree_of

PACKAGE = Path(clusterrun.__file__).parent
ROOT = PACKAGE.parent
SLURM = ("sinfo", "squeue", "sacct", "sacctmgr", "scontrol", "scancel", "sbatch", "srun", "sprio", "sdiag")
_PROGRAMS = "|".join(("clusterrun", *SLURM))
_QUOTED = re.compile(rf"`((?:{_PROGRAMS}) [^`]+)`")
# an indented line of a help text or a document, "hint: clusterrun …", or a whole text that is a command
_BARE = re.compile(r"(?:^(?: {4}|  |\$ )|: |^)(clusterrun (?:[a-z]+)(?: [^`\n]*)?)$", re.MULTILINE)
_PART = "{}"  # stands for a value that is known only when the text is printed


def in_code() -> Iterator[tuple[str, str]]:
    """(place, command) of each text in the package that is not a docstring of ours; help texts of verbs are printed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = tree_of(path)
        verbs = path.parent.name == "cli"
        silent = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and not (verbs and isinstance(node, ast.FunctionDef) and node.decorator_list)
        }
        silent |= {id(n) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for n in node.values}
        for node in ast.walk(tree):
            if id(node) in silent:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(n.value) if isinstance(n, ast.Constant) else _PART for n in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            yield from ((f"{path.relative_to(ROOT)}:{node.lineno}", command) for command in commands(text))


def in_documents() -> Iterator[tuple[str, str]]:
    """(place, command) of README, docs and the job files."""
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), PACKAGE / "SKILL.md"]
    for path in [*files, *sorted((PACKAGE / "jobs").glob("*.toml")), ROOT / "lab" / "README.md"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield from ((f"{path.relative_to(ROOT)}:{number}", command) for command in commands(line))


def commands(text: str) -> Iterator[str]:
    """The commands in a text, without what explains them behind two blanks or an arrow."""
    for match in [*_QUOTED.finditer(text), *_BARE.finditer(text)]:
        yield re.split(r" {2,}| \(|→", match[1].strip())[0].rstrip(" .,:")
