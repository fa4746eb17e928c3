"""The size of a model, counted on the meta device: no weights are loaded and no memory is used for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...base.errors import WorkerError
from . import gguf, load, presets


def count(
    source: load.Source, *, head: str, vocab_size: int, num_labels: int = 0, layout: dict[str, int] | None = None
) -> dict[str, int]:
    """Return `parameters`, `layers`, `width` and `vocabulary` of the model that `load.build` would build.

    Layers and width are 0 for an architecture that names them otherwise. Raises WorkerError as `load.build` does.
    """
    import torch

    with load.explained(source):
        import transformers

        config = _config(source, vocab_size)
        if config.model_type != presets.CHARACTERS:
            config.vocab_size = max(config.vocab_size, vocab_size)
        if head == "classify":
            config.num_labels = num_labels
        with torch.device("meta"):
            model: Any = getattr(transformers, load.HEADS[head]).from_config(config, trust_remote_code=False)
            if layout is not None:
                from . import classifier

                model = classifier.around(model, num_labels, layout, 0)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": getattr(config, "num_hidden_layers", 0),
        "width": getattr(config, "hidden_size", 0),
        "vocabulary": config.vocab_size if head == "causal" else 1,
    }


def _config(source: load.Source, vocab_size: int) -> Any:
    if source.kind != "gguf":
        return load.config_of(source, vocab_size)
    from transformers import AutoConfig

    gguf.check_packages()
    file = Path(source.name)
    config = AutoConfig.from_pretrained(str(file.parent), gguf_file=file.name, local_files_only=True)
    if config is None:
        raise WorkerError(f"cannot read the configuration in {file}")
    return config
