"""Parse rows into conversations, in the three common formats of chat data."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ...base.errors import WorkerError
from ...base.units import plural
from .formats import excerpt, shown
from .sources import LISTED, Rows

Messages = list[dict[str, str]]

ROLES = ("system", "user", "assistant")
SHAPES = (("messages",), ("prompt", "completion"), ("instruction", "output"))
SHAPES_IN_WORDS = "messages (a list of role/content objects), prompt + completion, or instruction (+ input) + output"


class Chat(NamedTuple):
    """One conversation; `where` is the place of its row."""

    messages: Messages
    where: str


class Malformed(ValueError):
    """A row is malformed; the message says why."""


def conversations(rows: Rows, what: str, *, on_bad_row: str) -> tuple[list[Chat], int]:
    """Return the rows as conversations, in order, and how many bad ones were skipped; `what` is the data's name.

    Known are rows with `messages` (or its JSON text), with `prompt` and `completion`, and with `instruction`, perhaps
    `input`, and `output`. Raises WorkerError where no row can have one of these shapes (status 2), and for a row that
    has none, or messages that are none, unless `on_bad_row` is "skip".
    """
    if not any(set(shape) <= set(rows.columns) for shape in SHAPES):
        listed = ", ".join(shown(column) for column in rows.columns[:LISTED])
        more = ", …" if len(rows.columns) > LISTED else ""
        raise WorkerError(
            f"no conversations in {what}: found columns {listed}{more}; expected {SHAPES_IN_WORDS}", status=2
        )
    chats = []
    for row in rows.rows:
        try:
            chats.append(Chat(_messages(row.values), row.where))
        except Malformed as problem:
            refuse(row.where, problem, on_bad_row)
    if not chats:
        raise WorkerError(f"no conversations in {what}: {plural(len(rows.rows), 'bad row')} skipped")
    return chats, len(rows.rows) - len(chats)


def has_answer(chat: Chat) -> bool:
    """Return whether the assistant says something, which is all that is learned."""
    return any(message["role"] == "assistant" for message in chat.messages)


def refuse(where: str, problem: Malformed, on_bad_row: str) -> None:
    """Raise the WorkerError for a bad row, unless on_bad_row=skip."""
    if on_bad_row != "skip":
        raise WorkerError(f"{where}: {problem} (set on_bad_row=skip to skip such rows)") from None


def _messages(values: dict[str, Any]) -> Messages:
    if "messages" in values:
        return _checked(values["messages"])
    if "prompt" in values and "completion" in values:
        question, answer = _text(values, "prompt"), _text(values, "completion")
    elif "instruction" in values and "output" in values:
        question, answer = _text(values, "instruction"), _text(values, "output")
        if values.get("input"):
            question += "\n\n" + _text(values, "input")
    else:
        raise Malformed(f"this row has no {SHAPES_IN_WORDS}")
    return _checked([{"role": "user", "content": question}, {"role": "assistant", "content": answer}])


def _text(values: dict[str, Any], column: str) -> str:
    value = values[column]
    if not isinstance(value, str):
        raise Malformed(f"{column!r} is {_kind(value)}, not text")
    return value


def _checked(messages: Any) -> Messages:
    if isinstance(messages, str):  # a cell of a csv file
        try:
            messages = json.loads(messages)
        except (ValueError, RecursionError):
            raise Malformed(f"'messages' is text, but not JSON: {excerpt(messages)}") from None
    if not isinstance(messages, list):
        raise Malformed(f"'messages' is {_kind(messages)}, not a list")
    if not messages:
        raise Malformed("'messages' is empty")
    return [_message(number, message) for number, message in enumerate(messages, 1)]


def _message(number: int, message: Any) -> dict[str, str]:
    """Return the role and the text of a message; raises Malformed."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise Malformed(f"message {number} is not an object with role and content: {excerpt(repr(message))}")
    role = message["role"]
    if role not in ROLES:
        raise Malformed(f"message {number} has an unknown role, {excerpt(repr(role))}; known: {', '.join(ROLES)}")
    content = message["content"]
    if isinstance(content, list):
        content = "".join(
            _part(part, f"part {place} of message {number} ({role})") for place, part in enumerate(content, 1)
        )
    if not isinstance(content, str):
        raise Malformed(f"the content of message {number} ({role}) is {_kind(content)}, not text")
    if not _encodes(content):
        raise Malformed(f"message {number} contains an unpaired Unicode surrogate, which is not valid text")
    if role == "assistant" and not content.strip():
        raise Malformed(f"message {number} (assistant) is empty")
    return {"role": role, "content": content}


def _part(part: Any, name: str) -> str:
    """Return the text of one part of a message, `{"type": "text", "text": …}`; raises Malformed for other parts."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind is None:
        raise Malformed(f"{name} is not an object with a type: {excerpt(repr(part))}")
    if kind != "text":
        raise Malformed(f"{name} is of type {excerpt(str(kind))}; only text can be trained on")
    if not isinstance(part.get("text"), str):
        raise Malformed(f"{name} has no text: {excerpt(repr(part))}")
    return str(part["text"])


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    return "null" if value is None else f"of type {type(value).__name__}"
