"""``check``: measure nodes and links with a short job, or compare a run with its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from clusterrun.base.errors import ClusterrunError, NoSuchJob, RequestError
from clusterrun.base.units import plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_target
from clusterrun.cli.common.options import spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import run_to_end
from clusterrun.cluster import Cluster
from clusterrun.compare.check_report import COLUMNS, load_report, overall, rows
from clusterrun.compare.expected import check_run, has_started
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Check
from clusterrun.records.run_record import RunRecord
from clusterrun.run_folder.check_findings import DIFFERS
from clusterrun.submit.request import SubmitArgs
from clusterrun.terminal.ui import Ui

OPTIONS = frozenset({
    "scheduler", "nodes", "gpus-per-node", "tasks-per-node", "cpus-per-task", "mem", "time", "partition", "account",
    "qos", "constraint", "gres", "reservation", "exclude", "nodelist", "python", "env", "setup", "template",
    "sbatch-arg", "join-timeout",
})  # fmt: skip
#: A short job starts sooner. Ranks that do not start within the second time (seconds) are left out.
TIME_LIMIT, JOIN_TIMEOUT = "0:10:00", 90


def _check_options(command: Any) -> Any:
    return spec_options(command, OPTIONS)


@click.command()
@click.argument("job_ids", nargs=-1, metavar="[JOBID]", shell_complete=complete.jobs)
@_check_options
@json_option
@click.pass_context
def check(ctx: click.Context, /, job_ids: tuple[str, ...], profile: str | None, as_json: bool, **options: Any) -> None:
    """Check nodes and links with a short job, or check that a run got what it requested.

    \b
      clusterrun check --nodes 4 --gpus-per-node 8
      clusterrun check --nodes 2 --gpus-per-node 0            CPU and gloo
      clusterrun check 123                                    a run: processes, devices, precision, samples …

    Exit 0 if no problem is found, 1 otherwise. Ctrl-C cancels the check job.
    """
    ui = Ui("check", as_json=as_json)
    session: Session = ctx.obj
    typed = submit_args(None, (), profile, options)
    if len(job_ids) > 1 or (job_ids and (typed.flags or profile)):
        raise RequestError(
            "give either one job id or options for a new job", hint="clusterrun check --nodes 2 --gpus-per-node 4"
        )
    cluster = session.cluster(ui.note)
    if not job_ids:
        flags = {"time": Value(TIME_LIMIT, "check"), "join-timeout": Value(JOIN_TIMEOUT, "check"), **typed.flags}
        ctx.exit(_check_nodes(ui, cluster, SubmitArgs(flags=flags, profile=profile, work=Check())))
    target = find_target(cluster, *job_ids)
    if target.run is None:
        raise NoSuchJob(f"there is no clusterrun record of job {target.text}", hint=f"clusterrun why {target.text}")
    ctx.exit(_check_run(ui, target.run))


def _check_run(ui: Ui, run: RunRecord) -> int:
    """Print what differs from the request of a run, or the report of an earlier check; return the exit code."""
    if run.mine and not has_started(run) and (report := load_report(run)):
        return _print_report(ui, run, report)
    found = [finding._asdict() for finding in check_run(run)]
    wrong = any(finding["status"] == DIFFERS for finding in found)
    job = str(run.job_id) if run.job_id else None
    ui.data({"job_id": job, "run_id": run.run_id, "ok": not wrong, "findings": found})
    _print(ui, found)
    return int(wrong)


def _check_nodes(ui: Ui, cluster: Cluster, args: SubmitArgs) -> int:
    state = run_to_end(ui, cluster, args, "checks")
    run = state.record
    if run is not None and (report := load_report(run)):
        return _print_report(ui, run, report)
    job = state.status
    raise ClusterrunError(
        f"the check job {job.id} ended ({job.state}) without a report", hint=f"clusterrun why {job.id}"
    )


def _print_report(ui: Ui, run: RunRecord, report: dict[str, Any]) -> int:
    ui.data({"job_id": str(run.job_id), "run_id": run.run_id, **report})
    ui.table(COLUMNS, rows(report))
    ui.say(*filter(None, [overall(report)]))
    _print(ui, report["findings"])
    if report["ok"]:
        ui.say(f"no problems found on {plural(run.nodes, 'node')}")
    return 0 if report["ok"] else 1


def _print(ui: Ui, findings: Sequence[Mapping[str, Any]]) -> None:
    for one in findings:
        action = [f"do: {one['action']}"] if one["action"] else []
        ui.facts([(one["status"], [f"{one['check']}: {one['text']}", *action])])
