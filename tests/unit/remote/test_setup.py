"""Which of the steps of `remote setup` failed, and what to try."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import SchedulerError
from clusterrun.remote.setup import install
from clusterrun.system.shell import Completed


class Host:
    """A host on which the commands that contain ``broken`` fail."""

    name = "h"

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def run(self, command: str, **more: object) -> Completed:
        if self.broken in command:
            return Completed(1, "", "it failed")
        return Completed(0, "/usr/bin/python3\n", "")


@pytest.mark.parametrize(("broken", "what", "network"), [
    ("mkdir -p", "create the folder", False),
    ("base64 -d", "copy clusterrun-", False),
    ("-m venv", "create a virtual environment", False),
    ("-m pip install", "install clusterrun", True),
])  # fmt: skip
def test_only_pip_needs_the_network(broken: str, what: str, network: bool) -> None:
    with pytest.raises(SchedulerError, match=f"^cannot {what}.* on h$") as caught:
        list(install(Host(broken), "python3", None, lambda text: None))
    assert caught.value.detail == "it failed"
    assert ("--wheels" in caught.value.hint) == network
