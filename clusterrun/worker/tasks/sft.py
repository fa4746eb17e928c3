"""Chat fine-tuning: loss on the assistant's turns only, and short conversations packed into rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...base.errors import WorkerError
from ...base.settings import Sft as Config
from ..rank.distenv import DistEnv, RunEnv
from ..training import settings

if TYPE_CHECKING:
    import torch

    from ..data.conversations import Chat
    from ..training.work import Batch

BUILTIN = "builtin:conversations"
check = settings.check


class Packed:
    """Rows packed with conversations: sample i is row i."""

    def __init__(self, rows: dict[str, torch.Tensor]) -> None:
        self._used = rows["used"]
        self._rows = {name: tensor for name, tensor in rows.items() if name != "used"}

    def __len__(self) -> int:
        return len(self._used)

    def documents(self) -> tuple[int, int]:
        """Return the most documents of a row, and the tokens of the longest one; a row's padding counts as one."""
        positions = self._rows["position_ids"]
        return int((positions == 0).sum(1).max()), int(positions.max()) + 1

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return (rows, seq_len) input ids, position ids that restart with each conversation, and labels."""
        from ..training.work import IGNORED, Batch

        chosen = list(indices)
        tensors = {name: tensor[chosen].long() for name, tensor in self._rows.items()}
        return Batch(tensors, float((tensors["labels"] != IGNORED).sum()), int(self._used[chosen].sum()))


class Padded:
    """One conversation per row, padded to the batch's longest: sample i is conversation i."""

    def __init__(self, documents: dict[str, torch.Tensor], pad_id: int) -> None:
        self._tokens, self._labels, lengths = (documents[name] for name in ("tokens", "labels", "lengths"))
        self._ends, self._lengths = lengths.cumsum(0).tolist(), lengths.tolist()
        self._pad_id = pad_id

    def __len__(self) -> int:
        return len(self._lengths)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return (conversations, longest) input ids, attention mask and labels."""
        import torch

        from ..training.work import IGNORED, Batch

        lengths = [self._lengths[i] for i in indices]
        shape = (len(lengths), max(lengths))
        input_ids, labels = torch.full(shape, self._pad_id), torch.full(shape, IGNORED)
        attention_mask = torch.zeros(shape, dtype=torch.long)
        for row, (i, length) in enumerate(zip(indices, lengths, strict=True)):
            span = slice(self._ends[i] - length, self._ends[i])
            input_ids[row, :length] = self._tokens[span]
            labels[row, :length] = self._labels[span]
            attention_mask[row, :length] = 1
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        return Batch(tensors, float((labels != IGNORED).sum()), sum(lengths))


def run(config: Config, dist: DistEnv, run: RunEnv, device: torch.device) -> None:
    """Train on all ranks of the open process group (or on one process alone)."""
    from ..data import chat, packing, prepared
    from ..models import generate, load
    from ..models.token_loss import TokenLoss
    from ..training.work import Work
    from .finish import cache_folder, train_and_save

    source = load.resolve(config.model)
    own = load.tokenizer(source)
    new_format = own is None or chat.with_template(own)

    def build(folder: Path) -> dict[str, Any]:
        return tokenize(config, own, folder)

    key = _cache_key(config, own) if dist.rank == 0 else {}
    folder, tensors = prepared.prepare(cache_folder(run), key, build, dist)
    tokenizer = own or load.tokenizer(load.Source("folder", str(folder)))
    assert tokenizer is not None
    if dist.rank == 0:
        print(f"clusterrun: {described(config, tensors)}", flush=True)
    model = load.build(
        source,
        head="causal",
        vocab_size=len(tokenizer),
        seq_len=config.seq_len,
        pad_id=tokenizer.pad_token_id,
        eos_id=tokenizer.eos_token_id if new_format else None,
        seed=config.seed,
    )
    if new_format:
        model.generation_config.eos_token_id = tokenizer.eos_token_id  # else it never learns to end a turn
    if config.packing and not packing.keeps_apart(model):
        raise WorkerError(
            f"the model {config.model} would mix conversations packed into one row: set packing=false", status=2
        )

    train = _samples(config, tensors, "train", tokenizer)
    held_out = _samples(config, tensors, "held_out", tokenizer)
    loss = TokenLoss(model, documents=_documents_told(config, model, [train, held_out], device))
    work = Work(
        model=model,
        train=train,
        held_out=held_out,
        loss=loss,
        prepare=loss.prepare,
        one_shape=config.packing,
        sample=lambda prompt: generate.sample_chat(
            model, tokenizer, prompt, tokens=config.sample_tokens, device=device
        ),
        tokenizer=tokenizer,
        fingerprint=folder.name,
    )
    train_and_save(work, config, dist, run, device)


def _documents_told(
    config: Config, model: Any, samples: Sequence[Packed | Padded], device: torch.device
) -> tuple[int, int] | None:
    """Choose the attention of packed rows. Return what `TokenLoss` tells it of the documents, None if it uses masks."""
    from ..models import attention

    packed = [part for part in samples if isinstance(part, Packed)]
    if not packed or attention.install(model, device, config.precision, packed=True) != attention.DOCUMENTS:
        return None
    most, longest = zip(*(part.documents() for part in packed), strict=True)
    return max(most), max(longest)


def _samples(config: Config, tensors: dict[str, Any], part: str, tokenizer: Any) -> Packed | Padded:
    own = {name.removeprefix(f"{part}."): tensors[name] for name in tensors if name.startswith(f"{part}.")}
    return Packed(own) if config.packing else Padded(own, padding_of(tokenizer))


def _cache_key(config: Config, tokenizer: Any) -> dict[str, Any]:
    from ..data.prepared import marks
    from ..data.tokenizer import digest

    keys = ("model", "vocab", "held_out", "seq_len", "packing", "on_bad_row")
    data = {"name": "sft", "data": marks(config.data, config.val_data), "tokenizer": digest(tokenizer)}
    return data | {key: getattr(config, key) for key in keys}


def tokenize(config: Config, tokenizer: Any, folder: Path) -> dict[str, Any]:
    """Read and tokenize the conversations, with a BPE trained on them where the model has no tokenizer.

    Return the tensors of `packing.fill` (without packing: of `packing.Documents`) for "train" and "held_out", and
    `counts`: conversations trained on, cut, left without an answer, bad rows skipped.
    """
    import torch

    from ..data.chat import encode
    from ..data.packing import fill
    from ..data.tokenizer import train_bpe

    train, held_out, skipped = _read_parts(config)
    if tokenizer is None:
        tokenizer = train_bpe(
            (message["content"] for chat in train for message in chat.messages), config.vocab, chat=True
        )
        tokenizer.save_pretrained(folder)
    tensors: dict[str, Any] = {}
    counts = torch.tensor([0, 0, 0, skipped])
    for part, chats in (("train", train), ("held_out", held_out)):
        documents, cut, unanswered, bad = encode(chats, tokenizer, config.seq_len, on_bad_row=config.on_bad_row)
        count = len(documents.lengths)
        if not count:
            raise _nothing_left(config, part, chats if config.val_data else [*train, *held_out], unanswered)
        counts += torch.tensor([count if part == "train" else 0, cut, unanswered, bad])
        packed = fill(documents, config.seq_len, padding_of(tokenizer)) if config.packing else documents._asdict()
        tensors |= {f"{part}.{key}": tensor for key, tensor in packed.items()}
    return tensors | {"counts": counts}


def _read_parts(config: Config) -> tuple[list[Chat], list[Chat], int]:
    """Return the conversations to train on, those held out, and the number of bad rows skipped."""
    chats, skipped = read_conversations(config.data, config.on_bad_row)
    if not config.val_data:
        return *split(chats, config.held_out), skipped
    held_out, more = read_conversations(config.val_data, config.on_bad_row)
    return chats, held_out, skipped + more


def _nothing_left(config: Config, part: str, read: list[Chat], unanswered: int) -> WorkerError:
    """Return the error of a part that is empty, of the conversations that were read for it."""
    why = f"; {unanswered} without an answer within seq_len={config.seq_len}" if unanswered else ""
    if part == "train":
        return WorkerError(f"no conversations are left to train on ({len(read)} in the data{why})")
    hint = "" if config.val_data else "; set val_data or a larger held_out"
    return WorkerError(f"no conversations are left to evaluate on ({len(read)} in the data{why}){hint}")


def read_conversations(data: str | tuple[str, ...], on_bad_row: str) -> tuple[list[Chat], int]:
    """Return the conversations, and the number of bad rows skipped."""
    from ..data import sources
    from ..data.conversations import conversations

    names = [data] if isinstance(data, str) else list(data)
    rows = sources.read_rows([BUILTIN if name == sources.PYDOC else name for name in names], on_bad_row=on_bad_row)
    chats, skipped = conversations(rows, ", ".join(names), on_bad_row=on_bad_row)
    return chats, rows.skipped + skipped


def split(chats: list[Chat], share: float) -> tuple[list[Chat], list[Chat]]:
    """Split off a share of the conversations, evenly spread, as data is often sorted."""
    taken = [int((i + 1) * share) > int(i * share) for i in range(len(chats))]
    parts: tuple[list[Chat], list[Chat]] = ([], [])
    for chat, out in zip(chats, taken, strict=True):
        parts[out].append(chat)
    return parts


def padding_of(tokenizer: Any) -> int:
    """Return the padding token; it gets no loss and no attention."""
    return next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)


def described(config: Config, tensors: dict[str, torch.Tensor]) -> str:
    """Return a line with the numbers of conversations used, cut and skipped."""
    from ...base.units import plural

    conversations, cut, unanswered, skipped = tensors["counts"].tolist()
    line = f"{plural(conversations, 'conversation')} to train on"
    if config.packing:
        used = tensors["train.used"]
        filled = used.sum().item() / (len(used) * config.seq_len)
        line += f", packed into {plural(len(used), 'row')} of {config.seq_len} tokens, {filled:.1%} full"
    line += f"; {cut:,} truncated to {config.seq_len} tokens" if cut else ""
    line += f"; {unanswered:,} left out (no answer)" if unanswered else ""
    line += f"; {plural(skipped, 'bad row')} skipped" if skipped else ""
    return line
