"""``diff``: show what differs between two jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import NoSuchJob, RequestError
from clusterrun.base.units import plural
from clusterrun.cli.common.names import find_ids
from clusterrun.cli.common.session import Session, json_option
from clusterrun.records import run_record
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.cluster import Cluster
    from clusterrun.compare import Change
    from clusterrun.compare.code import Codes
    from clusterrun.records.run_record import RunRecord

_MOST_ROWS = 200  # of a section
_WIDEST = 200  # characters of a value


@click.command()
@click.argument("job1")
@click.argument("job2")
@json_option
@click.pass_context
def diff(ctx: click.Context, job1: str, job2: str, as_json: bool) -> None:
    """Compare two jobs: options, code, environment and metrics.

    \b
      clusterrun diff 123 124
      clusterrun diff baseline last

    JOB1 and JOB2 are each a job id, a run id, a name or last. The code is compared if it was saved at submission; the
    environment is that of the last launch.
    """
    from clusterrun.compare.code import compare_code
    from clusterrun.compare.environment import compare_environments
    from clusterrun.compare.metrics import compare_metrics
    from clusterrun.compare.options import compare_options

    ui = Ui("diff", as_json=as_json)
    session: Session = ctx.obj
    cluster = session.cluster(ui.note)
    first, second = (_find_run(cluster, word) for word in find_ids(cluster, (job1, job2)))
    if first.run_id == second.run_id:
        raise RequestError(f"{job1} and {job2} are the same run", hint="`clusterrun list --all` shows your jobs")
    options, codes = compare_options(first, second), compare_code(first, second)
    environments, (metrics, unmeasured) = compare_environments(first, second), compare_metrics(first, second)
    ui.data({
        "runs": [{"job_id": str(run.job_id or "") or None, "run_id": run.run_id, "name": run.name}
                 for run in (first, second)],
        "options": [_json(one) for one in options],
        "code": {
            "same": codes.same,
            "snapshots": [one and one.to_json() for one in (codes.first, codes.second)],
            "deleted": [run.run_id for run in codes.gone],
            "files": list(codes.files),
            "diff": "\n".join(codes.diff),
        },
        "environment": [_json(one) for one in environments.changes],
        "metrics": [_json(one) for one in metrics],
    })  # fmt: skip
    ui.say(f"first        {_name(first)}", f"second       {_name(second)}")
    _section(ui, "options", options)
    ui.say(*_code_lines(codes, first, second))
    _section(ui, "environment", environments.changes, "; ".join(map(_why_no_environment, environments.missing)))
    for run in environments.mixed:
        ui.say(f"             the nodes of {_name(run)} do not all have the same packages")
    _section(ui, "metrics", metrics, "none recorded" if len(unmeasured) == 2 else "")
    ui.say(*codes.diff)


def _find_run(cluster: Cluster, word: str) -> RunRecord:
    run = cluster.run(word)
    if run is None:
        cluster.status([word])  # raises NoSuchJob for a job that nobody knows
        raise NoSuchJob(f"job {word} was not submitted by clusterrun", hint="only clusterrun's jobs can be compared")
    return run


def _section(ui: Ui, name: str, changes: Sequence[Change], nothing: str = "") -> None:
    """Print the values of a section that differ, or one line."""
    if not changes:
        ui.say(f"{name:<11}  {nothing or 'same'}")
        return
    width = max(len(one.name) for one in changes[:_MOST_ROWS])
    for number, one in enumerate(changes[:_MOST_ROWS]):
        values = f"{_value(one.first, one.sources[0])} -> {_value(one.second, one.sources[1])}"
        ui.say(f"{name if not number else '':<11}  {one.name:<{width}}  {values}")
    if len(changes) > _MOST_ROWS:
        ui.say(f"{'':<11}  and {len(changes) - _MOST_ROWS} more")


def _code_lines(codes: Codes, first: RunRecord, second: RunRecord) -> list[str]:
    one, other = codes.first, codes.second
    if one is None and other is None:
        return ["code         not saved"]
    if codes.same and one:
        return [f"code         same: {one.line}"]
    lines = [f"code         {one.line if one else 'not saved'} -> {other.line if other else 'not saved'}"]
    if codes.gone:
        lines.append(f"             the saved code of {' and '.join(map(_name, codes.gone))} cannot be read (deleted?)")
        if one and other and one.commit and other.commit and one.commit != other.commit:
            lines.append(f"             git -C {other.root} diff {one.commit[:12]} {other.commit[:12]}")
    elif one and other:
        number = len(codes.files)
        lines.append(f"             {plural(number, 'file')} differ{'s' * (number == 1)}; the diff is below")
    return lines


def _why_no_environment(run: RunRecord) -> str:
    return f"{_name(run)} {'recorded none' if run_record.attempts(run) else 'has not started'}"


def _name(run: RunRecord) -> str:
    return f"job {run.job_id} ({run.name})" if run.job_id is not None else f"run {run.run_id} ({run.name})"


def _value(value: Any, source: str) -> str:
    if value is None:
        return "none"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    text = text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
    return f"{text} ({source})" if source else text


def _json(change: Change) -> dict[str, Any]:
    return {
        "name": change.name,
        "values": [change.first, change.second],
        "sources": [source or None for source in change.sources],
    }
