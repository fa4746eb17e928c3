"""What all commands share: the ``--json`` option, and what click hands to each as ``ctx.obj``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # `--help` needs no Cluster
    from pathlib import Path

    from clusterrun.cli.link import Link
    from clusterrun.cluster import Cluster

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


class Session:
    """One call of the command line: the words after ``--``, and the only place that makes a Cluster.

    ``script`` is None if no ``--`` was typed. ``link`` is set if another machine sent the command (``--remote``).
    """

    def __init__(self, script: Sequence[str] | None = None, link: Link | None = None) -> None:
        self.script, self.link = script, link

    def cluster(
        self, notify: Callable[[str], None], *, polling: bool = False, cwd: Path | None = None
    ) -> Cluster:  # fmt: skip
        """Return a Cluster that sends notices to ``notify``. With ``polling`` it queries Slurm less often.

        ``cwd`` is the folder to submit from, by default the current one.
        """
        from clusterrun.cluster import Cluster

        return Cluster(cwd=cwd, notify=notify, polling=polling)
