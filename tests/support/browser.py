"""A real browser without a window, spoken to over a pipe in Chrome's own protocol: no library, no port, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import HUNG

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
#: Events that tell of something that went wrong.
_COMPLAINTS = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
_KEYS = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


def find_browser() -> str | None:
    """Return the path of a Chromium, None without one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """A tab: what it shows, what it asked the network for, and what it complained about."""

    def __init__(self, send: Callable[..., dict[str, Any]], session: str, events: list[dict[str, Any]]) -> None:
        self._send, self._session, self._events = send, session, events
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._do(f"{domain}.enable")

    def _do(self, method: str, **params: Any) -> dict[str, Any]:
        return self._send(method, self._session, **params)

    def show(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Open a file in a window of this size."""
        self._events.clear()
        is_phone = width < 500
        size = {"width": width, "height": height, "deviceScaleFactor": 1 + is_phone, "mobile": is_phone}
        self._do("Emulation.setDeviceMetricsOverride", **size)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._do("Emulation.setEmulatedMedia", features=theme)
        self._do("Page.navigate", url=path.absolute().as_uri())
        self._send("", self._session, until="Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        return self._do("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                self._do("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key],
                         **(text if kind == "keyDown" else {}))  # fmt: skip

    def picture(self, path: Path) -> None:
        """Write a PNG of the whole page."""
        data = self._do("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    @property
    def complaints(self) -> list[str]:
        """What the console says."""
        return [json.dumps(event["params"]) for event in self._events if event["method"] in _COMPLAINTS]

    @property
    def requests(self) -> list[str]:
        """What was asked for, the page itself included."""
        asked = (event for event in self._events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """Start a browser, and yield a tab of it."""
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, 20) for one in (their_in, their_out)]  # neither is 3 or 4
    shell = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for one in (their_in, their_out, *high):
        os.close(one)
    events: list[dict[str, Any]] = []
    number, rest = 0, b""

    def read() -> dict[str, Any]:
        nonlocal rest
        end = time.monotonic() + HUNG
        while b"\0" not in rest:
            assert select.select([our_in], [], [], max(0, end - time.monotonic()))[0], "the browser does not answer"
            data = os.read(our_in, 1 << 20)
            assert data, "the browser has ended"
            rest += data
        message, rest = rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found

    def send(method: str, session: str = "", until: str = "", **params: Any) -> dict[str, Any]:
        """Call a method, or wait until an event has come."""
        nonlocal number
        if method:
            number += 1
            call = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
            os.write(our_out, json.dumps(call).encode() + b"\0")
        while not (until and any(event["method"] == until for event in events)):
            message = read()
            if "method" in message:
                events.append(message)
            elif message["id"] == number:
                assert "error" not in message, message
                return dict(message["result"])
        return {}

    try:
        target = send("Target.createTarget", url="about:blank")["targetId"]
        yield Page(send, send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"], events)
    finally:
        process.terminate()
        process.wait(HUNG)
        os.close(our_in)
        os.close(our_out)
