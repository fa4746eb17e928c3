"""A server on this machine that stands in for the Hugging Face Hub: models are pushed to it."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "Secret0" * 5


class Hub(ThreadingHTTPServer):
    """As much of the hub as a push of small files needs; `mode` is "good", "exists", "echo" or "silent"."""

    daemon_threads = True
    mode = "good"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.created: dict[str, Any] = {}
        self.commit: list[dict[str, Any]] = []
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def environ(self, **more: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        return {**own, "HF_ENDPOINT": self.url, "HF_TOKEN": TOKEN, **more}


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(404 if self.server.mode == "echo" else 200, {"error": f"for {dict(self.headers)}"})

    def do_HEAD(self) -> None:
        if self.server.mode == "silent":
            self.server.closing.wait(60)
        self.answer(405, {})

    def do_POST(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        server.asked.append(self.path)
        server.tokens.add(self.headers.get("Authorization", ""))
        if server.mode == "silent":
            server.closing.wait(60)
        elif server.mode == "echo":
            self.answer(401, {"error": f"you sent {dict(self.headers)}, {server.tokens}, again {TOKEN}{TOKEN}"})
        elif self.path == "/api/repos/create":
            server.created = json.loads(body)
            self.answer(409 if server.mode == "exists" else 200, {"url": f"{server.url}/org/name"})
        elif self.path.endswith("/preupload/main"):
            named = [file["path"] for file in json.loads(body)["files"]]
            self.answer(200, {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in named]})
        else:
            server.commit = [json.loads(line) for line in body.splitlines()]
            self.answer(200, {"commitUrl": f"{server.url}/org/name/commit/1", "commitOid": "1", "success": True})

    def answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
