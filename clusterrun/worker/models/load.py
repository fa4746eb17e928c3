"""Load or build the model that `model=` names, the same on every rank."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError, suggestion
from .. import hub
from . import folder, gguf, llada, presets

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

HEADS = {
    "causal": "AutoModelForCausalLM",
    "classify": "AutoModelForSequenceClassification",
    "none": "AutoModel",
}
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Source:
    """Where a model comes from: `kind` is "preset", "folder", "hub" or "gguf" (then `name` is the file)."""

    kind: str
    name: str


def resolve(model: str) -> Source:
    """Return what `model` names: a preset, a local folder, `gguf:FILE_OR_PACKAGE`, or `hf:ORG/NAME`, in this order.

    Looks at the file system only. Raises WorkerError (status 2) for what is none of them.
    """
    if "\0" in model:
        raise WorkerError(f"model={model!r}: a model name cannot contain a null byte", 2)
    if model in presets.PRESETS:
        return Source("preset", model)
    prefix, _, rest = model.partition(":")
    if prefix == "hf" and rest:
        return Source("hub", rest)
    if prefix == "gguf" and rest:
        return Source("gguf", str(gguf.locate(rest)))
    if model.endswith(".gguf"):
        return Source("gguf", str(gguf.locate(model)))
    path = os.path.expanduser(model)
    if os.path.exists(path):
        return _local(model, path)
    if HUB_NAME.fullmatch(model):
        return Source("hub", model)
    raise _unknown(model)


def _unknown(model: str) -> WorkerError:
    if "/" in model:
        return WorkerError(f"model={model!r}: no such folder", 2)
    return WorkerError(
        f"unknown model {model!r}{suggestion(model.lower(), presets.PRESETS)}: use a preset"
        f" ({', '.join(presets.PRESETS)}), a folder with a config.json, gguf:FILE or hf:NAME",
        2,
    )


def _local(model: str, path: str) -> Source:
    if not os.path.isdir(path):
        raise WorkerError(
            f"model={model!r} is a file, but not a .gguf file: give a folder that has a config.json, or a .gguf file", 2
        )
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise WorkerError(f"model={model!r}: the folder has no config.json, so it is not a Hugging Face model", 2)
    return Source("folder", path)


def tokenizer(source: Source) -> PreTrainedTokenizerFast | None:
    """Load the model's own tokenizer; None for a preset and for a folder without one, except of characters."""
    if _has_no_tokenizer(source):
        return _of_characters() if _kind(source) == presets.CHARACTERS else None
    with explained(source, "the tokenizer of "):
        refuse_own_code(source)
        if source.kind == "gguf":
            return gguf.tokenizer(Path(source.name))
        from transformers import AutoTokenizer

        loaded: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(source.name, **_access(source))
        if _kind(source) == llada.KIND:
            llada.name_mask_token(loaded, folder.document(source.name))
    return loaded


def _has_no_tokenizer(source: Source) -> bool:
    if source.kind == "folder":
        return not any((Path(source.name) / name).is_file() for name in TOKENIZER_FILES)
    return source.kind == "preset"


def _kind(source: Source) -> str:
    """Return the type of the model of a preset or a folder."""
    if source.kind == "preset":
        return presets.PRESETS[source.name].family
    return folder.model_type(source.name)


def _of_characters() -> Any:
    from transformers import CanineTokenizer

    return CanineTokenizer()


def build(
    source: Source,
    *,
    head: str,
    vocab_size: int | None,
    num_labels: int = 0,
    id2label: Mapping[int, str] | None = None,
    seq_len: int,
    pad_id: int | None,
    seed: int,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> PreTrainedModel:
    """Build the model: float32, on the CPU, in train mode, without a key-value cache.

    `head` is "causal", "classify" (`num_labels` outputs) or "none". Weights that are not loaded are drawn from `seed`,
    so they are the same on every rank. `vocab_size` is the tokenizer's number of tokens: a smaller embedding is
    enlarged. Token ids that are given replace those of the configuration.
    Raises WorkerError: status 2 for a `seq_len` (tokens) beyond the model's positions, 1 for what cannot be loaded.
    """
    import torch

    automatic = HEADS[head]
    with explained(source):
        refuse_own_code(source)
        import transformers

        auto = getattr(transformers, automatic)
        loaded = gguf.load(Path(source.name)) if source.kind == "gguf" else None
        config = config_of(source, vocab_size) if loaded is None else loaded.config
        check_length(source, _positions_for_text(config), seq_len)
        _set(config, bos_token_id=bos_id, eos_token_id=eos_id, pad_token_id=pad_id)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        if head == "classify":
            _label(config, num_labels, id2label)
        torch.manual_seed(seed)
        # attention: transformers uses sdpa by default if the architecture supports it, else eager
        model: PreTrainedModel
        if loaded is not None:
            model = loaded if head == "causal" else _with_head(auto, config, loaded)
        elif _has_weights(source):
            model = _pretrained(source, auto, config, head)
        else:
            model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
        _make_room(model, vocab_size)
    model.train()
    return model


def _make_room(model: Any, vocab_size: int | None) -> None:
    """Enlarge the embeddings for a tokenizer with more tokens."""
    if vocab_size is None or model.config.model_type == presets.CHARACTERS:
        return
    if vocab_size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(vocab_size)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the logging and progress bars of transformers: else the log has them once per rank."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def explained(source: Source, what: str = "") -> Iterator[None]:
    """Turn errors of transformers into a WorkerError with one line, and silence its output."""
    try:
        with quiet():
            yield
    except WorkerError:
        raise
    except Exception as error:  # transformers, tokenizers, safetensors and the hub's client have no common class
        lines = hub.scrub(str(error), os.environ).split("\n")
        reason = next((line.strip() for line in lines if line.strip()), type(error).__name__)
        if source.kind == "hub":
            hint = f" (no local folder or preset has this name; presets: {', '.join(presets.PRESETS)})"
            raise WorkerError(f"cannot get {what}{source.name} from the Hugging Face Hub: {reason}{hint}") from None
        raise WorkerError(f"cannot load {what}{source.name}: {reason}") from None


def _access(source: Source) -> dict[str, bool]:
    # everything but the hub is loaded offline, from the cache or the folder
    return {"trust_remote_code": False, "local_files_only": source.kind != "hub" or not hub.answers()}


def _with_head(auto: Any, config: Any, loaded: PreTrainedModel) -> PreTrainedModel:
    """Return a model with another head and the weights of a loaded one."""
    import torch

    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32)
    model.base_model.load_state_dict(loaded.base_model.state_dict())
    return model


