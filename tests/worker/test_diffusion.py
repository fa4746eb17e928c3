"""The task `diffusion`: what is masked and what it costs, attention to both sides, the sampler, and a whole run."""

from __future__ import annotations

import functools
import itertools
import json
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, PreTrainedModel

from clusterrun.base.errors import WorkerError
from clusterrun.worker.models import load, masked, unmask
from clusterrun.worker.models.token_loss import TokenLoss
from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.tasks import diffusion, prepare
from clusterrun.worker.training import stopping
from clusterrun.worker.training.work import Tensors
from tests.worker.small_models import make_config, make_model, make_tokenizer

CPU = torch.device("cpu")
MASK = 3


def make_both_ways(**changes: Any) -> PreTrainedModel:
    model = make_model(**changes)
    masked.make_bidirectional(model)
    return model


class Fixed(torch.nn.Module):
    """Gives the same logits, (length, vocabulary), whatever it is given; remembers what that was."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)
        self.config = SimpleNamespace(is_causal=True, vocab_size=logits.shape[1])
        self.device = CPU
        self.seen: list[torch.Tensor] = []

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
        self.seen.append(input_ids.clone())
        return SimpleNamespace(logits=self.logits[: input_ids.shape[1]].expand(len(input_ids), -1, -1))


# --- the loss ----------------------------------------------------------------------------------------------------


def loss_of(model: Any, batch: Tensors, eps: float, training: bool) -> torch.Tensor:
    loss = TokenLoss(model, functools.partial(masked.label, mask_id=MASK, eps=eps))
    return loss(model, loss.prepare(batch, torch.default_generator, training=training))


def exact_bound(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """The integral over t in (0, 1) of what is expected to be lost, over every set of masked tokens."""
    n = len(ids)
    total = 0.0
    for chosen in itertools.product((False, True), repeat=n):
        k = sum(chosen)
        if not k:
            continue
        hidden = torch.tensor(chosen)
        logits = model(input_ids=ids.masked_fill(hidden, MASK)[None]).logits[0]
        lost = cross_entropy(logits[hidden], ids[hidden], reduction="sum").item()
        total += lost * math.factorial(k - 1) * math.factorial(n - k) / math.factorial(n)  # of t^(k-1) (1-t)^(n-k)
    return total


@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_the_loss_is_on_average_the_bound_on_the_likelihood(training: bool) -> None:
    model = make_both_ways(vocab_size=12, initializer_range=1.0).train(training)
    ids = torch.tensor([5, 8, 5])
    batch = {"input_ids": ids.expand(2_000, 3)}
    torch.manual_seed(0)
    draws = [loss_of(model, batch, 1e-4, training).item() / 2_000 for _ in range(25)]
    mean, error = torch.tensor(draws).mean().item(), torch.tensor(draws).std().item() / 5
    bound = exact_bound(model, ids)
    assert error < 0.02 * bound
    assert mean == pytest.approx(bound, abs=3 * error)


def test_each_token_is_masked_with_the_probability_that_its_loss_is_divided_by() -> None:
    torch.manual_seed(0)
    weights = masked.at_random(4_000, 200, 0.1, torch.default_generator)
    t = 1 / weights.max(1).values
    assert ((weights == 0) | (weights == weights.max(1, keepdim=True).values)).all()
    assert t.min() >= 0.1
    assert t.mean().item() == pytest.approx(0.55, abs=0.01)
    share = (weights > 0).float().mean(1)
    assert ((share - t).abs() < 6 * (t * (1 - t) / 200).sqrt() + 1e-3).all()
    assert (share - t).mean().abs().item() < 0.002


def test_to_evaluate_the_numbers_of_masked_tokens_are_spread_evenly() -> None:
    weights = masked.evenly(16, 16, torch.default_generator)
    counts = (weights > 0).sum(1)
    assert sorted(counts.tolist()) == list(range(1, 17))
    assert torch.allclose(weights.sum(1), torch.full((16,), 16.0))


@pytest.mark.parametrize("training", [True, False])
def test_only_masked_tokens_are_hidden_and_cost_each_at_its_own_place(training: bool) -> None:
    model = Fixed(torch.randn(8, 12)).train(training)
    ids = torch.randint(4, 12, (5, 8))
    torch.manual_seed(7)
    loss = loss_of(model, {"input_ids": ids}, 0.01, training)
    random = torch.Generator().manual_seed(7)
    weights = masked.at_random(5, 8, 0.01, random) if training else masked.evenly(5, 8, random)
    assert torch.equal(model.seen[0], torch.where(weights > 0, MASK, ids))
    each = -model.logits.log_softmax(-1)[torch.arange(8), ids]
    assert loss.item() == pytest.approx((each * weights).sum().item(), rel=1e-5)
    loss.backward()
    assert torch.equal(model.logits.grad.abs().sum(1) > 0, (weights > 0).any(0))


# --- both ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_first_position_sees_the_last_one_also_in_bf16_and_when_loaded_again(
    kind: str, attention: str, tmp_path: Path
) -> None:
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    gpt2 = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=300, n_positions=64, **ids)
    config = make_config() if kind == "llama" else gpt2
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    pair = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 200]])

    def moved(model: PreTrainedModel) -> float:
        first = model(input_ids=pair, use_cache=False).logits[:, 0].float()
        return (first[0] - first[1]).abs().max().item()

    assert moved(model) == 0
    masked.make_bidirectional(model)
    assert moved(model) > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert moved(model) > 0
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention)
    assert torch.equal(again(input_ids=pair).logits, model(input_ids=pair).logits)


def test_a_model_that_stays_causal_is_refused() -> None:
    with pytest.raises(WorkerError, match="Fixed does not support bidirectional attention"):
        masked.make_bidirectional(Fixed(torch.zeros(8, 12)))  # type: ignore[arg-type]


def test_the_mode_is_left_as_it_was() -> None:
    assert make_both_ways().training


def test_a_tokenizer_gets_a_mask_token_unless_it_has_one() -> None:
    tokenizer = make_tokenizer()
    size = len(tokenizer)
    assert masked.add_mask_token(tokenizer) == size
    assert (tokenizer.mask_token, len(tokenizer)) == ("<|mask|>", size + 1)
    assert masked.add_mask_token(tokenizer) == size
    assert len(tokenizer) == size + 1


# --- the sampler -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 3, 7, 50])
@torch.no_grad()
def test_every_mask_is_filled_in_as_many_rounds_as_asked_and_nothing_else_is_touched(rounds: int) -> None:
    logits = torch.randn(10, 12)
    logits[:, MASK] = 100.0  # the mask itself is never an answer
    model = Fixed(logits)
    ids = torch.tensor([5, MASK, 6, *[MASK] * 6, 7])
    filled = unmask.unmask(model, ids, MASK, rounds)
    assert filled[[0, 2, 9]].tolist() == [5, 6, 7]
    logits[:, MASK] = -100.0
    assert torch.equal(filled[ids == MASK], logits.argmax(1)[ids == MASK])
    left = [int((seen == MASK).sum()) for seen in model.seen]
    kept = [a - b for a, b in zip(left, [*left[1:], 0], strict=True)]
    assert len(kept) == min(rounds, 7)
    assert max(kept) - min(kept) <= 1


@torch.no_grad()
def test_the_surest_mask_is_filled_first() -> None:
    logits = torch.zeros(4, 12)
    logits[torch.arange(4), torch.tensor([5, 6, 7, 8])] = torch.tensor([1.0, 3.0, 9.0, 2.0])
    model = Fixed(logits)
    filled = unmask.unmask(model, torch.tensor([MASK, MASK, 4, MASK]), MASK, 3)
    assert [seen[0].tolist() for seen in model.seen] == [[MASK, MASK, 4, MASK], [MASK, 6, 4, MASK], [MASK, 6, 4, 8]]
    assert filled.tolist() == [5, 6, 4, 8]


def answers(model: Any, tokenizer: Any, prompt: str, tokens: int = 12, rounds: int = 4) -> str:
    return unmask.sample(model, tokenizer, prompt, tokens=tokens, rounds=rounds, device=CPU)


def test_sampling_leaves_no_trace_and_no_mask() -> None:
    tokenizer = make_tokenizer()
    masked.add_mask_token(tokenizer)
    model = make_both_ways(vocab_size=len(tokenizer), attention_dropout=0.5)
    state = torch.get_rng_state()
    texts = {prompt: answers(model, tokenizer, prompt) for prompt in ("the quick", "", "the <|mask|> fox", "fox " * 90)}
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert texts == {prompt: answers(model, tokenizer, prompt) for prompt in texts}
    assert not any("<|" in text for text in texts.values())


def test_a_sample_ends_at_the_end_token() -> None:
    tokenizer = make_tokenizer()
    masked.add_mask_token(tokenizer)
    dog = tokenizer(" dog")["input_ids"]
    logits = torch.zeros(64, len(tokenizer))
    start = len(tokenizer("the")["input_ids"])
    logits[torch.arange(64), torch.tensor([dog[0]] * 64)] = 5.0
    logits[start + 2, 0] = 9.0  # the end token, at the third place after the prompt
    model = Fixed(logits)
    model.generation_config = SimpleNamespace(eos_token_id=0)
    assert answers(model, tokenizer, "the") == tokenizer.decode([*dog[:1] * 2])


# --- the task ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run_diffusion(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Run the task on one rank, on a text that is soon learned; gives the run's folder."""
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    text = tmp_path / "text.txt"
    text.write_text("".join("the quick brown fox " if i * i % 7 > 2 else "jumps over a lazy dog " for i in range(400)))

    def run(name: str, *settings: str) -> Path:
        stopping._received.clear()
        folder = tmp_path / ".clusterrun" / "runs" / name
        folder.mkdir(parents=True)
        words = [f"data={text}", "seq_len=16", "eval_samples=16", "global_batch_size=4", *settings]
        prepare("diffusion", words, 1)(distenv.resolve({}), RunEnv(run_id=name, run_dir=folder), CPU)
        return folder

    yield run
    stopping._received.clear()
    for signum, handler in before.items():
        signal.signal(signum, handler)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_run_learns_and_its_model_and_its_weights_can_be_used_again(
    run_diffusion: Callable[..., Path], tmp_path: Path
) -> None:
    first = run_diffusion("a", "vocab=300", "steps=60", "eval_every=0", 'sample_prompts=["the quick"]')
    before, after = (row["val_loss"] for row in rows(first) if "val_loss" in row)
    assert after < 0.7 * before
    assert [row["step"] for row in rows(first, "samples.jsonl")] == [0, 60]

    model = AutoModelForCausalLM.from_pretrained(first / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(first / "model")
    assert len(tokenizer) == model.config.vocab_size
    assert model.config.is_causal is False
    assert answers(model, tokenizer, "the quick", 40, 20) == rows(first, "samples.jsonl")[1]["text"]

    # a checkpoint as DistributedDataParallel names its tensors, in a file of weights alone
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 5, "model_state_dict": weights}, tmp_path / "checkpoint_epoch_5.pt")
    second = run_diffusion("b", "vocab=300", "steps=1", f"resume={tmp_path / 'checkpoint_epoch_5.pt'}")
    assert rows(second)[0]["val_loss"] == pytest.approx(after, rel=1e-6)

    third = run_diffusion("c", f"model={first / 'model'}", "steps=1")
    assert rows(third)[0]["val_loss"] == pytest.approx(after, rel=1e-6)


