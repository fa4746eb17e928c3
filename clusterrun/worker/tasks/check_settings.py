"""Check a task before its job is queued: settings, batch sizes, and the files, packages and token that it needs.

It runs on the login node with the job's Python, imports neither torch nor transformers, and uses the network only to
look at the names of the files of `data=hf:…`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...base.errors import WorkerError
from .. import hub, tasks
from ..data import conversations, formats, hub_data, sources, targets
from ..models import load

DATA_KEYS = ("data", "val_data")
SAMPLED_ROWS = 200
SAMPLED_FILES = 20


def main(arguments: Sequence[str]) -> int:
    """Print `{"wrong": TEXT, "missing": [TEXT …], "doubts": [TEXT …]}` for each line of standard input.

    Return the exit status. Arguments are the number of ranks, and `look` to look at the names of the files of
    `data=hf:…`; a line is `[TASK, "KEY=VALUE" …]` in JSON.
    `wrong` is a setting that cannot work anywhere; what is missing here may be there on the nodes.
    """
    world_size, *look = arguments
    for line in sys.stdin:
        name, *settings = json.loads(line)
        answer: dict[str, Any] = {"wrong": "", "missing": [], "doubts": []}
        try:
            _, config = tasks.load(name, settings, int(world_size))
            answer["missing"], answer["doubts"] = examine(config, looks=bool(look))
        except WorkerError as error:
            answer["wrong"] = str(error)
        print(json.dumps(answer), flush=True)  # also if this is stopped before the end
    return 0


def examine(config: Any, *, looks: bool = False) -> tuple[list[str], list[str]]:
    """Return what this machine lacks for the task `config`, and what is doubtful about the first rows of its data.

    Raises WorkerError for a setting that does not fit the model.
    """
    missing: list[str] = []
    doubts: list[str] = []
    for key in DATA_KEYS:
        names = getattr(config, key, "")
        names = [names] if isinstance(names, str) else list(names)
        if any(names) or key == "data":
            with _noted(missing, f"{key}: "):
                doubts.extend(f"{key}: {doubt}" for doubt in _check_data(config, names, looks=looks))
    source = None
    with _noted(missing):
        source = load.resolve(config.model)
        load.refuse_own_code(source)
    if source:
        load.check_length(source, load.positions(source), config.seq_len)
        load.require_trained(source, config.lora)
    return [*missing, *_missing_beside_data(config)], doubts


@contextlib.contextmanager
def _noted(missing: list[str], key: str = "") -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        missing.append(f"{key}{error}")


def _missing_beside_data(config: Any) -> Iterator[str]:
    resume = os.path.expanduser(config.resume)
    if config.resume not in ("auto", "no") and not os.path.exists(resume):
        yield f"resume={config.resume}: no such checkpoint"
    for key in ("tensorboard", "wandb"):
        if getattr(config, key) and importlib.util.find_spec(key) is None:
            yield f"{key} is set, but the {key} package is not installed: pip install {key}"
    if config.lora and importlib.util.find_spec("peft") is None:
        yield "lora is set, but the peft package is not installed: pip install peft"
    if config.push_to_hub and not hub.has_token(os.environ):
        yield f"push_to_hub={config.push_to_hub}: {hub.TOKENS[0]} is not set"


def _check_data(config: Any, names: Sequence[str], *, looks: bool) -> list[str]:
    """Return what is doubtful about the data, by its first rows.

    Raises WorkerError for a missing or unreadable file, and for first rows that the task cannot use.
    """
    doubts = hub_data.check(names, looks=looks)
    files = _readable_files(names)
    if config.task in ("lm", "diffusion"):
        files = [file for file in files if formats.format_of(file)]  # any other file is text
    if not files:
        return doubts
    try:
        return [*doubts, *CHECKS[config.task](config, files)]
    except WorkerError as error:
        if config.on_bad_row == "skip" and error.status != 2:
            return doubts  # later rows may be good
        raise


def _readable_files(names: Sequence[str]) -> list[str]:
    """Return the first files of the data; raises WorkerError for one that cannot be read."""
    local = [name for name in names if not name.startswith(hub_data.PREFIX)]
    found = sources.find_sources(local) if local else []
    files = [source for source in found if source not in (sources.PYDOC, *sources.BUILTIN)][:SAMPLED_FILES]
    for file in files:
        _require_readable(file)
    return files


def _require_readable(file: str) -> None:
    try:
        open(file, "rb").close()
    except OSError as error:
        raise WorkerError(f"cannot read {formats.shown(file)}: {error.strerror}") from None


def _check_table(config: Any, files: Sequence[str]) -> list[str]:
    formatter = targets.formatter_of(config)
    target_cols = tuple(filter(None, config.target_cols))
    bad = config.on_bad_row
    return targets.read_examples(files, formatter, target_cols, on_bad_row=bad, most=SAMPLED_ROWS).doubts


def _check_texts(config: Any, files: Sequence[str]) -> list[str]:
    first = sources.read_rows(files, on_bad_row=config.on_bad_row, most=SAMPLED_ROWS)
    sources.require_columns(first, [config.text_column], _called(files), on_bad_row=config.on_bad_row)
    return []


def _check_chats(config: Any, files: Sequence[str]) -> list[str]:
    what, bad = _called(files), config.on_bad_row
    first = sources.read_rows(files, on_bad_row=bad, most=SAMPLED_ROWS)
    chats, _ = conversations.conversations(first, what, on_bad_row=bad)
    unanswered = [chat for chat in chats if not conversations.has_answer(chat)]
    if len(unanswered) == len(chats):
        raise WorkerError(f"no message in {what} is from the assistant, so there is nothing to learn")
    if not unanswered:
        return []
    few = f"{len(unanswered):,} of the first {len(chats):,} conversations"
    return [f"{few} have no message from the assistant and are left out, such as {unanswered[0].where}"]


def _called(files: Sequence[str]) -> str:
    return ", ".join(map(formats.shown, files[:3]))


CHECKS: Mapping[str, Callable[[Any, Sequence[str]], list[str]]] = {
    "sft": _check_chats,
    "classify": _check_table,
    "lm": _check_texts,
    "diffusion": _check_texts,
}
