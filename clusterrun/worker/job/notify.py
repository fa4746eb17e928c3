"""Send the events of a run to a webhook or a command. Standard library only.

The target comes from `notify.json` in the run's folder, not from the script: a webhook's address is a secret. Each
event is sent by a process of its own (`python notify.py` with a JSON document on stdin), for which the job does not
wait before its end, and whose failure is one line in the log.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "notify.json"
EVENTS = ("started", "first-step", "stalled", "restarted", "stopped", "failed", "done")
DEFAULT_EVENTS = ("stalled", "restarted", "stopped", "failed", "done")
ATTEMPTS, PAUSE_S, ANSWER_S = 3, 2.0, 5.0
LAST_S = 15.0  # that the end of the job waits for events that are still being sent


class Notifier:
    """Sends the events of this job that the user chose; without a `notify.json` it sends none."""

    def __init__(self) -> None:
        self._sending: list[subprocess.Popen[bytes]] = []
        self._facts: Mapping[str, str] = {}
        self._target = ""
        self._events: Sequence[str] = DEFAULT_EVENTS

    def load(self, run_dir: Path, facts: Mapping[str, str]) -> None:
        """Read the user's choice from the run's folder; `facts` are sent with each event. Raises nothing."""
        self._facts = facts
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            descriptor = os.open(run_dir / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                info = os.fstat(file.fileno())
                if stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid():  # a command of nobody else is run
                    settings = json.loads(file.read())
                    self._events = tuple(settings.get("on") or DEFAULT_EVENTS)
                    self._facts = {**facts, "name": str(settings["name"])}
                    self._target = str(settings["target"])

    def send(self, event: str, text: str) -> None:
        """Start sending an event, one of EVENTS; `text` is one line. Raises nothing."""
        if event not in self._events or not self._target:
            return
        document = {"target": self._target, "event": event, "text": text, "time": int(time.time())}
        with suppress(OSError):
            process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True)
            self._sending.append(process)
            assert process.stdin is not None
            with process.stdin as stdin:  # it fits into the pipe
                stdin.write(json.dumps({**self._facts, **document}).encode())

    def finish(self) -> None:
        """Wait a little for the events that are still being sent; what hangs is ended."""
        until = time.monotonic() + LAST_S
        for process in self._sending:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with the user's command


def send(document: Mapping[str, Any]) -> None:
    """Send one event; raises OSError, ValueError or subprocess.SubprocessError with a text that shows no secret."""
    target = str(document["target"])
    line = f"{document['name']} (job {document['job']}): {document['event']}: {document['text']}"
    facts = {key: value for key, value in document.items() if key != "target"}
    scheme = target.partition("://")[0]
    if scheme in ("http", "https"):
        host = urllib.parse.urlsplit(target).hostname or ""
        body = {"hooks.slack.com": {"text": line}, "discord.com": {"content": line}}.get(host, {**facts, "line": line})
        post(target, host, json.dumps(body).encode())
    elif target != scheme and " " not in scheme:
        through_apprise(target, line)
    else:
        environ = {f"CLUSTERRUN_{key.upper()}": str(value) for key, value in facts.items()}
        subprocess.run(
            [*shlex.split(target), line], check=True, env=os.environ | environ, stdin=subprocess.DEVNULL, timeout=60
        )


def post(url: str, host: str, body: bytes) -> None:
    """Post JSON to a webhook, again if its server fails; raises OSError naming the host only."""
    # not above: the supervisor of every job imports this module, and these would double its start
    import http.client
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "clusterrun"})  # noqa: S310
    for left in reversed(range(ATTEMPTS)):
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S):  # noqa: S310 - only http and https come here
                return
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise OSError(f"{host} answered {error.code} {error.reason}") from None
            reason = f"{host} answered {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = f"cannot reach {host}: {getattr(error, 'reason', None) or type(error).__name__}"
        if left:
            time.sleep(PAUSE_S)
    raise OSError(reason)


def through_apprise(target: str, line: str) -> None:
    """Send a line to one of apprise's services, such as ntfy:// or mailto://."""
    try:
        apprise = importlib.import_module("apprise")
    except ImportError:
        raise OSError(f"{target.partition(':')[0]}:// needs apprise: {sys.executable} -m pip install apprise") from None
    services = apprise.Apprise()
    if not services.add(target) or not services.notify(body=line):
        raise OSError(f"apprise could not send to the {target.partition(':')[0]}:// address")


def main() -> int:
    """Send the event on stdin."""
    try:
        document = json.loads(sys.stdin.buffer.read())
        send(document)
    except subprocess.CalledProcessError as error:
        print(f"clusterrun: notify: {error.cmd[0]} exited with status {error.returncode}", file=sys.stderr)
    except subprocess.TimeoutExpired as error:
        print(f"clusterrun: notify: {error.cmd[0]} did not finish within 60 s", file=sys.stderr)
    except OSError as error:  # without the file name, which may be a mistyped address
        print(f"clusterrun: notify: {error.strerror or error}", file=sys.stderr)
    except (ValueError, KeyError) as error:
        print(f"clusterrun: notify: {error}", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
