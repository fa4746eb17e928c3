"""``init``: inspect the cluster and write a commented clusterrun.toml, or write a commented job file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.settings import TASKS
from clusterrun.cli.common.session import Session, json_option
from clusterrun.config.files import find_root
from clusterrun.config.init_file import config_text
from clusterrun.config.new_job import SCRIPT, check_job_name, job_text
from clusterrun.config.survey import run_survey
from clusterrun.scheduler.slurm.scontrol import no_list
from clusterrun.system import shell
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--from", "origin", type=click.Choice([SCRIPT, *TASKS]),
    help="What the job file NAME runs: your own script (default), or a built-in task.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--print", "only_print", is_flag=True, help="Print the file; write nothing.")
@json_option
@click.pass_obj
def init(session: Session, name: str | None, origin: str | None, force: bool, only_print: bool, as_json: bool) -> None:
    """Inspect the cluster (partitions, GPUs, limits, accounts) and write a commented clusterrun.toml to the current
    folder. With NAME, write a commented job file, jobs/NAME.toml.

    \b
      clusterrun init
      clusterrun init --print
      clusterrun init pretrain                 a job that runs your script
      clusterrun init chat --from sft          a job that runs a built-in task
    """
    ui = Ui("init", as_json=as_json)
    if name is not None:
        job = check_job_name(name)
        path, text = find_root() / "jobs" / f"{job}.toml", job_text(job, origin or SCRIPT)
        then = f"Fill it in, check it with `clusterrun submit {job} --dry-run`, then run `clusterrun submit {job}`."
    elif origin is not None:
        raise RequestError("--from needs the NAME of a job file", hint="clusterrun init mine --from sft")
    else:
        path, text = _survey(session, ui, may_exist=force or only_print)
        then = (
            "Check it, then submit a script with `clusterrun submit -- SCRIPT`, or try the cluster with"
            " the demo job, `clusterrun submit lm`."
        )
    _refuse_existing(path, may_exist=force or only_print)
    if not only_print:
        _write(path, text, force=force)
    ui.data({"path": None if only_print else os.fspath(path), "text": text})
    if only_print:
        ui.say(text.rstrip("\n"))
    else:
        ui.say(f"Wrote {path}. {then}")


def _survey(session: Session, ui: Ui, *, may_exist: bool) -> tuple[Path, str]:
    """Return the path and the text of the project's file. Raises RequestError, SchedulerError."""
    cluster = session.cluster(ui.note)
    path = cluster.cwd / "clusterrun.toml"
    _refuse_existing(path, may_exist=may_exist)  # before Slurm is queried
    env = shell.query_environment(cluster.environ)

    def run(argv: Sequence[str]) -> shell.Completed:
        return shell.run(argv, env=env)

    facts = run_survey(run, cluster.user)
    if facts.slurm == "silent":
        raise no_list("partitions", facts.detail, "Slurm is not responding")
    return path, config_text(facts)


def _refuse_existing(path: Path, *, may_exist: bool) -> None:
    if os.path.lexists(path) and not may_exist:
        hint = "use --force to replace it, or --print to show what would be written"
        raise RequestError(f"{path.name} already exists", hint=hint)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a new file, or replace one; raises RequestError."""
    # no link is followed: in a shared folder it may lead to any of the user's files; nor is a FIFO's reader waited for
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_TRUNC if force else os.O_EXCL)
    try:
        path.parent.mkdir(exist_ok=True)
        with open(path, "w", encoding="utf-8", opener=lambda name, _: os.open(name, flags, 0o644)) as file:
            os.fchmod(file.fileno(), 0o644)  # a file that others may write is not trusted
            file.write(text)
    except OSError as error:
        hint = "cd to a folder that you can write to"
        raise RequestError(f"cannot write {path}: {error.strerror}", hint=hint) from error
