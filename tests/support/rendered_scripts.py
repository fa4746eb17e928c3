"""Specifications and scripts for tests, and what sbatch reads in a script's #SBATCH lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.render import Places, RunIdentity, render
from clusterrun.jobspec.spec import JobSpec, Script, Work, build_spec

IDENTITY = RunIdentity("20261121-034501-k3v7qa", Path("/home/ann/project/.clusterrun/runs/20261121-034501-k3v7qa"),
                    "k3v7qaabcdefghij")  # fmt: skip
PLACES = Places(
    workdir=Path("/home/ann/project/src"),
    logs=Path("/home/ann/project/logs"),
    worker=Path("/opt/venv/lib/clusterrun/worker/__main__.py"),
    umask=0o022,
)
TRAIN = Script("/home/ann/project/src/train.py", ("--lr", "1e-4"))


def make_spec(work: Work = TRAIN, **options: Any) -> JobSpec:
    """A specification by the names of the flags, underscores for dashes."""
    values = {"python": "/opt/venv/bin/python", **{name.replace("_", "-"): value for name, value in options.items()}}
    if "gres" not in values:
        values.setdefault("gpus-per-node", 0)
    return build_spec({name: Value(value, f"--{name}") for name, value in values.items()}, work)


def make_script(
    spec: JobSpec, *, local: bool = False, identity: RunIdentity = IDENTITY, places: Places = PLACES
) -> str:
    """Its script at fixed places."""
    return render(spec, identity, places, local=local)


def sbatch_words(text: str) -> list[str]:
    """The words of a #SBATCH line as sbatch's own tokenizer reads them.

    Blanks part words. Outside quotes `#` begins a comment. Double and single quotes group and may stand anywhere in a
    word. A backslash takes the next character as it is, in either kind of quotes too.
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    characters = iter(text)
    for char in characters:
        if char == "\\":
            word = (word or "") + next(characters, "")
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "\"'":
            quote, word = char, word or ""
        elif char == "#":
            break
        elif char in " \t\v\f\r":
            if word is not None:
                words.append(word)
                word = None
        else:
            word = (word or "") + char
    assert not quote, f"a quote stays open: {text!r}"
    return words if word is None else [*words, word]


def sbatch_options(script: str) -> list[tuple[str, str]]:
    """The options that sbatch finds in a script, in order: (long name, value or an empty text).

    It stops at the first line that is neither blank nor a comment.
    """
    options = []
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            for word in sbatch_words(line.removeprefix("#SBATCH")):
                assert word.startswith("--"), f"not a long option: {word!r} in {line!r}"
                name, _, value = word[2:].partition("=")
                options.append((name, value))
        elif line.strip() and not line.startswith("#"):
            break
    return options
