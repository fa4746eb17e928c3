"""A tokenizer trained on the data loses no character, is the same every time, and loads from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data.tokenizer import train_bpe

TEXTS = ["the cat sat on the mat, and the cat was fat"] * 5 + ["héllo 🙂"]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
]


@pytest.fixture(scope="module")
def plain():
    return train_bpe(TEXTS, 280)


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=30))
def test_any_text_comes_back(plain, text: str) -> None:
    if "<|" not in text:
        assert plain.decode(plain(text)["input_ids"]) == text


def test_the_same_texts_give_the_same_tokenizer(plain) -> None:
    assert train_bpe(iter(TEXTS), 280).backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()
    assert len(plain) == 280


def test_the_first_special_token_begins_ends_and_pads(plain) -> None:
    assert (plain.bos_token_id, plain.eos_token_id, plain.pad_token_id) == (0, 0, 0)
    more = train_bpe(TEXTS, 300, ["<s>", "<mask>"])
    assert (more.eos_token, more.convert_tokens_to_ids("<mask>")) == ("<s>", 1)
    assert more("<mask>")["input_ids"] == [1]


def test_a_vocabulary_that_holds_no_bytes_is_a_wrong_request() -> None:
    with pytest.raises(WorkerError, match=r"vocab_size=258 is too small for .* use at least 259") as caught:
        train_bpe(TEXTS, 258, chat=True)
    assert caught.value.status == 2
    assert len(train_bpe(TEXTS, 257)) == 257


def test_a_chat_is_chatml_and_ends_its_turns(tmp_path: Path) -> None:
    tokenizer = train_bpe(TEXTS, 300, chat=True)
    text = tokenizer.apply_chat_template(CHAT[:2], tokenize=False, add_generation_prompt=True)
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    whole = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert whole == text + "Hello.<|im_end|>\n"
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token == "<|end|>"
    assert tokenizer(whole)["input_ids"].count(tokenizer.eos_token_id) == 3


def test_it_loads_from_its_folder_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tokenizer = train_bpe(TEXTS, 300, chat=True)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.apply_chat_template(CHAT)["input_ids"] == tokenizer.apply_chat_template(CHAT)["input_ids"]
    assert (loaded.eos_token, loaded.bos_token, len(loaded)) == ("<|im_end|>", "<|end|>", len(tokenizer))
    assert loaded.decode(loaded("a , b 's")["input_ids"]) == "a , b 's"
