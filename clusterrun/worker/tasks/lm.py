"""The default job: causal language modelling over text, by default text that every Python carries.

No download, no data set to prepare: it shows in a minute that a cluster trains, with a loss that really falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..distenv import DistEnv, RunEnv
from ..errors import WorkerError
from ..training import settings

if TYPE_CHECKING:
    import torch

    from ..work import Batch


@dataclass(frozen=True)
class Config(settings.Training):
    """What can be set for `lm`, with `KEY=VALUE`, beside the keys of every task. Lengths are tokens.

    `data` is files or globs (txt, jsonl, csv, parquet; "pydoc": the topics of Python's own help); the last
    `held_out` of it, or `val_data`, is for evaluation. `model` is a preset, a folder, or a hub name; a preset gets a
    tokenizer of `vocab` tokens trained on the data.
    """

    task: ClassVar[str] = "lm"

    data: str | tuple[str, ...] = "pydoc"
    val_data: str | tuple[str, ...] = ""
    held_out: float = 0.1
    text_column: str = "text"
    model: str = "tiny"
    vocab: int = 1024
    seq_len: int = 64

    steps: int = 150
    lr: float = 3e-3


def check(config: Config, world_size: int) -> None:
    """Refuse what cannot be trained, in one line with what would be possible."""
    settings.check(config, world_size)
    if not 0 < config.held_out < 1:
        raise WorkerError(f"held_out must be between 0 and 1, got {config.held_out}", status=2)


class Chunks:
    """Consecutive pieces of one long text: sample i predicts tokens i x length + 1 to (i + 1) x length."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._length)

    def batch(self, indices: Sequence[int]) -> Batch:
        """(sequences, length) of input ids and of the labels one token further."""
        import torch

        from ..work import Batch

        length = self._length
        rows = torch.stack([self._tokens[i * length : (i + 1) * length + 1] for i in indices]).long()
        targets = len(indices) * length
        return Batch({"input_ids": rows[:, :-1], "labels": rows[:, 1:]}, float(targets), targets)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import prepared
    from ..data.marks import marks
    from ..finish import cache_folder, train_and_leave
    from ..losses import next_token
    from ..models import generate, load
    from ..work import Work

    source = load.resolve(config.model)
    own = load.tokenizer(source)

    def build(folder: Path) -> dict[str, Any]:
        return tokenize(config, own, folder)

    key: dict[str, Any] = {}
    if dist.rank == 0:
        asked = ("model", "vocab", "held_out", "text_column", "on_bad_row")
        key = {"name": "lm", "data": marks(config.data, config.val_data)} | {k: getattr(config, k) for k in asked}
    folder, tensors = prepared.prepare(cache_folder(run), key, build, dist)
    tokenizer = own or load.tokenizer(load.Source("folder", str(folder)))
    train, held_out = Chunks(tensors["train"], config.seq_len), Chunks(tensors["held_out"], config.seq_len)
    for name, samples in (("training", train), ("held-out", held_out)):
        if not len(samples):
            tokens = len(tensors["train"]) + len(tensors["held_out"])
            raise WorkerError(
                f"the data has {tokens} tokens: its {name} part does not fill a seq_len of {config.seq_len}"
            )
    model = load.build(
        source,
        head="causal",
        vocab_size=len(tokenizer),
        seq_len=config.seq_len,
        pad_id=tokenizer.pad_token_id,
        seed=config.seed,
    )
    work = Work(
        model=model,
        train=train,
        held_out=held_out,
        loss=next_token,
        sample=lambda prompt: generate.sample(model, tokenizer, prompt, tokens=config.sample_tokens, device=device),
        tokenizer=tokenizer,
        fingerprint=folder.name,
    )
    train_and_leave(work, config, dist, run, device)


def tokenize(config: Config, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Read and tokenize the data, with a BPE trained on it where the model has no tokenizer; each 1-D int32."""
    import torch

    from ..data import sources
    from ..data.tokenizer import train_bpe

    def read(data: str | tuple[str, ...]) -> list[str]:
        texts = sources.read_texts(data, text_column=config.text_column, on_bad_row=config.on_bad_row)
        if texts.skipped:
            print(f"clusterrun: {texts.skipped} rows that do not parse were skipped", flush=True)
        return texts.texts

    def encode(texts: list[str]) -> torch.Tensor:
        ids: list[int] = []
        for encoded in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            ids += [*encoded, tokenizer.eos_token_id]
        return torch.tensor(ids, dtype=torch.int32)

    texts = read(config.data)
    if tokenizer is None:
        tokenizer = train_bpe(texts, config.vocab)
        tokenizer.save_pretrained(folder)
    tokens = encode(texts)
    if config.val_data:
        return {"train": tokens, "held_out": encode(read(config.val_data))}
    cut = int(len(tokens) * (1 - config.held_out))
    return {"train": tokens[:cut].clone(), "held_out": tokens[cut:].clone()}
