"""Data sets of the Hugging Face Hub, from a server here that can fail in every way: files, cache, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import hub_data
from clusterrun.worker.data.hub_data import Named, _by_card, _by_name, parse
from tests.support.dataset_hub import DatasetHub, serving
from tests.support.folders import ROOT
from tests.support.patience import HUNG

TOKEN = "hf_" + "Secret0" * 5
CARD = b"""---
configs:
- config_name: main
  data_files:
  - {split: train, path: "main/train-*"}
  - {split: test, path: [main/test.jsonl]}
- config_name: extra
  data_files: extra/*.csv
---
# A data set
"""
FILES = {
    "README.md": CARD, "load.py": b"raise SystemExit('code of a data set ran')", "extra/x.csv": b"text\nx\n",
    "main/train-0.jsonl": b'{"text": "a"}\n', "main/train-1.jsonl": b'{"text": "b"}\n',
    "main/test.jsonl": b'{"text": "t"}\n',
}  # fmt: skip
LONG = (str(HUNG), str(HUNG))
ASK = """
import json, sys
from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import hub_data, sources
hub_data.LOOK_S, hub_data.hub.ANSWER_S = map(float, sys.argv[1:3])
for word in sys.argv[3:]:
    what, _, name = word.partition("=")
    try:
        answer = hub_data.look(name) if what == "look" else [row.values["text"] for row in sources.read_rows(name).rows]
    except WorkerError as error:
        answer = [str(error), error.status]
    print(json.dumps(answer))
"""


def ask(hub: DatasetHub, home: Path, *words: str, limits: tuple[str, str] = LONG, **more: str) -> list[Any]:
    """Return what reading, or looking at, each name gives: rows, or a refusal with its status."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, *limits, *words], cwd=ROOT, env=hub.environ(home, **more), text=True,
        capture_output=True, timeout=HUNG, check=False,
    )  # fmt: skip
    assert done.stderr == "" and TOKEN not in done.stdout
    return list(map(json.loads, done.stdout.splitlines()))


def test_rows_come_from_the_files_that_the_card_names_and_later_from_the_cache(tmp_path: Path) -> None:
    with serving(FILES) as hub:
        looked = ask(hub, tmp_path, "look=hf:org/name:main", "look=hf:org/name:main[tset]", HF_TOKEN=TOKEN)
        assert looked == [
            "", ["org/name has no split 'tset' (did you mean 'test'?); it has: train, test", 2]
        ] and hub.downloaded == ["README.md"]  # fmt: skip
        assert f"Bearer {TOKEN}" in hub.tokens
        (refusal,) = ask(hub, tmp_path, "read=hf:org/name:main", HF_HUB_OFFLINE="1")
        assert "the cache lacks files of it" in refusal[0], "a part of a split is not the split"
        assert ask(hub, tmp_path, "read=hf:org/name:main", "read=hf:org/name:extra") == [["a", "b"], ["x"]]
        assert "main/test.jsonl" not in hub.downloaded and "load.py" not in hub.downloaded
        hub.mode = "gone"
        assert ask(hub, tmp_path, "read=hf:org/name:main", HF_HUB_OFFLINE="1") == [["a", "b"]]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("gone", "no data set org/name, or it is private or gated: check the name and HF_TOKEN"),
        ("private", "no data set org/name, or it is private or gated: check the name and HF_TOKEN"),
        ("rubbish", "JSONDecodeError: Expecting value"),
        ("half", "peer closed connection without sending complete message body"),
        ("silent", "the hub did not respond within 3 s; if the cache has it, set HF_HUB_OFFLINE=1"),
    ],
)
def test_a_hub_that_fails_gives_one_line(mode: str, says: str, tmp_path: Path) -> None:
    with serving(FILES) as hub:
        hub.mode = mode
        limits = ("3", "3") if mode == "silent" else LONG
        (refusal,) = ask(hub, tmp_path, "read=hf:org/name:main", limits=limits, HF_TOKEN=TOKEN)
        assert refusal[0].startswith("cannot get hf:org/name:main[train]: ") and says in refusal[0]


def test_before_a_job_is_queued_a_hub_out_of_reach_is_a_doubt_unless_the_job_has_no_network(tmp_path: Path) -> None:
    with serving(FILES) as hub:
        hub.mode = "silent"
        (doubt,) = ask(hub, tmp_path, "look=hf:org/name:main", limits=("2", "60"))
        assert doubt == "hf:org/name:main[train] was not checked: the hub did not respond within 2 s"
        (doubt,) = ask(hub, tmp_path, "look=hf:org/name:main", HF_ENDPOINT="http://127.0.0.1:9")
        assert isinstance(doubt, str) and "the hub does not respond" in doubt
        (refusal,) = ask(hub, tmp_path, "look=hf:org/name:main", HF_HUB_OFFLINE="1")
        assert "the cache lacks files of it" in refusal[0]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("hf:org/name", Named("org/name", "", "train")),
        ("hf:name[test]", Named("name", "", "test")),
        ("hf:org/name:main", Named("org/name", "main", "train")),
        ("hf:org/name:20231101.en[train]", Named("org/name", "20231101.en", "train")),
    ],
)
def test_a_name_has_a_configuration_and_a_split(source: str, named: Named) -> None:
    assert parse(source) == named and parse(str(named)) == named


NAMES = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/train.csv", "data/val.csv"]


def test_without_a_card_names_of_files_say_what_they_are() -> None:
    assert _by_name(Named("n", "", "train"), NAMES) == NAMES[:2], "rows in two formats are read once"
    assert _by_name(Named("n", "", "validation"), NAMES) == NAMES[3:]
    assert _by_name(Named("n", "de", "train"), ["en/a.jsonl", "de/a.jsonl"]) == ["de/a.jsonl"]


@pytest.mark.parametrize(
    ("named", "names", "says"),
    [
        (Named("n", "", "test"), NAMES, "no split 'test'; it has: train, validation"),
        (Named("n", "", "train"), ["en/a.jsonl", "de/a.jsonl"], "several configurations: name one; it has: de, en"),
        (Named("n", "fr", "train"), ["en/a.jsonl"], "no configuration 'fr'"),
        (Named("n", "test", "train"), ["a.jsonl"], r"for the split write hf:n\[test\]"),
    ],
)
def test_a_split_or_configuration_that_is_not_there_is_refused(named: Named, names: list[str], says: str) -> None:
    with pytest.raises(WorkerError, match=says):
        _by_name(named, names)


def test_a_card_of_another_shape_is_refused_or_has_no_files() -> None:
    odd: dict[str, Any] = {
        "a": {"data_files": {"split": 7, "path": [None, 3]}},
        "default": {"data_files": [["x"], "*.csv"]},
    }
    assert _by_card(odd, Named("n", "", "train"), ["x.csv", "y.txt"]) == ["x.csv"]
    with pytest.raises(WorkerError, match="no readable files 3, which its card names"):
        _by_card(odd, Named("n", "a", "7"), ["x.csv"])


def test_no_file_outside_of_the_repository_is_read() -> None:
    assert [name for name in ("../a.csv", "/a.csv", "b/../../a.csv", "b/a.csv") if hub_data._is_readable(name)] == [
        "b/a.csv"
    ]
