"""Which tokens of a conversation the loss is taken of, whatever the chat template."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data.chat import encode, with_template
from clusterrun.worker.data.conversations import Chat
from clusterrun.worker.data.packing import Documents
from clusterrun.worker.data.tokenizer import train_bpe
from clusterrun.worker.training.work import IGNORED
from tests.worker.small_models import make_tokenizer

SPECIAL = ("<|end|>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|eot|>")
TOKENIZER = train_bpe(["Hello there, how are you? I am fine.\n\n" * 4], 300, SPECIAL, chat=True)
CHATML = TOKENIZER.chat_template

DEFAULT_SYSTEM = (  # as SmolLM2's
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nBe nice<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (  # as Llama 2's and Mistral's: no prompt for the answer, and blanks are trimmed
    "<s>{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] | trim }} </s>"
    "{% else %}[INST] {{ m['content'] | trim }} [/INST]{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PLAIN = (  # nothing ends a turn but a blank line
    "{% for m in messages %}### {{ m['role'] }}:\n{{ m['content'] }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant:\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "<|eot|>{% endgeneration %}{% else %}{{ m['content'] }}<|eot|>{% endif %}\n{% endfor %}"
)
MARKED_WITHOUT_END = MARKED.replace("<|eot|>{% endgeneration %}", "{%- endgeneration -%}<|eot|>")
FORGETTING = (  # as those that leave an earlier answer's thoughts out
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' and loop.last %}Hm. {% endif %}"
    "{{ m['content'] }}<|eot|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('a user comes first') }}{% endif %}" + ZEPHYR


def chat(*contents: str, where: str = "a.jsonl:7") -> Chat:
    """A conversation: user and assistant in turn."""
    roles = ("user", "assistant") * len(contents)
    return Chat([{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)], where)


def encoded(template: str, *chats: Chat, seq_len: int = 1000, on_bad_row: str = "stop") -> Documents:
    TOKENIZER.chat_template = template
    try:
        return encode(chats, TOKENIZER, seq_len, on_bad_row=on_bad_row)[0]
    finally:
        TOKENIZER.chat_template = CHATML


def learned(documents: Documents) -> list[str]:
    """The unbroken runs of labels, as text."""
    runs: list[list[int]] = [[]]
    for label in documents.labels.tolist():
        if label != IGNORED:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [TOKENIZER.decode(run) for run in runs if run]


@pytest.mark.parametrize(
    ("template", "answers"),
    [
        (CHATML, ["I am fine.<|im_end|>", "Hello!<|im_end|>"]),
        (DEFAULT_SYSTEM, ["I am fine.<|im_end|>", "Hello!<|im_end|>"]),
        (INST, [" I am fine. </s>", " Hello! </s>"]),
        (ZEPHYR, ["I am fine.</s>", "Hello!</s>"]),
        (PLAIN, ["I am fine.\n\n", "Hello!\n\n"]),
        (MARKED, ["I am fine.<|eot|>", "Hello!<|eot|>"]),
        (MARKED_WITHOUT_END, ["I am fine.<|eot|>", "Hello!<|eot|>"]),
    ],
    ids=["chatml", "default-system", "inst", "zephyr", "plain", "marked", "marked-without-end"],
)
def test_the_labels_are_the_answers_to_the_end_of_each_turn(template: str, answers: list[str]) -> None:
    assert learned(encoded(template, chat("How are you?", "I am fine.", "Say hello", "Hello!"))) == answers


def test_a_label_is_the_next_token() -> None:
    found = encoded(CHATML, chat("How are you?", "I am fine."))
    tokens, labels, _ = (column.tolist() for column in found)
    assert all(label in (IGNORED, after) for label, after in zip(labels, [*tokens[1:], None], strict=True))
    assert labels[-1] == IGNORED


TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(st.lists(TEXT, min_size=2, max_size=6), st.sampled_from([CHATML, ZEPHYR, MARKED]))
@example(["a", "é\u0301 \U0001f600", "b", "<|im_end|>"], CHATML)
@example(["x ", " y ", " ", "  "], MARKED)
def test_every_answer_of_any_text_is_learned_whole_and_no_question(contents: list[str], template: str) -> None:
    found = encoded(template, chat(*contents))
    end = {CHATML: "<|im_end|>", ZEPHYR: "</s>", MARKED: "<|eot|>"}[template]
    for run, answer in zip(learned(found), contents[1::2], strict=True):
        # a token may reach over the border: the newline before an answer that begins with one
        assert run.endswith(answer + end)
        assert run.removesuffix(answer + end).strip() == ""


def test_a_text_is_tokenized_as_the_model_will_see_it() -> None:
    said = chat("How are you?", "I am fine.")
    expected = TOKENIZER.apply_chat_template(said.messages, tokenize=True, return_dict=True)["input_ids"]
    assert encoded(CHATML, said).tokens.tolist() == expected


def test_a_template_that_changes_earlier_answers_is_refused_for_the_row_that_shows_it() -> None:
    once, twice = chat("a", "b"), chat("a", "b", "c", "d", where="b.jsonl:9")
    assert learned(encoded(FORGETTING, once)) == ["Hm. b<|eot|>"]
    with pytest.raises(WorkerError, match=r"^b\.jsonl:9: the chat template renders message 2 differently"):
        encoded(FORGETTING, once, twice)
    TOKENIZER.chat_template = FORGETTING
    try:
        documents, _, _, skipped = encode([once, twice], TOKENIZER, 1000, on_bad_row="skip")
    finally:
        TOKENIZER.chat_template = CHATML
    assert (skipped, len(documents.lengths)) == (1, 1)


def test_what_a_template_raises_names_the_row() -> None:
    bad = Chat([{"role": "system", "content": "x"}, {"role": "assistant", "content": "y"}], "c.csv:2")
    with pytest.raises(
        WorkerError, match=r"^c\.csv:2: the chat template rejects these messages: 'a user comes first' \("
    ):
        encoded(STRICT, bad)


def test_an_answer_to_nothing_is_a_bad_row() -> None:
    with pytest.raises(WorkerError, match=r"^a\.jsonl:7: the first message is from the assistant"):
        encoded(CHATML, Chat([{"role": "assistant", "content": "y"}], "a.jsonl:7"))


def test_a_long_conversation_is_cut_and_one_without_an_answer_is_left_out() -> None:
    short, long, lost = chat("a", "b"), chat("a", "b" * 99), chat("a" * 99, "b")
    documents, *left_out = encode([short, long, lost, chat("only asked")], TOKENIZER, 30, on_bad_row="stop")
    assert left_out == [1, 2, 0]
    lengths = documents.lengths.tolist()
    assert lengths[1] == 30
    assert documents.labels[-1] == IGNORED  # what was cut off is not predicted
    assert documents.labels[-2] == documents.tokens[-1]
    assert len(documents.tokens) == sum(lengths)


def test_a_tokenizer_without_a_chat_template_is_given_chatml() -> None:
    tokenizer: Any = make_tokenizer()
    size = len(tokenizer)
    assert with_template(tokenizer)
    assert not with_template(tokenizer)
    assert len(tokenizer) == size + 2
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|end|>"
    documents, *_ = encode([chat("the dog", "the fox")], tokenizer, 100, on_bad_row="stop")
    assert tokenizer.decode([label for label in documents.labels if label != IGNORED]) == "the fox<|im_end|>"


def test_a_template_with_a_fault_is_reported_as_such() -> None:
    with pytest.raises(WorkerError, match="the chat template rejects these messages"):
        encoded("{% for %}", chat("a", "b"))
