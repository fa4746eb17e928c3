"""Train a byte-level BPE on the data, as a Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...base.errors import WorkerError
from ...base.units import plural

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

END = "<|end|>"
TURN = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
BYTES = 256


def digest(tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return a hash of a tokenizer and its chat template, "" for None."""
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # one without, such as CANINE's, has no vocabulary
    own = repr(tokenizer) if backend is None else backend.to_str()
    return hashlib.sha256(f"{own}{tokenizer.chat_template}".encode()).hexdigest()


def keep_whole(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let a tokenizer that has cut a text forget it: else it is saved with the tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()


def train_bpe(
    texts: Iterable[str], vocab_size: int, special: Sequence[str] = (END,), *, chat: bool = False
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of at most `vocab_size` tokens; any text survives encoding and decoding.

    The special tokens come first; the first of them begins, ends and pads. `chat` adds ChatML's two, its template
    (system, user and assistant turns), and lets `<|im_end|>` be the end instead. Little text gives fewer tokens.
    Raises WorkerError (status 2) where the 256 bytes and the special tokens do not fit.
    """
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise WorkerError(f"training a tokenizer needs transformers ({error}): pip install 'transformers>=5'") from None
    first = [*special, *(token for token in TURN if chat and token not in special)]
    if vocab_size < BYTES + len(first):
        raise WorkerError(
            f"vocab_size={vocab_size} is too small for the {BYTES} byte values and"
            f" {plural(len(first), 'special token')}: use at least {BYTES + len(first)}",
            status=2,
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=first,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    end = TURN[1] if chat else first[0]
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=first[0],
        eos_token=end,
        pad_token=first[0],
        extra_special_tokens=[token for token in first[1:] if token != end],
        clean_up_tokenization_spaces=False,
    )
    if chat:
        wrapped.chat_template = CHATML
    return wrapped
