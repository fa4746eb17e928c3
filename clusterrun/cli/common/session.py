"""What all commands share: the ``--json`` option, and what click hands to each as ``ctx.obj``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # `--help` needs no Cluster
    from pathlib import Path

    from clusterrun.cli.common.link import Link
    from clusterrun.cluster import Cluster

AGENT = "CLUSTERRUN_AGENT"
"""Set in the environment of a command that a coding agent runs: see ``cli/common/agent.py``."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


class Session:
    """One call of the command line: the words after ``--``, and the only place that makes a Cluster.

    ``script`` is None if no ``--`` was typed. ``link`` is set if another machine sent the command (``--remote``).
    """

    def __init__(self, script: Sequence[str] | None = None, link: Link | None = None) -> None:
        self.script, self.link = script, link
        self.for_agent = AGENT in os.environ

    def cluster(
        self, notify: Callable[[str], None], *, polling: bool = False, cwd: Path | None = None
    ) -> Cluster:  # fmt: skip
        """Return a Cluster that sends notices to ``notify``. With ``polling`` it queries Slurm less often.

        ``cwd`` is the folder to submit from, by default the current one.
        """
        from clusterrun.cluster import Cluster

        return Cluster(cwd=cwd, notify=notify, polling=polling)

    def planner(self, notify: Callable[[str], None], *, submits: bool, cwd: Path | None = None) -> Cluster:
        """Return a Cluster for plans: unless it ``submits`` them, no file of the project chooses what is started here.

        For an agent's command requests are vetted, and its plans start nothing.
        """
        from clusterrun.cluster import Cluster
        from clusterrun.submit.job_python import Starts

        if not self.for_agent:
            return Cluster(cwd=cwd, notify=notify, starts=Starts.ANY if submits else Starts.OWN)
        from clusterrun.cli.common.agent import check_request

        return Cluster(cwd=cwd, notify=notify, starts=Starts.ANY if submits else Starts.NONE, vet=check_request)
