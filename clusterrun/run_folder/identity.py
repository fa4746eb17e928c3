"""The identity of a new run: its id, and the token of its first submission."""

from __future__ import annotations

import os
import re
import time
from base64 import b32encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

SUBMISSION = "CLUSTERRUN_SUBMISSION"
"""The identity that ``--remote`` chose for a submission, so that it can find the run after a lost connection."""


class Identity(NamedTuple):
    """A time in whole seconds since 1970, and 80 random bits as 16 letters and digits."""

    at: int
    token: str

    @property
    def run_id(self) -> str:
        """The run id, as ``20261121-034501-k3v7qa``."""
        return f"{datetime.fromtimestamp(self.at, UTC):%Y%m%d-%H%M%S}-{self.token[:6]}"

    def __str__(self) -> str:
        return f"{self.at}-{self.token}"


def new_identity() -> Identity:
    """Return the identity of a run that begins now."""
    return Identity(int(time.time()), new_token())


def find_identity(environ: Mapping[str, str]) -> Identity | None:
    """Return the identity in the environment, None if there is none."""
    match = re.fullmatch(r"([0-9]{1,11})-([a-z2-7]{16})", environ.get(SUBMISSION, ""), re.ASCII)
    return Identity(int(match[1]), match[2]) if match else None


def new_token() -> str:
    """Return a token for a submission: 80 random bits."""
    return b32encode(os.urandom(10)).decode().lower()
