"""The lines of `render --per-node-commands`, typed in two shells that stand for two nodes, start one group of ranks."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.cluster import Lab
from tests.support.installed_command import ALLREDUCE, Site


def test_the_lines_of_two_nodes_form_one_group(new_site: Callable[[Lab | None], Site]) -> None:
    site = new_site(None)
    shape = ("--nodes", "2", "--gpus-per-node", "0", "--tasks-per-node", "2", "--master-port", str(_free_port()))
    printed = site.cli("render", *shape, "--per-node-commands", "--", str(ALLREDUCE), "--steps", "2").stdout
    printed = printed.replace("ADDRESS_OF_NODE_0", "127.0.0.1")
    common, *nodes = re.split(r"# on node \d\n", printed)
    assert len(nodes) == 2
    shells = [_shell(common + lines, site) for lines in nodes]
    outputs = [shell.communicate(timeout=120)[0] for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0], outputs
    found = re.findall(r"rank (\d) of 4: sum 10 args \['--steps', '2'\]", "".join(outputs))
    assert sorted(found) == ["0", "1", "2", "3"], outputs


def _shell(lines: str, site: Site) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "-c", lines], env=site.env, cwd=Path("/"), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
