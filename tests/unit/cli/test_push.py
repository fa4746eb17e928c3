"""`push`: what is uploaded, what never is, and that it is said before; the hub is a server here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.records.store import Store
from tests.support.command_desk import Desk, refused
from tests.support.model_hub import TOKEN, Hub
from tests.support.run_records import submitted


@pytest.fixture
def model(desk: Desk) -> Path:
    """The finished model of job 101."""
    desk.slurm.answer("squeue")
    run = submitted(Store(desk.project, desk.state))
    folder = run.run_dir / "model"
    folder.mkdir(mode=0o755)
    (folder / "clusterrun.json").write_text(json.dumps({"run_id": run.run_id}))
    (folder / "model.safetensors").write_text("weights")
    return folder


@pytest.fixture
def hub(desk: Desk) -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        desk.set(HF_ENDPOINT=server.url, HF_TOKEN=TOKEN)
        yield server
        server.closing.set()
        server.shutdown()


def test_the_models_own_files_go_to_a_private_repository_with_the_token(desk: Desk, model: Path, hub: Hub) -> None:
    (model / "link.txt").symlink_to("/etc/passwd")
    (model / "deep").mkdir()
    (model / "deep" / "[1].txt").write_text("text")
    said = desk.type("push", "101", "org/name", "--yes")
    assert (said.status, said.out) == (0, f"Uploaded to {hub.url}/org/name\n"), said
    assert "not uploaded: link.txt: not a regular file" in said.err
    sent = sorted(line["value"]["path"] for line in hub.commit if line["key"] == "file")
    assert sent == ["clusterrun.json", "deep/[1].txt", "model.safetensors"]
    assert hub.created["visibility"] == "private" and hub.tokens == {f"Bearer {TOKEN}"}


def test_a_refusal_of_the_hub_is_one_line_without_the_token(desk: Desk, model: Path, hub: Hub) -> None:
    hub.mode = "echo"
    said = desk.type("push", "101", "org/name", "--yes")
    assert said.status == 1 and "not pushed to org/name: " in said.err and "401" in said.err
    assert "Secret0" not in said.err and len(said.err.splitlines()) == 2


def test_it_says_what_it_would_upload_and_asks(desk: Desk, model: Path) -> None:
    said = desk.type("push", "101", "org/name", "--dry-run")
    assert said.out.splitlines()[2:] == ["model.safetensors\t7"], said.out
    assert "would upload 2 files" in said.err and "(private if it is new); nothing was uploaded" in said.err
    assert "refusing to upload" in refused(desk, "push", "101", "org/name", calls=True)[0]


def test_what_cannot_be_pushed_is_refused(desk: Desk, model: Path) -> None:
    def words() -> str:
        return refused(desk, "push", "101", "org/name", "--yes", calls=True)[0]

    assert "is not of the form ORG/NAME" in refused(desk, "push", "101", "-", "--yes")[0]
    model.chmod(0o777)
    assert "other users have write access" in words()
    model.chmod(0o755)
    (model / "clusterrun.json").write_text('{"run_id": "another"}')
    assert "is another run's" in words()
    (model / "clusterrun.json").unlink()
    assert "job 101 has no model in" in words()
