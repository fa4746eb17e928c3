"""``diff``: show what differs between two jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural
from clusterrun.cli.common import complete
from clusterrun.cli.common.names import find_targets, require_run
from clusterrun.cli.common.session import Session, json_option
from clusterrun.records import run_record
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.compare import Change
    from clusterrun.records.code_store import Snapshot
    from clusterrun.records.run_record import RunRecord

_MOST_ROWS = 200  # of a section
_WIDEST = 200  # characters of a value
_ONLY_OURS = "only clusterrun's jobs can be compared"


@click.command()
@click.argument("job1", shell_complete=complete.jobs)
@click.argument("job2", shell_complete=complete.jobs)
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
    from clusterrun.compare import changes_json
    from clusterrun.compare.code import compare_code
    from clusterrun.compare.environment import compare_environments
    from clusterrun.compare.metrics import compare_metrics
    from clusterrun.compare.options import compare_options
    from clusterrun.records.code_store import load_snapshot

    ui = Ui("diff", as_json=as_json)
    session: Session = ctx.obj
    cluster = session.cluster(ui.note)
    first, second = (require_run(cluster, one, _ONLY_OURS) for one in find_targets(cluster, (job1, job2)))
    if first.run_id == second.run_id:
        raise RequestError(f"{job1} and {job2} are the same run", hint="`clusterrun list --all` shows your jobs")
    options, snapshots = compare_options(first, second), [load_snapshot(run) for run in (first, second)]
    files, code_diff, gone = compare_code(first, second)
    environment, missing, mixed = compare_environments(first, second)
    metrics, unmeasured = compare_metrics(first, second)
    data = {
        "runs": [{"job_id": str(run.job_id) if run.job_id else None, "run_id": run.run_id, "name": run.name}
                 for run in (first, second)],
        "options": changes_json(options),
        "code": _code_json(snapshots, files, code_diff, gone),
        "environment": changes_json(environment),
        "metrics": changes_json(metrics),
    }  # fmt: skip
    ui.data(data)
    ui.say(f"first        {_name(first)}", f"second       {_name(second)}")
    _section(ui, "options", options)
    ui.say(*_code_lines(snapshots, files, gone))
    _section(ui, "environment", environment, "; ".join(map(_why_no_environment, missing)))
    for run in mixed:
        ui.say(f"             the nodes of {_name(run)} do not all have the same packages")
    _section(ui, "metrics", metrics, "none recorded" if len(unmeasured) == 2 else "")
    ui.say(*code_diff)


def _section(ui: Ui, name: str, changes: Sequence[Change], nothing: str = "") -> None:
    if not changes:
        ui.say(f"{name:<11}  {nothing or 'same'}")
        return
    width = max(len(change.name) for change in changes[:_MOST_ROWS])
    for change in changes[:_MOST_ROWS]:
        values = f"{_value(change.first, change.sources[0])} -> {_value(change.second, change.sources[1])}"
        ui.say(f"{name:<11}  {change.name:<{width}}  {values}")
        name = ""  # only the first line has it
    if len(changes) > _MOST_ROWS:
        ui.say(f"{'':<11}  and {len(changes) - _MOST_ROWS} more")


def _is_same_code(snapshots: Sequence[Snapshot | None], files: Sequence[str], gone: Sequence[RunRecord]) -> bool:
    """Return whether both runs have saved the same files."""
    return None not in snapshots and not files and not gone


def _code_lines(
    snapshots: Sequence[Snapshot | None], files: Sequence[str], gone: Sequence[RunRecord]
) -> list[str]:  # fmt: skip
    """Return how the code of two runs differs: in which ``files``, or which of it is ``gone``."""
    saved = [snapshot.line if snapshot else "not saved" for snapshot in snapshots]
    if not any(snapshots):
        return ["code         not saved"]
    if _is_same_code(snapshots, files, gone):
        return [f"code         same: {saved[0]}"]
    lines = [f"code         {' -> '.join(saved)}"]
    if gone:
        lines.append(f"             the saved code of {' and '.join(map(_name, gone))} cannot be read (deleted?)")
        return lines + _git_line(*snapshots)
    if files:
        number = len(files)
        lines.append(f"             {plural(number, 'file')} differ{'s' * (number == 1)}; the diff is below")
    return lines


def _git_line(one: Snapshot | None, other: Snapshot | None) -> list[str]:
    """Return a line with the command that compares the commits of two runs."""
    commits = [code.commit[:12] for code in (one, other) if code and code.commit]
    if other is None or len(set(commits)) < 2:
        return []
    return [f"             git -C {other.root} diff {' '.join(commits)}"]


def _code_json(
    snapshots: Sequence[Snapshot | None], files: Sequence[str], code_diff: Sequence[str], gone: Sequence[RunRecord]
) -> dict[str, Any]:  # fmt: skip
    return {
        "same": _is_same_code(snapshots, files, gone),
        "snapshots": [snapshot and snapshot.to_json() for snapshot in snapshots],
        "deleted": [run.run_id for run in gone],
        "files": list(files),
        "diff": "\n".join(code_diff),
    }


def _why_no_environment(run: RunRecord) -> str:
    return f"{_name(run)} {'recorded none' if run_record.attempts(run) else 'has not started'}"


def _name(run: RunRecord) -> str:
    return f"job {run.job_id} ({run.name})" if run.job_id is not None else f"run {run.run_id} ({run.name})"


def _value(value: Any, source: str) -> str:
    if value is None:
        return "none"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > _WIDEST:
        text = text[: _WIDEST - 1] + "…"
    return f"{text} ({source})" if source else text
