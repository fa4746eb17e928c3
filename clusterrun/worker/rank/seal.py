"""Signatures for what our ranks post on the run's store, which anyone who reaches its port can write to."""

from __future__ import annotations

import hashlib
import hmac


class Seal:
    """Signs values with a key derived from the run's token and the launch's secret.

    Only the job's processes know the secret, so a value that `open` accepts was written by one of them, for that key
    of the store and in this launch. Nothing is encrypted.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"clusterrun " + secret.encode("utf-8", "surrogateescape")).digest()
        self.prefix = self._sign(b"prefix")[:32]  # of our keys in the store; cannot be guessed

    def close(self, name: str, text: str) -> str:
        """Return the signed text for the key `name`."""
        return self._sign(f"{name}\0{text}".encode()) + text

    def open(self, name: str, sealed: bytes) -> str | None:
        """Return the text if it was signed for the key `name`, else None."""
        signature, text = sealed[:64], sealed[64:]
        if not hmac.compare_digest(signature, self._sign(name.encode() + b"\0" + text).encode()):
            return None
        return text.decode()

    def _sign(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()
