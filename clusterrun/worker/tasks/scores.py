"""Accuracy and F1 of a classifier, from sums that add up over batches and ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from ..data.targets import MISSING, Group

MOST_FOR_F1 = 100  # with more classes, a macro F1 over a few hundred samples means nothing


def measure(groups: Sequence[Group], logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the sums that summarize() reads, 1-D float64 on the CPU.

    `logits` are (rows, outputs), `labels` (rows, groups) as targets.labels() makes them.
    """
    labels = labels.cpu()
    guesses = torch.stack([logits[:, group.start : group.end].argmax(-1) for group in groups], 1).cpu()
    known = labels != MISSING
    wrong = known & (guesses != labels)
    sums = []
    for columns in _questions(groups).values():
        labelled = known[:, columns].any(1)
        sums.append(torch.stack([labelled.sum(), (labelled & ~wrong[:, columns].any(1)).sum()]))
    for i in _with_f1(groups):
        size = len(groups[i].classes) + 1  # the last, also number -1, is for classes without training rows
        guessed, right = guesses[known[:, i], i], labels[known[:, i], i] % size
        sums += [what.bincount(minlength=size) for what in (guessed, right, right[guessed == right])]
    return torch.cat(sums).double()


def summarize(groups: Sequence[Group], sums: torch.Tensor) -> dict[str, float]:
    """Return accuracies, macro F1 scores, and the share of rows without a mistake, from the sums of measure().

    Groups without labelled rows are left out. A macro F1 is over the classes that occur as label or prediction.
    """
    found: dict[str, float] = {}
    rest = sums.tolist()
    for key in _questions(groups):
        rows, right, *rest = rest
        if rows:
            found[_unused(key, found)] = right / rows
    for i in _with_f1(groups):
        size = len(groups[i].classes) + 1
        guessed, right, both = (rest[n * size : (n + 1) * size] for n in range(3))
        rest = rest[3 * size :]
        scores = [2 * b / (g + r) for g, r, b in zip(guessed, right, both, strict=True) if g + r]
        if scores:
            found[_unused(f"f1_{groups[i].name}", found)] = sum(scores) / len(scores)
    return found


def _questions(groups: Sequence[Group]) -> dict[str, list[int]]:
    """Return the groups of each accuracy: each group, each target with several groups, and all groups."""
    found = {f"accuracy_{group.name}": [i] for i, group in enumerate(groups)}
    targets = list(dict.fromkeys(group.target for group in groups))
    for target in targets:
        found[f"accuracy_{target}"] = [i for i, group in enumerate(groups) if group.target == target]
    if len(targets) > 1:
        found["exact_match"] = list(range(len(groups)))
    return found


def _with_f1(groups: Sequence[Group]) -> Iterator[int]:
    """Return the groups that are whole targets, with few enough classes for a macro F1."""
    return (i for i, group in enumerate(groups) if group.name == group.target and len(group.classes) <= MOST_FOR_F1)


def _unused(key: str, found: dict[str, float]) -> str:
    """Return a name that is valid for TensorBoard and not in `found` yet."""
    safe = re.sub(r"[^\w-]", "_", key)
    while safe in found:
        safe += "_"
    return safe
