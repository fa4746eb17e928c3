"""The data that every Python carries: the same every time, of the right shape, and something can be learnt from it."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import builtin


def test_documents_are_many_english_texts() -> None:
    texts = builtin.documents()
    assert len(texts) > 50 and sum(map(len, texts)) > 300_000 and texts == builtin.documents()


def test_conversations_are_chats_with_real_length_spread() -> None:
    rows = builtin.conversations()
    assert 600 <= len(rows) <= 2000
    kinds = Counter(tuple(message["role"] for message in row["messages"]) for row in rows)
    assert set(kinds) == {("user", "assistant"), ("system", "user", "assistant"), ("user", "assistant") * 2}
    assert min(kinds.values()) > 100
    assert all(message["content"].strip() for row in rows for message in row["messages"])
    lengths = sorted(sum(len(message["content"]) for message in row["messages"]) for row in rows)
    median = lengths[len(lengths) // 2]
    assert lengths[len(lengths) // 20] < median / 2 and lengths[-len(lengths) // 20] > 3 * median


def test_no_answer_is_in_two_chats() -> None:
    texts = [text for _, text, _, _ in builtin.docstrings()]
    assert len(set(texts)) == len(texts)


def test_another_process_makes_the_same_rows_and_imports_none_of_the_modules() -> None:
    program = (
        "import sys, zlib; from clusterrun.worker.data import builtin; rows = builtin.conversations()\n"
        "assert 'smtplib' not in sys.modules; print(zlib.crc32(repr(rows).encode()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == zlib.crc32(repr(builtin.conversations()).encode())


def test_a_labelled_text_does_not_hold_its_own_name() -> None:
    for row, (name, *_) in zip(builtin.labelled(), builtin.docstrings(), strict=True):
        assert not re.search(rf"\b{name.rpartition('.')[2]}\b", row["text"])
        assert row["kind"] in ("function", "class", "method", "module") and row["topic"] in builtin.MODULES


def test_the_topic_can_be_learnt_from_the_words() -> None:
    rows = [(set(re.findall(r"\w+", row["text"].lower())), row["topic"]) for row in builtin.labelled()]
    held_out, known = rows[::5], [row for number, row in enumerate(rows) if number % 5]
    topics = Counter(topic for _, topic in known)
    words = {topic: Counter(word for text, label in known if label == topic for word in text) for topic in topics}

    def likelihood(text: set[str], topic: str) -> float:
        return sum(math.log((words[topic][word] + 0.3) / (topics[topic] + 0.6)) for word in text)

    right = sum(max(topics, key=lambda topic: likelihood(text, topic)) == label for text, label in held_out)
    assert right / len(held_out) > 0.6  # chance is below 0.2
    assert max(topics.values()) / len(known) < 0.25


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a standard library without a module."""
    monkeypatch.setattr(builtin.sysconfig, "get_path", lambda name: str(tmp_path))
    builtin.docstrings.cache_clear()
    yield tmp_path
    builtin.docstrings.cache_clear()


def test_a_python_without_sources_says_so(library: Path) -> None:
    with pytest.raises(WorkerError, match="no standard library sources"):
        builtin.conversations()


def test_modules_that_are_missing_or_broken_are_passed_over(library: Path) -> None:
    (library / "queue.py").write_text('def put():\n    """Put an item into the queue."""\n')
    (library / "random.py").write_text("def (:\n")
    assert builtin.labelled() == [{"text": "Put an item into the queue.", "kind": "function", "topic": "concurrency"}]


def test_a_python_without_its_help_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(WorkerError, match="lacks the module pydoc_data"):
        builtin.documents()
