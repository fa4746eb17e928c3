"""``check``: measure nodes and links with a short job, or compare a run with what was requested."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from clusterrun.check.cluster import COLUMNS, report
from clusterrun.check.judging import DIFFERS, Finding
from clusterrun.check.results import FINISHED, load_attempt
from clusterrun.check.run import check_run
from clusterrun.cli.options import spec_options, submit_args
from clusterrun.cli.session import Session, json_option
from clusterrun.cli.submit import interrupt_deferred
from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.records.run_record import RunRecord
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.ui import Ui
from clusterrun.terminal.units import plural

OPTIONS = frozenset({
    "scheduler", "nodes", "gpus-per-node", "tasks-per-node", "cpus-per-task", "mem", "time", "partition", "account",
    "qos", "constraint", "gres", "reservation", "exclude", "nodelist", "python", "env", "setup", "template",
    "sbatch-arg", "join-timeout",
})  # fmt: skip
#: A short job starts sooner. Ranks that do not start within the second time (seconds) are left out.
TIME_LIMIT, JOIN_TIMEOUT = "0:10:00", 90
PATIENCE = 60.0
"""Seconds after the first rank has ended until the job is cancelled: the others hang."""
READ_EVERY = 3.0


def _check_options(command: Any) -> Any:
    return spec_options(command, OPTIONS)


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]")
@_check_options
@json_option
@click.pass_context
def check(ctx: click.Context, /, job_ids: tuple[str, ...], profile: str | None, as_json: bool, **options: Any) -> None:
    """Measure nodes and links with a short job, or compare a run with what was requested.

    \b
      clusterrun check --nodes 4 --gpus-per-node 8
      clusterrun check --nodes 2 --gpus-per-node 0            CPU and gloo
      clusterrun check 123                                    a run: processes, devices, precision, samples …

    Exit 0 if nothing is wrong, 1 if something is. Ctrl-C cancels the job.
    """
    ui = Ui("check", as_json=as_json)
    session: Session = ctx.obj
    typed = submit_args(None, (), profile, options)
    if len(job_ids) > 1 or (job_ids and (typed.flags or profile)):
        raise RequestError(
            "give one job id, or options for a new job, not both", hint="clusterrun check --nodes 2 --gpus-per-node 4"
        )
    cluster = session.cluster(ui.note)
    if job_ids:
        ctx.exit(_check_run(ui, cluster, job_ids[0]))
    flags = {"time": Value(TIME_LIMIT, "check"), "join-timeout": Value(JOIN_TIMEOUT, "check"), **typed.flags}
    from clusterrun.submit.request import SubmitArgs

    ctx.exit(_check_nodes(ui, cluster, SubmitArgs(flags=flags, profile=profile, check=True)))


def _check_run(ui: Ui, cluster: Cluster, job_id: str) -> int:
    run = cluster.run(job_id)
    if run is None:
        raise NoSuchJob(f"no records of job {job_id}", hint=f"clusterrun why {job_id}")
    if run.mine and load_attempt(run):  # the job of an earlier check
        (state,) = cluster.states([run])
        return _print_report(ui, run, state)
    findings = check_run(run)
    wrong = sum(finding.status == DIFFERS for finding in findings)
    ui.data({
        "job_id": str(run.job_id) if run.job_id else None, "run_id": run.run_id, "ok": not wrong,
        "findings": [finding.json() for finding in findings],
    })  # fmt: skip
    _print(ui, findings)
    return 1 if wrong else 0


def _check_nodes(ui: Ui, cluster: Cluster, args: Any) -> int:
    plan = cluster.plan(args)
    for notice in plan.notices:
        ui.note(notice)
    with interrupt_deferred(ui, plan.record.run_id) as interrupted:
        run = cluster.submit(plan)
    try:
        if interrupted:
            raise KeyboardInterrupt
        what = f"{plural(run.nodes, 'node')} with {plural(run.world_size, 'rank')}"
        ui.note(f"job {run.job_id} checks {what}; Ctrl-C cancels it")
        (state,) = cluster.wait([run], sleep=Patience(run).sleep)
    except RanksHangError:
        ui.note(f"some ranks did not end; cancelling job {run.job_id}")
        _cancel(ui, cluster, run)
        (state,) = cluster.states([run])
    except KeyboardInterrupt:
        _cancel(ui, cluster, run)
        raise
    return _print_report(ui, run, state)


class RanksHangError(Exception):
    """Some ranks of the check have ended long ago, others not."""


class Patience:
    """The pauses of waiting for a check; ``sleep`` raises RanksHangError once ranks hang."""

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self._first_end: float | None = None
        self._read = 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep, and read from time to time how far the ranks are."""
        time.sleep(seconds)
        now = time.monotonic()
        if now - self._read < READ_EVERY:
            return
        self._read = now
        if self._first_end is None and any(rank.stage == FINISHED for rank in load_attempt(self._run)):
            self._first_end = now
        if self._first_end is not None and now - self._first_end > PATIENCE:
            raise RanksHangError


def _cancel(ui: Ui, cluster: Cluster, run: RunRecord) -> None:
    results = cluster.cancel(cluster.states([run]))
    done = all(result.done for _, result in results)
    ui.note(f"cancelled job {run.job_id}" if done else f"not cancelled; run `clusterrun cancel {run.job_id}`")


def _print_report(ui: Ui, run: RunRecord, state: RunState) -> int:
    found = report(run, state)
    ui.data({"job_id": str(run.job_id), "run_id": run.run_id, **found.json()})
    ui.table(COLUMNS, found.rows)
    ui.say(*filter(None, [found.overall()]))
    _print(ui, found.findings)
    if found.ok:
        ui.say(f"no problem found on {plural(run.nodes, 'node')}")
    return 0 if found.ok else 1


def _print(ui: Ui, findings: Sequence[Finding]) -> None:
    for one in findings:
        ui.facts([(one.status, [f"{one.check}: {one.text}", *([f"do: {one.action}"] if one.action else [])])])