def _has_weights(source: Source) -> bool:
    if source.kind == "folder":
        return any(next(Path(source.name).glob(pattern), None) for pattern in WEIGHTS)
    return source.kind != "preset"


def config_of(source: Source, vocab_size: int | None) -> PreTrainedConfig:
    """Return the configuration of a preset, folder or hub name, with room for a tokenizer of `vocab_size` tokens."""
    if source.kind == "preset":
        return presets.config(source.name, vocab_size)
    from transformers import AutoConfig

    config: PreTrainedConfig
    if source.kind == "folder" and folder.model_type(source.name) == llada.KIND:
        config = llada.config(folder.document(source.name), source.name)
    else:
        config = AutoConfig.from_pretrained(source.name, **_access(source))
    if not _has_weights(source) and config.model_type != presets.CHARACTERS:
        config.vocab_size = max(config.vocab_size, vocab_size or 0)
    return config


def refuse_own_code(source: Source) -> None:
    """Raise WorkerError for a folder whose model or tokenizer needs code of the folder, or a newer transformers."""
    if source.kind == "folder":
        folder.refuse_own_code(source.name)


def positions(source: Source) -> int | None:
    """Return the most tokens of a sequence, without transformers; None if that shows only when the model is loaded."""
    if source.kind == "preset":
        return presets.PRESETS[source.name].positions
    return folder.positions(source.name) if source.kind == "folder" else None


def _positions_for_text(config: Any) -> int | None:
    """Return the most tokens of a text; a CANINE needs room for padding after it, a molecule and a part of one."""
    most = getattr(config, "max_position_embeddings", None)
    return most and most - 2 * getattr(config, "downsampling_rate", 0)


def check_length(source: Source, positions: int | None, seq_len: int) -> None:
    """Raise WorkerError (status 2) for sequences that are longer than the model's positions."""
    if positions is not None and seq_len > positions:
        name = os.path.basename(source.name) or source.name
        raise WorkerError(
            f"seq_len={seq_len} is longer than the {positions} positions of {name}: use {positions} or less", 2
        )


def require_trained(source: Source, lora: int) -> None:
    """Raise WorkerError (status 2) if adapters are to be trained of a model that has no weights."""
    if lora and source.kind == "preset":
        raise WorkerError(
            f"lora={lora} needs a trained model, and model={source.name} is untrained: set model=FOLDER, gguf:FILE or"
            " hf:org/name",
            2,
        )


def _set(config: PreTrainedConfig, **ids: int | None) -> None:
    for name, value in ids.items():
        if value is not None:
            setattr(config, name, value)


def _label(config: PreTrainedConfig, num_labels: int, id2label: Mapping[int, str] | None) -> None:
    config.num_labels = num_labels
    if id2label is not None:
        config.id2label = dict(id2label)
        config.label2id = {label: number for number, label in id2label.items()}


def _pretrained(source: Source, auto: Any, config: PreTrainedConfig, head: str) -> PreTrainedModel:
    import torch

    model: PreTrainedModel
    model, found = auto.from_pretrained(
        source.name,
        config=config,
        dtype=torch.float32,
        **_access(source),
        key_mapping=llada.key_mapping(config),
        weights_only=True,  # the default; safetensors are preferred, and a .bin is loaded as tensors and numbers only
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # checked below: another number of labels is intended, another width is not
    )

    def replaced(key: str) -> bool:
        if head == "none":
            return key.startswith("pooler.")
        body = f"{model.base_model_prefix}."
        return head == "classify" and (not key.startswith(body) or ".pooler." in key)

    for key, stored, wanted in sorted(found["mismatched_keys"]):
        if not replaced(key):
            shapes = f"shape {list(stored)} in the weights, but {list(wanted)} according to config.json"
            raise WorkerError(f"cannot load {source.name}: {key} has {shapes}")
    lacking = sorted(key for key in found["missing_keys"] if not replaced(key))
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise WorkerError(f"cannot load {source.name}: the weights lack {lacking[0]}{more}")
    return model
