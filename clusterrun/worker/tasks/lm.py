"""The default job: a small Llama-like language model trained from nothing on text that every Python carries.

No download, no data set to prepare: it shows in a minute that a cluster trains, with a loss that really falls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..distenv import DistEnv, RunEnv
from ..errors import WorkerError

if TYPE_CHECKING:
    import torch

END = "<|end|>"
HELD_OUT = 0.1  # the last tenth of the text is for validation


@dataclass(frozen=True)
class Config:
    """What can be set, with `KEY=VALUE`. Batches are sequences, lengths are tokens.

    `data` is a text file or a list of them ("pydoc": the topics of Python's own help); `out` a folder that the
    finished model is written to in Hugging Face's format (empty: it is not kept).
    """

    steps: int = 150
    seq_len: int = 64
    global_batch: int = 16
    lr: float = 3e-3
    warmup: int = 10
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 384
    vocab: int = 1024
    seed: int = 1
    eval_every: int = 25
    data: str | list[str] = "pydoc"
    out: str = ""


def check(config: Config, world_size: int) -> None:
    """Refuse what cannot be trained, in one line with what would be possible."""
    for name in ("steps", "seq_len", "global_batch", "hidden", "layers", "heads", "kv_heads", "ffn", "eval_every"):
        if getattr(config, name) < 1:
            raise WorkerError(f"{name} must be at least 1, got {getattr(config, name)}", status=2)
    if config.warmup < 0 or config.lr <= 0:
        raise WorkerError("lr must be above 0 and warmup at least 0", status=2)
    if config.vocab < 300:
        raise WorkerError(f"vocab must be at least 300 (256 bytes come first), got {config.vocab}", status=2)
    if config.hidden % (2 * config.heads) or config.heads % config.kv_heads:
        raise WorkerError(
            f"hidden={config.hidden} must be an even multiple of heads={config.heads},"
            f" and heads a multiple of kv_heads={config.kv_heads}",
            status=2,
        )
    below = config.global_batch // world_size * world_size
    if below != config.global_batch:
        choices = f"{below} or {below + world_size}" if below else str(world_size)
        raise WorkerError(
            f"global_batch={config.global_batch} does not divide over {world_size} ranks: use {choices}", status=2
        )
    if config.out and os.path.exists(config.out):
        raise WorkerError(f"out={config.out} exists already: name a new folder", status=2)


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise WorkerError(f"the lm task needs transformers ({error}): pip install 'transformers>=5'") from None
    import torch

    from ..train import share_tokens, train

    tokenizer, ids = tokenize(config) if dist.rank == 0 else (None, [])
    tokens = share_tokens(ids, dist, device)
    cut = int(len(tokens) * (1 - HELD_OUT))
    if len(tokens) - cut < config.seq_len + 2:
        raise WorkerError(f"the data has {len(tokens)} tokens: too few to hold out one sequence of {config.seq_len}")

    torch.manual_seed(config.seed)  # the same weights on every rank and for every world size
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            intermediate_size=config.ffn,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            max_position_embeddings=max(1024, config.seq_len + 1),
            tie_word_embeddings=True,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    train(model, tokens[:cut], tokens[cut:], config, dist, run, device)
    if config.out and dist.rank == 0:
        save(model, tokenizer, config.out)


def tokenize(config: Config) -> tuple[Any, list[int]]:
    """Train a byte-level BPE on the text and return it with the text's token ids."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise WorkerError(f"the lm task needs tokenizers ({error}): pip install tokenizers") from None
    texts = read_texts(config.data)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = tokenizer.token_to_id(END)
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(texts):
        ids += [*encoding.ids, end]
    return tokenizer, ids


def read_texts(data: str | list[str]) -> list[str]:
    """Read the documents to train on; raises WorkerError naming the file that cannot be read."""
    if data == "pydoc":
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise WorkerError("this Python has no pydoc_data (its help texts): set data= to a text file") from None
        return [topics[name] for name in sorted(topics)]
    texts = []
    for name in [data] if isinstance(data, str) else data:
        try:
            with open(os.path.expanduser(name), encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        except (OSError, TypeError) as error:
            raise WorkerError(f"cannot read data file {name}: {getattr(error, 'strerror', None) or error}") from None
    return texts


def save(model: Any, tokenizer: Any, out: str) -> None:
    """Write model and tokenizer to the folder `out`, which appears only when it is whole."""
    from transformers import PreTrainedTokenizerFast

    folder = out.rstrip("/")
    temporary = f"{folder}.tmp-{os.getpid()}"
    model.save_pretrained(temporary)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END)
    wrapped.save_pretrained(temporary)
    os.rename(temporary, folder)
    print(f"model written to {os.path.abspath(folder)}", flush=True)
