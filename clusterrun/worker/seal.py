"""What our ranks say over the run's store, sealed: the store itself answers anyone who reaches its port."""

from __future__ import annotations

import hashlib
import hmac


class Seal:
    """Signs values with a key made of the run's token and the launch's secret.

    The secret is known to the job's own processes only, so a value that `open` accepts was written by one of them,
    under that key of the store and in this launch. Nothing is encrypted.
    """

    def __init__(self, secret: str) -> None:
        self._key = hashlib.sha256(b"clusterrun " + secret.encode("utf-8", "surrogateescape")).digest()
        self.prefix = self._sign(b"prefix")[:32]  # where our keys stand in the store; not to be guessed

    def close(self, name: str, text: str) -> str:
        """Seal the text for the key `name`."""
        return self._sign(f"{name}\0{text}".encode()) + text

    def open(self, name: str, sealed: bytes) -> str | None:
        """The text that was sealed for the key `name`; None for anything else."""
        signature, text = sealed[:64], sealed[64:]
        if not hmac.compare_digest(signature, self._sign(name.encode() + b"\0" + text).encode()):
            return None
        return text.decode()

    def _sign(self, data: bytes) -> str:
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()
