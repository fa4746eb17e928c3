"""Load models from GGUF files through transformers, as models that can be trained and saved."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import WorkerError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

NEEDED = ("gguf", "accelerate")


def locate(name: str) -> Path:
    """Return the GGUF file: `name` is a .gguf file, or an installed Python package (not imported) that contains one.

    Raises WorkerError (status 2).
    """
    path = os.path.expanduser(name)
    if os.path.isfile(path):
        return Path(path)
    if name.endswith(".gguf") or "/" in name:
        raise WorkerError(f"model: no such GGUF file: {name!r}", 2)
    folders = _package_folders(name.replace("-", "_"))
    if folders is None:
        raise WorkerError(f"model={'gguf:' + name!r}: neither a file nor an installed package has this name", 2)
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise WorkerError(f"model={'gguf:' + name!r}: the package has no .gguf file", 2)
    if len(files) > 1:
        names = ", ".join(str(file) for file in files)
        raise WorkerError(
            f"model={'gguf:' + name!r}: the package has several .gguf files: set model to one of {names}", 2
        )
    return files[0]


def tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """Load the file's tokenizer, with its chat template."""
    check_packages()
    from transformers import AutoTokenizer

    with _no_bars():
        tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(
            str(file.parent), gguf_file=file.name, local_files_only=True, trust_remote_code=False
        )
    return tokenizer


def load(file: Path) -> PreTrainedModel:
    """Load the language model in float32: four bytes per parameter, briefly twice that."""
    check_packages()
    import torch
    from transformers import AutoModelForCausalLM

    with _no_bars():
        stored = AutoModelForCausalLM.from_pretrained(
            str(file.parent), gguf_file=file.name, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    config = copy.deepcopy(stored.config)
    # the model is float32, but counts as quantized, which save_pretrained refuses. So the weights move
    del config.quantization_config
    model = type(stored)(config)
    model.load_state_dict(stored.state_dict(), assign=True)
    model.tie_weights()
    return model


def _package_folders(package: str) -> list[Path] | None:
    if not package.isidentifier():  # a dotted name would import its parents
        return None
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return None if spec is None else [Path(folder) for folder in spec.submodule_search_locations or []]


def check_packages() -> None:
    """Raise WorkerError if a package that reads GGUF files is missing."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise WorkerError(f"a GGUF model needs {' and '.join(missing)}: pip install 'clusterrun[gguf]'")


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    # this part of transformers ignores transformers' setting for progress bars
    with contextlib.redirect_stderr(io.StringIO()):
        yield
