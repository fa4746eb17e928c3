"""Push a finished model to the Hugging Face Hub in a separate process, so that it cannot block the run.

The hub's client waits without limit for an answer and for as long as a server asks; a process can be ended.
This file is also that process: `python hub.py create REPO` and `python hub.py upload REPO FOLDER`; for
`clusterrun push`, `python hub.py push REPO FOLDER public|private`, with the names of the files on standard input.
"""

from __future__ import annotations

import functools
import glob
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
PROBE_S = 10.0
ANSWER_S = 60.0  # to load the client (perhaps from a slow file system), to connect, and to get an answer
UPLOAD_S = 300.0  # for the upload's own requests …
UPLOAD_RATE = 1e6  # … and for its content, bytes per second
LONGEST = 300
SECRETS = re.compile(r"(?i:\bbearer\s+\S+)|\bhf_\w{4,}")


def push_to_hub(folder: Path, repo: str, environ: Mapping[str, str]) -> str | None:
    """Upload the folder as the model `repo` ("org/name", created if missing); return None, or why it failed.

    The token comes from HF_TOKEN or HUGGING_FACE_HUB_TOKEN in `environ`, and is in no message. Never raises for what
    the network or the hub does. Blocks for a minute at most while the hub does not respond, then for the upload.
    """
    if not has_token(environ):
        return f"not pushed to {repo}: {TOKENS[0]} is not set in the job's environment; the model is in {folder}"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    failure = _step(["create", repo], ANSWER_S, environ)
    if failure is None:
        failure = _step(["upload", repo, str(folder)], UPLOAD_S + size / UPLOAD_RATE, environ)
    return None if failure is None else f"not pushed to {repo}: {failure}; the model is in {folder}"


@functools.cache
def answers() -> bool:
    """Return whether the hub is reachable (False under HF_HUB_OFFLINE); takes 10 s at most, once per process.

    The client itself may wait for ever behind a firewall that drops what it sends.
    """
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=PROBE_S):
            return True
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError, http.client.HTTPException) as error:
        # the client has its own certificates, and reports its own errors
        return isinstance(getattr(error, "reason", None), ssl.SSLError)


def has_token(environ: Mapping[str, str]) -> bool:
    """Return whether a variable of the hub's token is set."""
    return bool(_token(environ))


def scrub(text: str, environ: Mapping[str, str]) -> str:
    """Remove the tokens of `environ`, and whatever looks like one, from a text."""
    for name in TOKENS:
        if environ.get(name, "").strip():
            text = text.replace(environ[name].strip(), "***")
    return SECRETS.sub("***", text)


def _token(environ: Mapping[str, str]) -> str:
    return next((environ[name].strip() for name in TOKENS if environ.get(name, "").strip()), "")


def _step(arguments: list[str], limit: float, environ: Mapping[str, str]) -> str | None:
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    try:
        done = subprocess.run(
            [sys.executable, __file__, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**environ, **quiet},
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the hub did not respond to the {arguments[0]} request within {limit:.0f} s"
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        return scrub(str(error), environ)
    if done.returncode == 0:
        return None
    said = done.stdout if done.stdout.strip() else done.stderr
    text = " ".join(scrub(said, environ).split())[:LONGEST]
    return text or f"the {arguments[0]} request failed with exit status {done.returncode}"


def _main(action: str, repo: str, folder: str = "", visibility: str = "") -> int:
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder: its modules could shadow packages
    try:
        from huggingface_hub import HfApi

        client = HfApi(token=_token(os.environ) or None)  # else that of the user's login
        if action == "create":
            client.create_repo(repo, exist_ok=True)
        elif action == "push":
            names = list(map(glob.escape, json.load(sys.stdin)))
            client.create_repo(repo, exist_ok=True, private=visibility != "public")
            client.upload_folder(repo_id=repo, folder_path=folder, allow_patterns=names, commit_message="Upload model")
            print(f"{client.endpoint}/{repo}")
        else:
            client.upload_folder(repo_id=repo, folder_path=folder, commit_message="Upload model")
    except Exception as error:
        print(" ".join(scrub(f"{type(error).__name__}: {error}", os.environ).split()))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
