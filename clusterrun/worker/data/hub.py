"""Data sets of the Hugging Face Hub; needs the package `datasets`, and the network or its cache."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...base.errors import WorkerError
from .formats import Row, first_line, shown

PREFIX = "hf:"
FORM = re.compile(r"hf:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<split>.+))?")


def read_hub(source: str) -> Iterator[Row]:
    """Yield the rows of "hf:org/name" (its split "train") or "hf:org/name:split"; raises WorkerError in one line."""
    form = FORM.fullmatch(source)
    if form is None:
        raise WorkerError(f"{shown(source)} is not of the form hf:org/name or hf:org/name:split", status=2)
    try:
        import datasets
    except ImportError:
        raise WorkerError(f"reading {source} needs the datasets package: pip install datasets") from None
    try:
        table = datasets.load_dataset(form["name"], split=form["split"] or "train", trust_remote_code=False)
    except Exception as error:  # errors of the network, the hub and the data set: datasets has no common class
        raise WorkerError(f"cannot load {source}: {type(error).__name__}: {first_line(error)}") from None
    for number, values in enumerate(table, 1):
        yield Row(values, f"{form['name']} row {number}")
