"""How right a classifier is: accuracy, F1, R², from sums that add up over batches and ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from ..data.groups import CLASSES, MISSING, NUMBER, SET, UNSEEN, Group

MOST_FOR_F1 = 100  # with more classes, a macro F1 over a few hundred samples means nothing
TINY = 1e-12  # of the unit variance that numbers are scaled to: held-out numbers that are all the same


def measure(
    groups: Sequence[Group], logits: torch.Tensor, labels: torch.Tensor, numbers: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the sums that summarize() reads, 1-D float64 on the CPU.

    `logits` are (rows, outputs), `labels` (rows, groups) as groups.labels() makes them, `numbers` (rows, groups) as
    groups.scaled_numbers() does.
    """
    labels, logits = labels.cpu(), logits.cpu()
    sums = _measure_classes(groups, logits, labels)
    for i, group in enumerate(groups):
        if group.kind == SET:
            sums.append(_measure_set(group, logits, labels))
        if group.kind == NUMBER and numbers is not None:
            sums.append(_measure_number(logits[:, group.start], numbers[:, i].cpu(), labels[:, i] != MISSING))
    return torch.cat([part.double() for part in sums])


def summarize(groups: Sequence[Group], sums: torch.Tensor) -> dict[str, float]:
    """Return accuracies, macro F1 scores, and the share of rows without a mistake, from the sums of measure().

    Of a number these are R² and the mean absolute error, of a set the share of rows with exactly their labels, and F1
    scores. Groups without labelled rows are left out. A macro F1 is over the classes that occur as label or prediction.
    """
    found: dict[str, float] = {}
    rest = _summarize_classes(groups, sums.tolist(), found)
    for group in groups:
        if group.kind == SET:
            size = len(group.classes)
            _summarize_set(size, rest[: 3 * (size + 1)], found)
        if group.kind == NUMBER:
            _summarize_number(group, rest[:5], found)
            rest = rest[5:]
    return found


def wanted_labels(group: Group, labels: torch.Tensor) -> torch.Tensor:
    """Return which labels of a set the rows have, (rows, labels) of 0.0 and 1.0."""
    size = len(group.classes)
    known = labels.masked_fill(labels < 0, size)  # one column more, for what is no label
    return torch.zeros(len(labels), size + 1, device=labels.device).scatter_(1, known, 1.0)[:, :size]


def _measure_classes(groups: Sequence[Group], logits: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    of_classes = [i for i, group in enumerate(groups) if group.kind == CLASSES]
    if not of_classes:
        return []
    guesses = torch.full_like(labels, UNSEEN)
    for i in of_classes:
        guesses[:, i] = logits[:, groups[i].start : groups[i].end].argmax(-1)
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
    return sums


def _summarize_classes(groups: Sequence[Group], sums: list[float], found: dict[str, float]) -> list[float]:
    """Add what the first sums say of the classes; return the other sums."""
    rest = sums
    for key in _questions(groups):
        rows, right, *rest = rest
        if rows:
            found[_unused(key, found)] = right / rows
    for i in _with_f1(groups):
        size = len(groups[i].classes) + 1
        guessed, wanted, both = (rest[n * size : (n + 1) * size] for n in range(3))
        rest = rest[3 * size :]
        scores = [2 * b / (g + w) for g, w, b in zip(guessed, wanted, both, strict=True) if g + w]
        if scores:
            found[_unused(f"f1_{groups[i].name}", found)] = sum(scores) / len(scores)
    return rest


def _measure_set(group: Group, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return rows, exact rows and labels without training rows, then guesses, labels and right guesses by label."""
    wanted, guessed = wanted_labels(group, labels) > 0, logits[:, group.start : group.end] > 0
    unseen = labels == UNSEEN
    exact = (wanted == guessed).all(1) & ~unseen.any(1)
    counts = torch.stack([torch.tensor(len(labels)), exact.sum(), unseen.sum()])
    return torch.cat([counts, guessed.sum(0), wanted.sum(0), (guessed & wanted).sum(0)])


def _summarize_set(size: int, sums: list[float], found: dict[str, float]) -> None:
    rows, exact, unseen, *rest = sums
    guessed, wanted, right = (rest[n * size : (n + 1) * size] for n in range(3))
    if rows:
        found["exact_set"] = exact / rows
    total = sum(guessed) + sum(wanted) + unseen
    if total:
        found["f1_micro"] = 2 * sum(right) / total
    scores = [2 * r / (g + w) for g, w, r in zip(guessed, wanted, right, strict=True) if g + w]
    if scores and size <= MOST_FOR_F1:
        found["f1_macro"] = sum(scores) / len(scores)


def _measure_number(guesses: torch.Tensor, numbers: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Return the count of numbers, their sum and squares, and the squared and absolute errors, in scaled units."""
    wanted = numbers[known].double()
    errors = guesses[known].double() - wanted
    count = known.sum().double()
    return torch.stack([count, wanted.sum(), wanted.square().sum(), errors.square().sum(), errors.abs().sum()])


def _summarize_number(group: Group, sums: list[float], found: dict[str, float]) -> None:
    count, total, squares, squared_errors, errors = sums
    if not count:
        return
    around_mean = squares - total * total / count
    if around_mean > TINY * count:  # else R² is not defined
        found[_unused(f"r2_{group.name}", found)] = 1 - squared_errors / around_mean
    found[_unused(f"mae_{group.name}", found)] = errors / count * group.scale


def _questions(groups: Sequence[Group]) -> dict[str, list[int]]:
    """Return the groups of each accuracy: each group, each target with several groups, and all groups of classes."""
    of_classes = {i: group for i, group in enumerate(groups) if group.kind == CLASSES}
    found = {f"accuracy_{group.name}": [i] for i, group in of_classes.items()}
    targets = list(dict.fromkeys(group.target for group in of_classes.values()))
    for target in targets:
        found[f"accuracy_{target}"] = [i for i, group in of_classes.items() if group.target == target]
    if len(targets) > 1:
        found["exact_match"] = list(of_classes)
    return found


def _with_f1(groups: Sequence[Group]) -> Iterator[int]:
    """Return the groups that are whole targets, with few enough classes for a macro F1."""
    for i, group in enumerate(groups):
        if group.kind == CLASSES and group.name == group.target and len(group.classes) <= MOST_FOR_F1:
            yield i


def _unused(key: str, found: dict[str, float]) -> str:
    """Return a name that is valid for TensorBoard and not in `found` yet."""
    safe = re.sub(r"[^\w-]", "_", key)
    while safe in found:
        safe += "_"
    return safe