def test_a_trained_causal_model_gets_the_mask_token_and_a_row_for_it(
    run_diffusion: Callable[..., Path], tmp_path: Path
) -> None:
    tokenizer = make_tokenizer()
    make_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "own")
    tokenizer.save_pretrained(tmp_path / "own")
    folder = run_diffusion("a", f"model={tmp_path / 'own'}", "steps=1")
    model = load.build(
        load.resolve(str(folder / "model")), head="causal", vocab_size=None, seq_len=8, pad_id=None, seed=1
    )
    assert model.get_input_embeddings().num_embeddings == len(tokenizer) + 1
    assert AutoTokenizer.from_pretrained(folder / "model").mask_token_id == len(tokenizer)


@pytest.mark.parametrize("setting", ["eps=0", "eps=1", "eps=-1", "eps=NaN", "sample_steps=0", "held_out=1"])
def test_what_cannot_be_is_refused_in_one_line(setting: str) -> None:
    with pytest.raises(WorkerError, match=f"^{setting.partition('=')[0]} must be") as caught:
        prepare("diffusion", [setting], 1)
    assert caught.value.status == 2
    assert "\n" not in str(caught.value)


def test_the_defaults_fit_any_number_of_ranks() -> None:
    for world_size in (1, 2, 3, 4, 8, 16, 64):
        diffusion.check(diffusion.Config(), world_size)
