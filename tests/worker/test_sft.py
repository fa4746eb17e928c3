"""The task `sft`: which files it takes, what it makes of them, and a run of it from end to end."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, OPTConfig

from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.tasks import prepare, sft
from clusterrun.worker.tasks.sft import Config, Packed, Padded
from clusterrun.worker.training import stopping
from clusterrun.worker.training.work import IGNORED, next_token
from tests.worker.small_models import make_model, make_tokenizer

HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]


def jsonl(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def chats(count: int) -> list[dict[str, Any]]:
    """Conversations of many lengths, some of two turns."""
    turn = [[*HELLO, {"role": "user", "content": "And " + "x" * (i * 7 % 50)}, HELLO[1]] for i in range(count)]
    return [{"messages": messages[: 2 + 2 * (i % 2)]} for i, messages in enumerate(turn)]


# --- rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"messages": HELLO},
        {"messages": json.dumps(HELLO), "id": "3"},
        {"prompt": "Hi", "completion": "Hello!"},
        {"instruction": "Hi", "output": "Hello!"},
        {"instruction": "Hi", "input": "", "output": "Hello!"},
    ],
)
def test_each_known_shape_of_a_row_is_the_same_conversation(tmp_path: Path, row: dict[str, Any]) -> None:
    found, skipped = sft.read_conversations(jsonl(tmp_path / "a.jsonl", row), "stop")
    assert (found[0].messages, skipped) == (HELLO, 0)
    assert found[0].where.endswith("a.jsonl:1")


def test_the_input_follows_its_instruction(tmp_path: Path) -> None:
    row = {"instruction": "Translate.", "input": "chat", "output": "cat"}
    found, _ = sft.read_conversations(jsonl(tmp_path / "a.jsonl", row), "stop")
    assert found[0].messages[0]["content"] == "Translate.\n\nchat"


def test_the_parts_of_a_text_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "He"}, {"type": "text", "text": "llo!", "image": None}]
    row = {"messages": [HELLO[0], {"role": "assistant", "content": parts}]}
    found, _ = sft.read_conversations(jsonl(tmp_path / "a.jsonl", row), "stop")
    assert found[0].messages == HELLO


def test_files_of_different_shapes_go_together_and_a_csv_cell_holds_json(tmp_path: Path) -> None:
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["id", "messages"], ["1", json.dumps(HELLO)]])
    pairs = jsonl(tmp_path / "b.jsonl", {"prompt": "Hi", "completion": "Hello!"})
    found, _ = sft.read_conversations((str(tmp_path / "a.csv"), pairs), "stop")
    assert [chat.messages for chat in found] == [HELLO, HELLO]


def test_rows_of_no_known_shape_are_refused_with_their_columns_and_the_shapes(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"question": "Hi", "completion": "Hello!"})
    with pytest.raises(WorkerError) as caught:
        sft.read_conversations(data, "skip")
    assert "columns question, completion; expected messages (" in str(caught.value)
    assert "prompt + completion" in str(caught.value)
    assert caught.value.status == 2


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": []}, "'messages' is empty"),
        ({"messages": "Hi"}, "'messages' is text, but not JSON: 'Hi'"),
        ({"messages": None}, "'messages' is null, not a list"),
        ({"messages": {"role": "user"}}, "'messages' is of type dict, not a list"),
        ({"messages": ["Hi"]}, "message 1 is not an object with role and content: \"'Hi'\""),
        (
            {"messages": [HELLO[0], {"role": "bot", "content": "x"}]},
            "message 2 has an unknown role, \"'bot'\"; known: system,",
        ),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "message 1 has an unknown role"),
        ({"messages": [{"role": "user", "content": None}]}, "the content of message 1 (user) is null, not text"),
        ({"messages": [HELLO[0], {"role": "assistant", "content": " "}]}, "message 2 (assistant) is empty"),
        ({"messages": [HELLO[0], {"role": "assistant", "content": []}]}, "message 2 (assistant) is empty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
            "part 2 of message 1 (user) is of type 'image_url'; only text can be trained on",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "part 1 of message 1 (user) is not an object with a type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
            "part 1 of message 1 (user) has no text: ",
        ),
        ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "message 1 contains an unpaired Unicode surrogate"),
        ({"prompt": "Hi", "completion": None}, "'completion' is null, not text"),
        ({"prompt": "Hi", "completion": ""}, "message 2 (assistant) is empty"),
        ({"instruction": "Hi", "input": 3, "output": "x"}, "'input' is of type int, not text"),
        ({"prompt": "Hi"}, "this row has no messages (a list of role/content objects), prompt + completion"),
    ],
)
def test_a_row_that_is_no_conversation_is_named_or_skipped(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"messages": HELLO}, row)
    with pytest.raises(WorkerError) as caught:
        sft.read_conversations(data, "stop")
    assert str(caught.value).startswith(f"{data}:2: {problem}")
    found, skipped = sft.read_conversations(data, "skip")
    assert (len(found), skipped) == (1, 1)


def test_nothing_but_bad_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"no conversations in .*: 1 bad row skipped"):
        sft.read_conversations(jsonl(tmp_path / "a.jsonl", {"messages": []}), "skip")


# --- samples -----------------------------------------------------------------------------------------------------


def made(tmp_path: Path, **settings: Any) -> tuple[Config, dict[str, torch.Tensor]]:
    data = jsonl(tmp_path / "chats.jsonl", *chats(40))
    config = Config(**{"data": data, "seq_len": 64, "vocab": 300, **settings})
    return config, sft.tokenize(config, None, tmp_path)


def part(tensors: dict[str, torch.Tensor], name: str = "train") -> dict[str, torch.Tensor]:
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def test_packed_or_padded_the_loss_is_the_same(tmp_path: Path) -> None:
    packed, padded = (
        samples(part(made(tmp_path, packing=packing)[1]), *more)
        for packing, samples, more in ((True, Packed, ()), (False, Padded, (0,)))
    )
    assert len(packed) < len(padded) == 36
    model = make_model(initializer_range=0.3).eval()
    ones, others = packed.batch(range(len(packed))), padded.batch(range(len(padded)))
    assert (ones.weight, ones.tokens) == (others.weight, others.tokens)
    with torch.no_grad():
        losses = [next_token(model, batch.tensors) for batch in (ones, others)]
    torch.testing.assert_close(*losses)


def test_a_batch_says_how_many_targets_and_tokens_it_has(tmp_path: Path) -> None:
    documents = part(made(tmp_path, packing=False)[1])
    batch = Padded(documents, 0).batch([3, 0])
    lengths = documents["lengths"][[3, 0]].tolist()
    assert batch.tensors["input_ids"].shape == (2, max(lengths))
    assert batch.tensors["attention_mask"].sum(1).tolist() == lengths
    assert batch.tokens == sum(lengths)
    assert batch.weight == (batch.tensors["labels"] != IGNORED).sum() > 0
    rows = Packed(part(made(tmp_path)[1])).batch([0])
    assert rows.tensors["input_ids"].shape == (1, 64)
    assert rows.tokens <= 64
    assert rows.weight == (rows.tensors["labels"] != IGNORED).sum()


def test_the_held_out_share_is_evenly_spread_and_no_part_of_the_training() -> None:
    numbers: Any = list(range(100))
    train, held_out = sft.split(numbers, 0.1)
    assert sorted(train + held_out) == numbers
    assert held_out == list(range(9, 100, 10))


def test_validation_data_of_its_own_leaves_all_else_to_train_on(tmp_path: Path) -> None:
    val_data = jsonl(tmp_path / "val.jsonl", *chats(3), {"messages": []})
    config, tensors = made(tmp_path, val_data=val_data, packing=False, on_bad_row="skip", seq_len=32)
    assert (len(tensors["train.lengths"]), len(tensors["held_out.lengths"])) == (40, 3)
    assert sft.described(config, tensors).startswith("40 conversations to train on; ")
    assert sft.described(config, tensors).endswith(" truncated to 32 tokens; 1 bad row skipped")


def test_conversations_without_an_answer_are_not_trained_on(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", *[{"messages": HELLO[:1]}] * 30)
    with pytest.raises(
        WorkerError, match=r"no conversations are left to train on \(30 in the data; 27 without an answer within"
    ):
        sft.tokenize(Config(data=data, vocab=300), None, tmp_path)


def test_too_few_conversations_to_hold_some_out_is_said(tmp_path: Path) -> None:
    data = jsonl(tmp_path / "a.jsonl", {"messages": HELLO})
    with pytest.raises(WorkerError, match=r"left to evaluate on \(1 in the data\); set val_data or a larger held_out"):
        sft.tokenize(Config(data=data, vocab=300), None, tmp_path)


# --- the whole task ----------------------------------------------------------------------------------------------


@pytest.fixture
def run_sft(tmp_path: Path) -> Iterator[Any]:
    """Run the task on one rank: returns the run's folder."""
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    data = jsonl(tmp_path / "chats.jsonl", *chats(60))

    def run(*settings: str, name: str = "r1") -> Path:
        run_dir = tmp_path / ".clusterrun" / "runs" / name
        run_dir.mkdir(parents=True, exist_ok=True)
        fixed = (f"data={data}", "seq_len=64", "vocab=300", "global_batch_size=4", "eval_every=0")
        env = RunEnv(run_id=name, run_dir=run_dir)
        prepare("sft", [*fixed, *settings], 1)(distenv.resolve({}), env, torch.device("cpu"))
        return run_dir

    yield run
    stopping._received.clear()
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.parametrize("packing", ["true", "false"])
def test_a_run_learns_and_leaves_a_model_that_answers(run_sft: Any, packing: str) -> None:
    folder = run_sft("steps=30", f"packing={packing}", "sample_prompts=Hi", "sample_tokens=12")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["val_loss"] for row in rows if row.get("val_loss") is not None]
    assert losses[-1] < 0.6 * losses[0]
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0, 30]
    assert samples[-1]["text"].startswith("Hello")
    tokenizer, model = (kind.from_pretrained(folder / "model") for kind in (AutoTokenizer, AutoModelForCausalLM))
    prompt = tokenizer.apply_chat_template(HELLO[:1], add_generation_prompt=True, return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=30, do_sample=False)[0]
    assert tokenizer.decode(ids).endswith("Hello!<|im_end|>")


