"""Events of a run reach a webhook or a command, and nothing that a target does hurts the job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from clusterrun.worker.job import notify
from clusterrun.worker.job.notify import Notifier
from tests.support.patience import HUNG

FACTS = {"run_id": "20261123-120000-abcdef", "job": "12"}


class Webhook:
    """A server on loopback that keeps what it gets, and answers with these statuses, the last one again."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.statuses = [200]
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.got.append(json.loads(body))
                self.send_response(webhook.statuses.pop(0) if len(webhook.statuses) > 1 else webhook.statuses[0])
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/secret-path"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    one = Webhook()
    yield one
    one.server.shutdown()
    one.server.server_close()


def notifier(folder: Path, **settings: object) -> Notifier:
    (folder / "notify.json").write_text(json.dumps({"name": "lm", **settings}))
    return load(folder)


def load(folder: Path) -> Notifier:
    loaded = Notifier()
    loaded.load(folder, FACTS)
    return loaded


def test_chosen_events_reach_a_webhook_with_the_facts_of_the_run(
    webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LAST_S", HUNG)
    events = notifier(tmp_path, target=webhook.url, on=["failed", "done"])
    events.send("started", "4 ranks")
    events.send("failed", "rank 3 on node2: ValueError: x")
    events.finish()
    (got,) = webhook.got
    assert {**FACTS, "name": "lm", "event": "failed", "text": "rank 3 on node2: ValueError: x"}.items() <= got.items()
    assert got["line"] == "lm (job 12): failed: rank 3 on node2: ValueError: x" and "target" not in got


@pytest.mark.parametrize(("host", "key"), [("hooks.slack.com", "text"), ("discord.com", "content")])
def test_chat_services_get_the_line_under_their_own_key(host: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(notify, "post", lambda url, host, body: sent.append(body))
    notify.send({**FACTS, "name": "lm", "target": f"https://{host}/x", "event": "done", "text": "after 2 h"})
    assert json.loads(sent[0]) == {key: "lm (job 12): done: after 2 h"}


def test_command_gets_the_line_and_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LAST_S", HUNG)
    script = tmp_path / "tell.sh"
    script.write_text(f'#!/bin/sh\necho "$1|$2|$CLUSTERRUN_EVENT|$CLUSTERRUN_JOB" > {tmp_path}/got\n')
    script.chmod(0o755)
    events = notifier(tmp_path, target=f"{script} --to=me")
    events.send("done", "after 2 h; $(touch /tmp/x)")
    events.finish()
    assert (tmp_path / "got").read_text() == "--to=me|lm (job 12): done: after 2 h; $(touch /tmp/x)|done|12\n"


def test_server_that_fails_is_tried_again_and_one_that_refuses_is_not(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PAUSE_S", 0.01)
    document = {**FACTS, "name": "lm", "target": webhook.url, "event": "done", "text": ""}
    webhook.statuses = [503, 429, 200]
    notify.send(document)
    assert len(webhook.got) == 3
    webhook.statuses = [404]
    with pytest.raises(OSError, match=r"127\.0\.0\.1 answered 404"):
        notify.send(document)
    assert len(webhook.got) == 4


def test_failure_is_one_line_without_the_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for target, text in (
        (f"http://127.0.0.1:{port}/secret-path", "cannot reach 127.0.0.1: "),
        ("/nowhere/tell.sh", "No such file"),
        ("false", "false exited with status 1"),
        ("ntfy://secret-path", "needs apprise"),
        ("http://[secret-path", "Invalid IPv6 URL"),
    ):
        document = json.dumps({**FACTS, "name": "lm", "target": target, "event": "done", "text": ""})
        done = subprocess.run(
            [sys.executable, notify.__file__], input=document, capture_output=True, text=True, timeout=HUNG
        )
        assert done.returncode == 1 and text in done.stderr, (target, done.stderr)
        assert len(done.stderr.splitlines()) == 1 and "secret-path" not in done.stderr


def test_target_that_hangs_does_not_keep_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LAST_S", 0.5)
    monkeypatch.setattr(notify, "ANSWER_S", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        events = notifier(tmp_path, target=f"http://127.0.0.1:{silent.getsockname()[1]}/")
        begun = time.monotonic()
        events.send("done", "")
        events.finish()
    assert time.monotonic() - begun < HUNG


def test_without_a_valid_file_nothing_is_sent(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    target = json.dumps({"name": "lm", "target": f"touch {ran}"})
    for content in (None, "", "[]", "{", "7", target.replace("target", "other")):
        if content is not None:
            (tmp_path / "notify.json").write_text(content)
        events = load(tmp_path)
        events.send("done", "")
        events.finish()
    (tmp_path / "notify.json").unlink()
    (tmp_path / "elsewhere").write_text(target)
    (tmp_path / "notify.json").symlink_to(tmp_path / "elsewhere")
    events = load(tmp_path)
    events.send("done", "")
    events.finish()
    assert not ran.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_command_in_a_file_of_another_user_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "notify.json").write_text(json.dumps({"name": "lm", "target": f"touch {tmp_path}/ran"}))
    os.chown(tmp_path / "notify.json", 12345, 12345)
    events = load(tmp_path)
    events.send("done", "")
    events.finish()
    assert not (tmp_path / "ran").exists()
