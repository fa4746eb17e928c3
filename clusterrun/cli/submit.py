"""``submit`` and ``render``: the same arguments, the same plan."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from clusterrun.cli.follow import follow_run, wait_to_end
from clusterrun.cli.options import asked, json_option, spec_options
from clusterrun.cluster import Cluster
from clusterrun.errors import RequestError
from clusterrun.job import LOCAL
from clusterrun.logs import log_paths
from clusterrun.records.run_record import RunRecord
from clusterrun.terminal.ui import Ui
from clusterrun.terminal.units import plural

MOMENT = 2.0
"""Seconds for which a repeated Ctrl-C is the same impatience as the first."""


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]")
@spec_options
@click.option("--follow", is_flag=True, help="Follow the logs to the end; exit with the job's outcome.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the job's outcome.")
@click.option("--dry-run", is_flag=True, help="Show what would be submitted; write and submit nothing.")
@click.option("--recover", metavar="RUN_ID", help="Settle a submission that was cut off (exit 75).")
@json_option
@click.pass_context
def submit(
    ctx: click.Context, /, words: tuple[str, ...], profile: str | None, follow: bool, wait: bool, dry_run: bool,
    recover: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Start a run: a job file, your own script, or the default job.

    \b
      clusterrun submit --nodes 2 --gpus-per-node 4                    the default job
      clusterrun submit sft --time 2:00:00                             jobs/sft.toml
      clusterrun submit --nodes 2 --gpus-per-node 4 -- train.py --lr 1e-4
      clusterrun submit --nodes 2 -- -m package.train --epochs 3
      clusterrun submit --gpus-per-node 0 --tasks-per-node 8 -- train.py     ranks without GPUs

    SCRIPT is a Python file, -m MODULE, or any executable; it runs once per GPU with torch's variables set.
    What you leave out is left to the cluster: no time limit, account or memory of ours.
    """
    ui = Ui("submit", as_json=as_json)
    if as_json and follow:
        raise RequestError("--json and --follow do not go together", hint="use --wait, or clusterrun logs afterwards")
    cluster = Cluster(tell=ui.note)
    if recover:
        run = cluster.recover(recover)
    else:
        job, script = job_and_script(words, ctx.obj)
        plan = cluster.plan(asked(job, script, profile, options))
        for notice in plan.notices:
            ui.note(notice)
        if dry_run:
            cluster.check(plan)
            ui.note(
                f"would submit {plan.record.what} as {plan.record.name} on {plan.record.scheduler}; nothing was written"
            )
            ui.data({"run_id": None, "script": plan.script})
            if not as_json:
                ui.raw(plan.script)
            return
        with _undisturbed(ui, plan.record.run_id) as interrupted:
            run = cluster.submit(plan)
            _announce(ui, run, data=not wait)
        if interrupted:
            raise KeyboardInterrupt
    if recover:
        _announce(ui, run, data=not wait)
    if follow:
        ctx.exit(follow_run(ui, cluster, run))
    if wait:
        ctx.exit(wait_to_end(ui, cluster, [run], one=True))


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]")
@spec_options
@click.option("--explain", is_flag=True, help="Say on standard error where each value came from.")
@json_option
@click.pass_context
def render(
    ctx: click.Context, /, words: tuple[str, ...], profile: str | None, explain: bool, as_json: bool, **options: Any
) -> None:
    """Print the sbatch script that submit would send, and nothing else; works where there is no Slurm.

    \b
      clusterrun render --nodes 2 --gpus-per-node 4 | less
      clusterrun render sft --explain >/dev/null
    """
    ui = Ui("render", as_json=as_json)
    cluster = Cluster(tell=ui.note)
    job, script = job_and_script(words, ctx.obj)
    request = asked(job, script, profile, options)
    plan = cluster.plan(request, named=False)
    for notice in plan.notices:
        ui.note(notice)
    sources = plan.record.sources
    if explain and not as_json:
        for name, (value, source) in sources.items():
            ui.note(f"{name} = {value!r}  ({source})")
    ui.data({"script": plan.script, "sources": {k: {"value": v, "source": s} for k, (v, s) in sources.items()}})
    if not as_json:
        ui.raw(plan.script)


def job_and_script(before: tuple[str, ...], after: list[str] | None) -> tuple[str | None, tuple[str, ...]]:
    """The job file's name and the words after ``--``; raises RequestError where they make no sense together."""
    if len(before) > 1:
        raise RequestError(
            f"more than one job: {' '.join(before)}",
            hint=f"a script comes after --: clusterrun submit -- {' '.join(before)}",
        )
    if after is not None and not after:
        raise RequestError("nothing comes after --", hint="clusterrun submit -- train.py")
    if before and before[0].endswith(".py"):
        raise RequestError(f"{before[0]} is a script, not a job file", hint=f"clusterrun submit -- {before[0]}")
    return (before[0] if before else None), tuple(after or ())


def _announce(ui: Ui, run: RunRecord, *, data: bool) -> None:
    job = run.job_id
    assert job is not None
    out, err = log_paths(run.logs, job)
    where = "on this machine" if run.scheduler == LOCAL else f"on {run.cluster}"
    ui.say(
        f"Submitted job {job} ({run.name}) {where}: {plural(run.world_size, 'rank')} on {plural(run.nodes, 'node')}",
        f"  logs    {out}",
        f"          {err}",
        f"  next    clusterrun logs {job} -f     clusterrun status {job}     clusterrun cancel {job}",
    )
    if not data:
        return  # --wait prints the one envelope, with the end in it
    ui.data({
        "job_id": str(job), "run_id": run.run_id, "cluster": run.cluster, "scheduler": run.scheduler, "name": run.name,
        "run_dir": str(run.run_dir), "logs": [str(out), str(err)],
    })  # fmt: skip


@contextmanager
def _undisturbed(ui: Ui, run_id: str) -> Iterator[list[float]]:
    """Put off Ctrl-C while a job is being made: half a submission is worse than a moment's wait.

    One that comes when the moment has become long leaves at once; what it leaves is settled by the next command.
    """
    pressed: list[float] = []

    def press(number: int, frame: object) -> None:
        pressed.append(time.monotonic())
        if pressed[-1] - pressed[0] > MOMENT:
            raise KeyboardInterrupt
        if len(pressed) == 1:
            ui.note("finishing the submission first; Ctrl-C in a moment leaves it")

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    except KeyboardInterrupt:
        ui.note(f"left in the middle: `clusterrun submit --recover {run_id}` settles it")
        raise
    finally:
        signal.signal(signal.SIGINT, before)