def test_a_pretrained_folder_keeps_its_tokenizer_and_learns_the_chat_format(run_sft: Any, tmp_path: Path) -> None:
    make_model(max_position_embeddings=128).save_pretrained(tmp_path / "base")
    make_tokenizer().save_pretrained(tmp_path / "base")
    folder = run_sft("steps=1", f"model={tmp_path / 'base'}")
    tokenizer, model = (kind.from_pretrained(folder / "model") for kind in (AutoTokenizer, AutoModelForCausalLM))
    assert tokenizer.encode("the dog") == make_tokenizer().encode("the dog")
    assert "<|im_start|>" in tokenizer.chat_template
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_a_changed_chat_template_is_not_taken_from_the_cache(run_sft: Any, tmp_path: Path) -> None:
    make_model(max_position_embeddings=128).save_pretrained(tmp_path / "base")
    tokenizer = make_tokenizer()
    for name, closing in (("r1", "!"), ("r2", "?")):
        tokenizer.chat_template = "{% for m in messages %}" + "{{ m['content'] }}" + closing + "<|end|>{% endfor %}"
        tokenizer.save_pretrained(tmp_path / "base")
        run_sft("steps=1", f"model={tmp_path / 'base'}", name=name)
    assert len(list((tmp_path / ".clusterrun" / "cache").glob("sft-*"))) == 2


def test_a_model_that_would_mix_packed_conversations_is_refused(run_sft: Any, tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32}
    ids = {"vocab_size": 302, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    config = OPTConfig(word_embed_proj_dim=16, max_position_embeddings=128, **shape, **ids)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "opt")
    make_tokenizer().save_pretrained(tmp_path / "opt")
    with pytest.raises(WorkerError, match="would mix conversations packed into one row: set packing=false") as caught:
        run_sft("steps=1", f"model={tmp_path / 'opt'}")
    assert caught.value.status == 2
    run_sft("steps=1", f"model={tmp_path / 'opt'}", "packing=false", name="r2")


@pytest.mark.parametrize("share", ["0", "1", "-0.5"])
def test_a_share_that_leaves_nothing_is_refused(share: str) -> None:
    with pytest.raises(WorkerError, match="held_out must be greater than 0 and less than 1"):
        prepare("sft", [f"held_out={share}"], 1)
