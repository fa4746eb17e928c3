"""A server on this machine that stands in for the Hugging Face Hub: data sets to read, in every way that can fail."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" * 6 + "beef"


class DatasetHub(ThreadingHTTPServer):
    """One data set, org/name, with these files. `mode`: good, gone, private, half, rubbish or silent."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files, self.mode, self.asked, self.tokens = dict(files), "good", list[str](), set[str]()
        self.closing = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def environ(self, home: Path, **more: str) -> dict[str, str]:
        """Return an environment in which the hub's client asks this server, with a cache of its own."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        limit = "2" if self.mode == "silent" else "60"
        given = {"HF_HUB_DOWNLOAD_TIMEOUT": limit, "HF_HUB_ETAG_TIMEOUT": limit, "HF_HUB_DISABLE_XET": "1"}
        return {**own, **given, "HF_ENDPOINT": self.url, "HF_HOME": str(home), **more}

    @property
    def downloaded(self) -> list[str]:
        """The names of the files that were sent, in the order of their names."""
        return sorted({path.partition(f"/resolve/{COMMIT}/")[2] for path in self.asked} - {""})


class _Answer(BaseHTTPRequestHandler):
    server: DatasetHub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        hub.tokens.add(self.headers.get("Authorization", ""))
        if path == "/":
            self._send(b"", body=body)
        elif hub.mode == "silent":
            hub.closing.wait(60)
        elif hub.mode == "gone":
            self._refuse(404, "RepoNotFound", "Repository not found")
        elif hub.mode == "private":
            self._refuse(401, "", f"Invalid credentials for {self.headers.get('Authorization')}")
        elif hub.mode == "rubbish":
            self._send(b"<html>captive portal</html>", body=body)
        elif path.startswith("/api/"):
            self._send(self._describe(path), body=body)
        else:
            self._send_file(path.partition(f"/resolve/{COMMIT}/")[2], body=body)

    def _describe(self, path: str) -> bytes:
        if "/tree/" not in path:
            return json.dumps({"id": "org/name", "sha": COMMIT, "siblings": []}).encode()
        rows = [
            {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}  # noqa: S324
            for name, data in self.server.files.items()
        ]
        return json.dumps(rows).encode()

    def _send_file(self, name: str, *, body: bool) -> None:
        data = self.server.files.get(name)
        if data is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        if body:
            self.server.asked.append(self.path)
        is_cut = self.server.mode == "half" and name != "README.md"
        self._send(data, body=body, cut=len(data) // 2 if is_cut else 0)

    def _send(self, data: bytes, *, body: bool, cut: int = 0) -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')  # noqa: S324
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) - cut])
            self.close_connection = True

    def _refuse(self, status: int, code: str, text: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", text)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[DatasetHub]:
    """Serve a data set with these files."""
    with DatasetHub(files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
