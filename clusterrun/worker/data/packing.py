"""Pack several documents into each row of fixed length, with little padding."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import torch

from ..training.work import IGNORED

TOGETHER = 50_000  # documents copied at once: the index of their tokens takes eight bytes a token


class Documents(NamedTuple):
    """Token ids and labels of all documents, one after the other (1-D int32), and the documents' lengths (1-D int64).

    A label is the next token of the same document, or IGNORED; so the last label of a document is always IGNORED.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    lengths: torch.Tensor


def best_fit(lengths: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Place documents of 1 to `capacity` tokens: the longest first, each in the row that it fills best.

    Return the row of each document, its first position there, and how many positions of each row are used; 1-D int64.
    """
    sizes = lengths.tolist()
    rows, offsets = array("q", bytes(8 * len(sizes))), array("q", bytes(8 * len(sizes)))
    used = array("q")
    with_room: list[list[int]] = [[] for _ in range(capacity)]  # rows by the number of their free positions
    rooms = 0  # bit r: there is a row with r free positions. One shift finds the tightest
    for document in torch.argsort(lengths, descending=True, stable=True).tolist():
        size = sizes[document]
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, len(used)
            used.append(0)
        rows[document], offsets[document] = row, used[row]
        used[row] += size
        if room > size:
            with_room[room - size].append(row)
            rooms |= 1 << (room - size)
    row_of, offset_of, used_of = (torch.tensor(column, dtype=torch.int64) for column in (rows, offsets, used))
    return row_of, offset_of, used_of


def fill(documents: Documents, seq_len: int, pad_id: int) -> dict[str, torch.Tensor]:
    """Make (rows, seq_len) int32 `input_ids`, `labels` and `position_ids`, and `used` (tokens in each row, int32).

    Positions restart with each document, which is what keeps documents apart. They restart with the padding too, as
    if it were one more document: so no document sees it, and it sees itself, as a softmax over nothing would be NaN.
    """
    document_rows, offsets, used = best_fit(documents.lengths, seq_len)
    count = len(used)
    tail = torch.arange(seq_len, dtype=torch.int32) - used.to(torch.int32)[:, None]
    flat = {
        "input_ids": torch.full((count * seq_len,), pad_id, dtype=torch.int32),
        "labels": torch.full((count * seq_len,), IGNORED, dtype=torch.int32),
        "position_ids": tail.flatten(),
    }
    starts = documents.lengths.cumsum(0) - documents.lengths
    targets = document_rows * seq_len + offsets
    for first in range(0, len(starts), TOGETHER):
        chunk = slice(first, first + TOGETHER)
        lengths = documents.lengths[chunk]
        begin, end = int(starts[first]), int(starts[first] + lengths.sum())
        position = torch.arange(begin, end) - starts[chunk].repeat_interleave(lengths)
        target = targets[chunk].repeat_interleave(lengths) + position
        flat["input_ids"][target] = documents.tokens[begin:end]
        flat["labels"][target] = documents.labels[begin:end]
        flat["position_ids"][target] = position.to(torch.int32)
    rows = {name: tensor.view(count, seq_len) for name, tensor in flat.items()}
    return rows | {"used": used.to(torch.int32)}


@torch.no_grad()
def keeps_apart(model: torch.nn.Module) -> bool:
    """Return whether the model, on the CPU, keeps the documents of a row apart: not every architecture does.

    Another first document must leave the second one's output as it was, to the last bit.
    """
    positions = torch.arange(4).repeat(2)[None]
    second = torch.arange(4)
    was_training = model.training
    model.eval()
    try:
        outputs: list[Any] = [
            model(input_ids=torch.cat([first, second])[None], position_ids=positions, use_cache=False).logits[0, 4:]
            for first in (torch.arange(4), torch.arange(4, 8))
        ]
    except TypeError:  # it takes no position ids
        return False
    finally:
        model.train(was_training)
    return torch.equal(*outputs)
