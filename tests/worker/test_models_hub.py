"""Pushing to the hub, against a server here: it can fail in every way, yet never the run, and never tells the token."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.worker import hub
from clusterrun.worker.models.export import push_to_hub
from tests.support.model_hub import TOKEN, Hub
from tests.support.patience import HUNG


@pytest.fixture
def server() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.closing.set()
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "out"
    path.mkdir()
    for name in ("config.json", "clusterrun.json", "model.safetensors"):
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize("mode", ["good", "exists"])
def test_every_file_of_the_folder_arrives_with_the_token(mode: str, server: Hub, folder: Path) -> None:
    server.mode = mode
    assert push_to_hub(folder, "org/name", server.environ()) is None
    sent = sorted(line["value"]["path"] for line in server.commit if line["key"] == "file")
    assert sent == ["clusterrun.json", "config.json", "model.safetensors"]
    assert server.tokens == {f"Bearer {TOKEN}"}
    assert sorted(path.name for path in folder.iterdir()) == sent
    assert not any(TOKEN in path.read_text() for path in folder.iterdir())


def test_the_older_variable_gives_the_token_too(server: Hub, folder: Path) -> None:
    environ = server.environ(HF_TOKEN="", HUGGING_FACE_HUB_TOKEN=f"{TOKEN}\n")
    assert push_to_hub(folder, "org/name", environ) is None
    assert server.tokens == {f"Bearer {TOKEN}"}


def test_a_server_that_sends_the_token_back_does_not_get_it_into_the_message(
    server: Hub, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server.mode = "echo"
    failure = push_to_hub(folder, "org/name", server.environ())
    assert failure is not None and failure.startswith("not pushed to org/name: ") and "401" in failure
    assert f"Bearer {TOKEN}" in server.tokens
    assert "Secret0" not in failure and "\n" not in failure and str(folder) in failure
    assert capfd.readouterr() == ("", "")


def test_a_server_that_never_answers_is_left_after_the_time_limit(
    server: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.mode = "silent"
    monkeypatch.setattr(hub, "ANSWER_S", 6.0)
    failure = push_to_hub(folder, "org/name", server.environ())
    assert failure is not None and "the hub did not respond to the create request within 6 s" in failure


def test_an_upload_that_stalls_is_left_too(server: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "UPLOAD_S", 0.05)
    failure = push_to_hub(folder, "org/name", server.environ())
    assert failure is not None and "the hub did not respond to the upload request" in failure


@pytest.mark.parametrize(
    ("repo", "changes", "says"),
    [
        ("org/name", {"HF_TOKEN": ""}, "HF_TOKEN is not set"),
        ("org/name", {"HF_HUB_OFFLINE": "1"}, "offline"),
        ("org/name", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "refused"),
        ("not a name!", {}, "not a name!"),
        ("nul\0", {}, "null byte"),
    ],
)
def test_what_stands_in_the_way_is_a_sentence(
    repo: str, changes: dict[str, str], says: str, server: Hub, folder: Path
) -> None:
    failure = push_to_hub(folder, repo, server.environ(**changes))
    assert failure is not None and says in failure and str(folder) in failure and TOKEN not in failure
    assert server.asked == []


def test_the_files_beside_hub_py_are_not_taken_for_other_peoples_packages(
    server: Hub, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "huggingface_hub.py").write_text("import tasks")
    failure = push_to_hub(folder, "org/name", server.environ(PYTHONPATH=str(tmp_path)))
    assert failure is not None and "No module named 'tasks'" in failure


@pytest.mark.parametrize(
    ("mode", "offline", "answers"),
    [("good", False, True), ("silent", False, False), ("closed", False, False), ("good", True, False)],
)
def test_a_hub_is_asked_only_where_it_answers(
    mode: str, offline: bool, answers: bool, server: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.mode = mode
    monkeypatch.setattr(hub, "PROBE_S", 0.5 if mode == "silent" else HUNG)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    endpoint = "http://127.0.0.1:9" if mode == "closed" else server.url
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    assert hub.answers.__wrapped__() is answers


@given(st.text(alphabet="ab+/=_-.", min_size=4), st.text(), st.text())
def test_no_token_survives_scrubbing(token: str, before: str, after: str) -> None:
    for name in hub.TOKENS:
        assert token not in hub.scrub(f"{before}{token}\n{after}{token}", {name: f" {token}\n"}).replace("***", "")


def test_what_only_looks_like_a_token_is_scrubbed_as_well() -> None:
    assert re.findall("abcdef", hub.scrub("hf_abcdef and bearer  abcdef.gh", {})) == []
