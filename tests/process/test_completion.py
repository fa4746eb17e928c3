"""The completion script in a real bash."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.command_desk import Desk
from tests.support.patience import HUNG

CLUSTERRUN = str(Path(sys.executable).with_name("clusterrun"))


def test_bash_completes_with_the_script(desk: Desk) -> None:
    ask = f"""
    eval "$({shlex.quote(CLUSTERRUN)} completion bash)"
    compopt() {{ echo "compopt $*"; }}
    for COMP_LINE in "clusterrun tas" "clusterrun submit sft --set sched" "clusterrun submit sft --set schedule=li" \\
        "clusterrun submit -- tr" "clusterrun nonsense "
    do
        COMP_POINT=${{#COMP_LINE}} _clusterrun_completion {shlex.quote(CLUSTERRUN)}
        printf '%s ' "${{COMPREPLY[@]}}"; echo
    done
    """
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=HUNG)
    assert done.stderr == ""
    assert [line.rstrip() for line in done.stdout.splitlines()] == [
        "tasks", "compopt -o nospace", "schedule=", "linear", "compopt -o default", "", "",
    ]  # fmt: skip
