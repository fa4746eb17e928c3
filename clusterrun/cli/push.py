"""``push``: upload the finished model of a run to the Hugging Face Hub."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import click

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.units import format_bytes, plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_target, require_run
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.show import confirm
from clusterrun.records.exported import Model, find_model
from clusterrun.system import shell
from clusterrun.terminal.tables import Column
from clusterrun.terminal.ui import Ui

HUB = Path(__file__).parents[1] / "worker" / "hub.py"
COLUMNS = (Column("FILE"), Column("BYTES", right=True))
_LEAST_S, _RATE = 300.0, 1e6  # seconds for the upload's requests, and bytes per second


@click.command()
@click.argument("job_id", metavar="JOBID", shell_complete=complete.jobs)
@click.argument("repository", metavar="ORG/NAME")
@click.option("--public", is_flag=True, help="Make a new repository that everyone can read; by default it is private.")
@click.option("--dry-run", is_flag=True, help="Show what would be uploaded; upload nothing.")
@click.option("--yes", is_flag=True, help="Upload without asking.")
@json_option
@click.pass_obj
def push(
    session: Session, job_id: str, repository: str, public: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:  # fmt: skip
    """Upload the finished model of a run to the Hugging Face Hub, from this machine.

    \b
      clusterrun push 5 org/name --dry-run
      clusterrun push last org/name

    The token is that of HF_TOKEN, else of `hf login`. A new repository is private unless --public is given; an existing
    one keeps what it is. Links, and files of others, are not uploaded.
    """
    ui = Ui("push", as_json=as_json)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repository, re.ASCII):
        raise RequestError(f"{repository[:80]!r} is not of the form ORG/NAME", hint="clusterrun push last me/my-model")
    cluster = session.cluster(ui.note)
    run = require_run(cluster, find_target(cluster, job_id), "only clusterrun's jobs have a model")
    model = find_model(run, job_id)
    for line in model.left_out:
        ui.note(f"not uploaded: {line}")
    rows = [[name, f"{size:,}"] for name, size in sorted(model.sizes.items())]
    answer = {"repository": repository, "public": public, "folder": str(model.folder), "files": model.sizes}
    if dry_run:
        ui.data({**answer, "url": None})
        ui.table(COLUMNS, rows)
        ui.note(f"would upload {_what(model, repository, public=public)}; nothing was uploaded")
    elif yes or confirm(ui, "upload", _what(model, repository, public=public), COLUMNS, rows):
        url = _upload(ui, model, repository, public=public)
        ui.data({**answer, "url": url})
        ui.say(f"Uploaded to {url}")


def _what(model: Model, repository: str, *, public: bool) -> str:
    size = format_bytes(sum(model.sizes.values()))
    kind = "public" if public else "private"
    return f"{plural(len(model.sizes), 'file')} ({size}) to {repository} ({kind} if it is new)"


def _upload(ui: Ui, model: Model, repository: str, *, public: bool) -> str:
    """Upload the files and return the model's address; raises ClusterrunError with the hub's words."""
    words = ["push", repository, str(model.folder), "public" if public else "private"]
    limit = _LEAST_S + sum(model.sizes.values()) / _RATE
    clean, _ = shell.scrub(os.environ)
    env = {**clean, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    names = json.dumps(sorted(model.sizes))
    with ui.working(f"uploading to {repository}"):
        done = shell.run([sys.executable, str(HUB), *words], env=env, timeout=limit, cwd=Path("/"), stdin=names)
    if done.status != 0:
        said = (done.stdout.strip() or done.stderr.strip()).splitlines()
        reason = said[-1] if said else f"exit status {done.status}"
        hint = "check the name and the token (HF_TOKEN, or `hf login`)"
        raise ClusterrunError(f"not pushed to {repository}: {reason}", hint=hint)
    return done.stdout.strip()
