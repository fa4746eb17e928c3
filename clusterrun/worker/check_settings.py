"""Check a task before its job is queued: settings, batch sizes, and the files, packages and token that it needs.

It runs on the login node with the job's Python, imports neither torch nor transformers, and uses no network.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from . import tasks
from .data import conversations, formats, sources, targets
from .data.hub import PREFIX
from .errors import WorkerError
from .models import hub, load

SAMPLED_ROWS = 20
SAMPLED_FILES = 20


def main(arguments: Sequence[str]) -> int:
    """Print `{"wrong": TEXT, "missing": [TEXT …]}` for each line of standard input; return the exit status.

    The only argument is the number of ranks; a line is `[TASK, "KEY=VALUE" …]` in JSON. `wrong` is a setting that
    cannot work anywhere; what is missing here may be there on the nodes.
    """
    (world_size,) = arguments
    for line in sys.stdin:
        name, *settings = json.loads(line)
        wrong, missing = "", []
        try:
            _, config = tasks.load(name, settings, int(world_size))
            missing = list(find_missing(config))
        except WorkerError as error:
            wrong = str(error)
        print(json.dumps({"wrong": wrong, "missing": missing}), flush=True)  # also if this is stopped before the end
    return 0


def find_missing(config: Any) -> Iterator[str]:
    """Yield what the task `config` needs and this machine lacks, one line each; reads the first rows of its data."""
    for key in ("data", "dataset", "train_data", "val_data"):
        names = getattr(config, key, "")
        names = [names] if isinstance(names, str) else list(names)
        if any(names) or (key == "data" and hasattr(config, key)):
            yield from _reason(functools.partial(_check_data, config, names), f"{key}: ")
    yield from _reason(functools.partial(load.resolve, config.model))
    resume = os.path.expanduser(config.resume)
    if config.resume not in ("auto", "no") and not os.path.exists(resume):
        yield f"resume={config.resume}: no such checkpoint"
    for key in ("tensorboard", "wandb"):
        if getattr(config, key) and importlib.util.find_spec(key) is None:
            yield f"{key} is set, but the {key} package is not installed: pip install {key}"
    if config.push_to_hub and not hub.has_token(os.environ):
        yield f"push_to_hub={config.push_to_hub}: {hub.TOKENS[0]} is not set"


def _reason(check: Callable[[], object], key: str = "") -> Iterator[str]:
    try:
        check()
    except WorkerError as error:
        yield f"{key}{error}"


def _check_data(config: Any, names: Sequence[str]) -> None:
    """Raise WorkerError for a missing or unreadable file, and for first rows that the task cannot use."""
    remote = [name for name in names if name.startswith(PREFIX)]
    if remote and importlib.util.find_spec("datasets") is None:
        raise WorkerError(f"reading {remote[0]} needs the datasets package: pip install datasets")
    local = [name for name in names if name not in remote]
    found = sources.find_sources(local) if local else []
    files = [source for source in found if source != sources.PYDOC and source not in sources.BUILTIN][:SAMPLED_FILES]
    for file in files:
        try:
            open(file, "rb").close()
        except OSError as error:
            raise WorkerError(f"cannot read {formats.shown(file)}: {error.strerror}") from None
    rows = [file for file in files if formats.format_of(file)]
    if config.task in ("lm", "diffusion"):
        files = rows  # any other file is text
    if not files or config.on_bad_row == "skip":
        return
    first = sources.read_rows(files, most=SAMPLED_ROWS)
    what = ", ".join(formats.shown(name) for name in files[:3])
    if config.task == "sft":
        conversations.conversations(first, what, on_bad_row="stop")
    elif config.task == "classify":
        columns = targets.find_formatter(config.formatter, config.text_cols).columns
        targets.require_columns(first, columns, tuple(filter(None, config.target_cols)), what)
    else:
        sources.require_columns(first, [config.text_column], what)
