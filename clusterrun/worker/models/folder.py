"""What the files of a model folder need, found without an import of transformers."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...base.errors import WorkerError
from . import llada

MODEL_TYPES = ("models/auto/auto_mappings.py", "models/auto/configuration_auto.py")
TOKENIZERS = ("models/auto/tokenization_auto.py", "__init__.py")
OWN_TOKENIZERS = re.compile(r"^MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS\b[^{]*\{([^}]*)\}", re.MULTILINE)
POSITIONS = re.compile(r'"max_position_embeddings": "(\w+)"')  # in an attribute_map: config.json has another key


def refuse_own_code(folder: str) -> None:
    """Raise WorkerError for a model that transformers can load only by running Python code of the folder.

    Without transformers, or where its files are not as expected, nothing is refused.
    """
    config = _read(folder, "config.json")
    kind = config.get("model_type")
    types = _library_text(MODEL_TYPES)
    if types and kind != llada.KIND and not _names(types, kind):
        code = _own_code(config, "AutoConfig")
        if code:
            raise WorkerError(_needs_code(f"model={folder!r}", code, "config.json"))
        if kind:
            raise WorkerError(
                f"model={folder!r} is of type {kind!r}, which the installed transformers package does not know: update"
                " it with pip install -U transformers, or use another model"
            )
    tokenizer = _read(folder, "tokenizer_config.json")
    code = _own_code(tokenizer, "AutoTokenizer")
    if code and not _has_tokenizer(tokenizer.get("tokenizer_class"), kind):
        raise WorkerError(_needs_code(f"the tokenizer of model={folder!r}", code, "tokenizer_config.json"))


def positions(folder: str) -> int | None:
    """Return the most tokens of a sequence by config.json; None if it names no limit."""
    config = document(folder)
    kind = str(config.get("model_type")).replace("-", "_")
    own = POSITIONS.search(_library_text([f"models/{kind}/configuration_{kind}.py"])) if kind.isidentifier() else None
    key = llada.SETTINGS["max_position_embeddings"] if kind == llada.KIND else "max_position_embeddings"
    number = config.get(own[1] if own else key, config.get(key))
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def document(folder: str) -> dict[str, Any]:
    """Return config.json, empty if it is missing or not JSON."""
    return _read(folder, "config.json")


def model_type(folder: str) -> str:
    """Return the type that config.json names, empty if it names none."""
    return str(document(folder).get("model_type", ""))


def _needs_code(model: str, code: str, file: str) -> str:
    return (
        f"{model} needs code of its own ({code}, named in {file}), which is never run: use a model that the"
        " transformers package supports"
    )


def _read(folder: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # transformers reports it
    return document if isinstance(document, dict) else {}


def _own_code(config: dict[str, Any], key: str) -> str:
    """Return the class of the folder's own code that `auto_map` names for `key`, or an empty string."""
    auto_map = config.get("auto_map")
    names = auto_map.get(key) if isinstance(auto_map, dict) else auto_map
    return next((name for name in (names if isinstance(names, list) else [names]) if isinstance(name, str)), "")


def _has_tokenizer(name: Any, kind: Any) -> bool:
    """Return whether transformers has the tokenizer class, or loads this model's tokenizer without it."""
    text = _library_text(TOKENIZERS)
    if not text or _names(text, name) or _names(text, str(name).removesuffix("Fast")):
        return True
    instead = OWN_TOKENIZERS.search(text)
    return bool(instead and _names(instead[1], kind))


def _names(text: str, name: Any) -> bool:
    return isinstance(name, str) and f'"{name}"' in text


def _library_text(names: tuple[str, ...] | list[str]) -> str:
    """Return the source of some files of the transformers package, as far as they exist."""
    return "".join(_library_files(names))


def _library_files(names: tuple[str, ...] | list[str]) -> Iterator[str]:
    try:
        spec = importlib.util.find_spec("transformers")
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for name in names:
            try:
                yield (Path(folder) / name).read_text(encoding="utf-8")
            except (OSError, ValueError):
                continue
