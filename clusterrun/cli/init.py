"""``init``: inspect the cluster and write a commented clusterrun.toml."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common.session import Session, json_option
from clusterrun.config.init_file import config_text
from clusterrun.config.survey import run_survey
from clusterrun.scheduler.slurm.scontrol import no_list
from clusterrun.system import shell
from clusterrun.terminal.ui import Ui


@click.command()
@click.option("--force", is_flag=True, help="Replace an existing clusterrun.toml.")
@click.option("--print", "only_print", is_flag=True, help="Print the file; write nothing.")
@json_option
@click.pass_obj
def init(session: Session, force: bool, only_print: bool, as_json: bool) -> None:
    """Inspect the cluster (partitions, GPUs, limits, accounts) and write a commented clusterrun.toml to the current
    folder.

    \b
      clusterrun init
      clusterrun init --print
    """
    ui = Ui("init", as_json=as_json)
    cluster = session.cluster(ui.note)
    path = cluster.cwd / "clusterrun.toml"
    if os.path.lexists(path) and not (force or only_print):
        raise RequestError(
            f"{path.name} already exists", hint="use --force to replace it, or --print to show what would be written"
        )
    env = shell.query_environment(cluster.environ)

    def run(argv: Sequence[str]) -> shell.Completed:
        return shell.run(argv, env=env)

    facts = run_survey(run, cluster.user)
    if facts.slurm == "silent":
        raise no_list("partitions", facts.detail, "Slurm is not responding")
    text = config_text(facts)
    if not only_print:
        try:
            # no link is followed: in a shared folder it may lead to any of the user's files
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if force else os.O_EXCL)
            with open(path, "w", encoding="utf-8", opener=lambda name, _: os.open(name, flags, 0o644)) as file:
                os.fchmod(file.fileno(), 0o644)  # a file that others may write is not trusted
                file.write(text)
        except OSError as error:
            raise RequestError(
                f"cannot write {path}: {error.strerror}", hint="cd to a folder that you can write to"
            ) from error
    ui.data({"path": None if only_print else os.fspath(path), "text": text})
    if only_print:
        ui.say(text.rstrip("\n"))
    else:
        ui.say(
            f"Wrote {path}. Check it, then submit a script with `clusterrun submit -- SCRIPT`, or try the cluster with"
            " the demo job, `clusterrun submit lm`."
        )
