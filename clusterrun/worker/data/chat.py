"""Tokenize conversations, with labels on the assistant's tokens only."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...base.errors import WorkerError
from ..training.work import IGNORED
from .conversations import Chat, Malformed, Messages, refuse
from .formats import excerpt
from .packing import Documents
from .tokenizer import CHATML, TURN

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Span = tuple[int, int]

MARKED = re.compile(r"\{%-?\s*generation\s*-?%\}")  # a template that marks the assistant's turns
TOGETHER = 1000  # conversations tokenized at once, in parallel


def encode(
    chats: Sequence[Chat], tokenizer: PreTrainedTokenizerFast, seq_len: int, *, on_bad_row: str
) -> tuple[Documents, int, int, int]:
    """Tokenize conversations by the chat template: the labels are the assistant's tokens, to the end of each turn.

    They are cut at `seq_len` tokens, and left out if nothing of an answer is within them. Return them with how many
    were cut, had no answer left, and were bad and skipped. Raises WorkerError for a tokenizer or template that cannot
    be used, and for a conversation that the template refuses or changes in hindsight, unless `on_bad_row` is "skip".
    """
    special = _special_tokens(tokenizer)
    tokens, labels, lengths = array("i"), array("i"), array("q")
    cut = unanswered = skipped = 0
    for first in range(0, len(chats), TOGETHER):
        texts, spans = [], []
        for messages, where in chats[first : first + TOGETHER]:
            try:
                text, answer_spans = answers(tokenizer, messages, special)
            except Malformed as problem:
                refuse(where, problem, on_bad_row)
                skipped += 1
                continue
            texts.append(text)
            spans.append(answer_spans)
        for (ids, offsets), answer_spans in zip(_tokenize(tokenizer, texts), spans, strict=True):
            kept = ids[:seq_len]
            targets = _labels(kept, offsets[:seq_len], answer_spans)
            if targets.count(IGNORED) == len(targets):
                unanswered += 1
                continue
            cut += len(ids) > seq_len
            tokens.extend(kept)
            labels.extend(targets)
            lengths.append(len(kept))
    documents = Documents(*(_tensor(column) for column in (tokens, labels, lengths)))
    return documents, cut, unanswered, skipped


def answers(tokenizer: Any, messages: Messages, special: Sequence[str]) -> tuple[str, list[Span]]:
    """Return a conversation as the template writes it, and the spans of characters of the assistant's turns.

    A span reaches to the end of the turn's end token (one of `special`). Where the template does not mark what the
    assistant writes, it is what an answer adds to the prompt for it. Raises Malformed.
    """
    template = _template(tokenizer)
    if MARKED.search(template):
        text, spans = _render(tokenizer, template, messages, marked=True)
        return text, [(begin, _with_end_token(text, end, special)) for begin, end in spans if end > begin]
    text, _ = _render(tokenizer, template, messages)
    spans = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if i == 0:
            raise Malformed("the first message is from the assistant")
        prompt, _ = _render(tokenizer, template, messages[:i], prompting=True)
        answered = text if i == len(messages) - 1 else _render(tokenizer, template, messages[: i + 1])[0]
        if not (answered.startswith(prompt) and text.startswith(answered)):
            raise Malformed(
                f"the chat template renders message {i + 1} differently when more messages follow, so the assistant's"
                " tokens cannot be found: add {% generation %} tags to the template"
            )
        spans.append((len(prompt), len(prompt) + _to_end_token(answered[len(prompt) :], special)))
    return text, spans


def with_template(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Add the ChatML template and its two tokens to a tokenizer without a template. Return whether it did."""
    if tokenizer.chat_template:
        return False
    start, end = TURN
    tokenizer.add_special_tokens(
        {"eos_token": end, "extra_special_tokens": [start]}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = CHATML
    return True


def _template(tokenizer: Any) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:  # none, or several by name
        raise WorkerError(f"the tokenizer's chat template cannot be used: {str(error).partition('.')[0]}") from None


def _render(
    tokenizer: Any, template: str, messages: Messages, *, prompting: bool = False, marked: bool = False
) -> tuple[str, list[Span]]:
    """Return the text of a conversation, and the spans that its template marks as the assistant's."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered: Any = render_jinja_template(
            [messages],
            chat_template=template,
            add_generation_prompt=prompting,
            return_assistant_tokens_mask=marked,
            **tokenizer.special_tokens_map,
        )
    except ImportError as error:
        raise WorkerError(f"chat templates need jinja2 ({error}): pip install 'jinja2>=3.1.6'") from None
    except Exception as error:  # a template is a program and can raise anything
        raise Malformed(f"the chat template rejects these messages: {excerpt(str(error))}") from None
    texts, spans = rendered  # of each conversation
    return texts[0], spans[0] if marked else []


def _special_tokens(tokenizer: Any) -> tuple[str, ...]:
    if not tokenizer.is_fast:
        raise WorkerError(
            "sft needs a fast tokenizer (with a tokenizer.json), which records where each token is in the text"
        )
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return tuple({*added, *tokenizer.all_special_tokens})


def _with_end_token(text: str, end: int, special: Sequence[str]) -> int:
    """Return the end of a marked answer: after the special token that follows it, if the mark excludes that."""
    if text.endswith(tuple(special), 0, end):
        return end
    return end + max((len(token) for token in special if text.startswith(token, end)), default=0)


def _to_end_token(answer: str, special: Sequence[str]) -> int:
    """Return the length of an answer without the blank that a template adds between the end token and the next turn."""
    body = answer.rstrip()
    return len(body) if body.endswith(tuple(special)) else len(answer)


def _tokenize(tokenizer: Any, texts: list[str]) -> Iterator[tuple[list[int], list[Span]]]:
    if not texts:
        return
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    batch = tokenizer(texts, return_offsets_mapping=True, **options)
    yield from zip(batch["input_ids"], batch["offset_mapping"], strict=True)


def _labels(ids: list[int], offsets: list[Span], spans: list[Span]) -> list[int]:
    """Return the labels: the next token if it is (even partly) the assistant's, else IGNORED."""
    labels = [IGNORED] * (len(ids) + 1)
    for begin, end in spans:
        first = bisect_right(offsets, begin, key=lambda span: span[1])
        last = bisect_left(offsets, end, key=lambda span: span[0])
        labels[first:last] = ids[first:last]
    return labels[1:]


def _tensor(column: array[int]) -> torch.Tensor:
    kind = torch.int32 if column.typecode == "i" else torch.int64
    return torch.frombuffer(column, dtype=kind) if column else torch.zeros(0, dtype=kind)
