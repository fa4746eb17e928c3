"""``clean``: delete the checkpoints, data caches and saved code of runs that ended some time ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from clusterrun.base.errors import Ambiguous, RequestError
from clusterrun.base.job import Outcome
from clusterrun.base.units import format_age, format_bytes, parse_age, plural
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.show import confirm
from clusterrun.records import cleaning, code_store, run_record
from clusterrun.records.cleaning import Item
from clusterrun.state.reconcile import RunState, runs_of
from clusterrun.terminal.tables import Column
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.cluster import Cluster
    from clusterrun.records.run_record import RunRecord

CACHE, CODE = "data cache", "saved code"
COLUMNS = (*map(Column, ("WHAT", "JOBID", "NAME", "STATE", "ENDED")), Column("SIZE", right=True))


class Leftover(NamedTuple):
    """A folder to delete, and the run whose checkpoints it contains (None: other files) with its state and end."""

    item: Item
    ended: float
    run: RunRecord | None = None
    state: str = ""
    what: str = "checkpoints"


@click.command()
@click.option(
    "--older-than", metavar="AGE", default="30d", show_default=True,
    help="Delete only files of runs that ended more than AGE ago (12h, 2d, 1w).",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and its size; delete nothing.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@json_option
@click.pass_context
def clean(ctx: click.Context, older_than: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete checkpoints, data caches and saved code of this project that no run needs any more.

    \b
      clusterrun clean --dry-run
      clusterrun clean --older-than 1w

    Without its checkpoints or its saved code a run cannot be resumed. Its records, logs, metrics and model are kept.
    clean also keeps the checkpoints of your own scripts that succeeded (they may be the result), checkpoints that
    another run of yours names in its settings or arguments, and all files of runs that are active or whose state is
    unknown.
    """
    ui = Ui("clean", as_json=as_json)
    session: Session = ctx.obj
    now = time.time()
    before = _parse_age(older_than, now)
    cluster = session.cluster(ui.note)
    with ui.working("looking for files that no run needs"):
        leftovers = _find_leftovers(cluster, before, ui.note)
    size = format_bytes(sum(leftover.item.size for leftover in leftovers))
    rows = [_row(leftover, now) for leftover in leftovers]
    if not leftovers:
        ui.data({"deleted": [], "bytes": 0})
        ui.note(f"nothing to delete in runs that ended more than {older_than} ago")
    elif dry_run:
        ui.data({"deleted": [], "would_delete": [_json(leftover) for leftover in leftovers]})
        ui.table(COLUMNS, rows)
        ui.note(f"would delete {size}; nothing was deleted")
    elif yes:
        ctx.exit(_delete_all(ui, cluster, leftovers, now))
    elif confirm(ui, "delete", size, COLUMNS, rows):
        again = _find_leftovers(cluster, before, lambda line: None)  # a run may have been submitted meanwhile
        ctx.exit(_delete_all(ui, cluster, _in_both(leftovers, again), now))


def _in_both(leftovers: Sequence[Leftover], again: Sequence[Leftover]) -> list[Leftover]:
    still = {leftover.item.path for leftover in again}
    return [leftover for leftover in leftovers if leftover.item.path in still]


def _delete_all(ui: Ui, cluster: Cluster, leftovers: Sequence[Leftover], now: float) -> int:
    """Delete folders and print their size; return 1 if one is left."""
    with ui.working(f"deleting {plural(len(leftovers), 'folder')}"):
        deleted = [leftover for leftover in leftovers if _delete(ui, cluster, leftover)]
    if CODE in {leftover.what for leftover in deleted}:
        with suppress(OSError):  # the next time
            cleaning.delete_contents(cluster.store().base, now - cleaning.RECENT)
    freed = sum(leftover.item.size for leftover in deleted)
    ui.data({"deleted": [_json(leftover) for leftover in deleted], "bytes": freed})
    ui.say(f"Deleted {format_bytes(freed)} in {plural(len(deleted), 'folder')}")
    return int(len(deleted) < len(leftovers))


def _find_leftovers(cluster: Cluster, before: float, note: Callable[[str], None]) -> list[Leftover]:
    store = cluster.store()
    runs = store.all()
    if unreadable := cleaning.find_unreadable(store.folders(), runs):
        note(f"deleting nothing: cannot read {unreadable[0]}/record.json, and its run may be active")
        return []
    states = cluster.current_states(list(filter(store.is_here, runs)))
    over = [state for state in states if _is_over(state) and _ended(state) < before]
    ids = {run.run_id for run in runs_of(over)}
    users = cleaning.find_users(*_split(runs, ids))
    _, kept = _split(runs, ids - users.keys())
    return [
        *_find_checkpoints(over, users, note),
        *_find_caches(store.base, states, before, note),
        *_find_code(store.base, kept, before, note),
    ]


def _split(runs: Sequence[RunRecord], ids: Container[str]) -> tuple[list[RunRecord], list[RunRecord]]:
    inside: list[RunRecord] = []
    outside: list[RunRecord] = []
    for run in runs:
        (inside if run.run_id in ids else outside).append(run)
    return inside, outside


def _find_checkpoints(
    over: Iterable[RunState], users: Mapping[str, RunRecord], note: Callable[[str], None]
) -> Iterator[Leftover]:
    """Yield the checkpoints of runs that have ended, which no other run of these ``users`` starts from."""
    for leftover in filter(None, map(_checkpoints, over)):
        if leftover.run and (user := users.get(leftover.run.run_id)):
            note(f"keeping the checkpoints of {_name(leftover.run)}: {_name(user)} starts from them")
        else:
            yield leftover


def _find_caches(
    base: Path, states: Sequence[RunState], before: float, note: Callable[[str], None]
) -> list[Leftover]:  # fmt: skip
    """Return the data caches that were not used for some time; none while a run is active."""
    caches = cleaning.find_caches(base, before)
    for state in states:
        if caches and state.record and not _is_over(state):
            note(f"keeping the data caches: {_name(state.record)} is active, or its state is unknown")
            return []
    return [Leftover(item, item.used, what=CACHE) for item in caches]


def _find_code(base: Path, kept: Sequence[RunRecord], before: float, note: Callable[[str], None]) -> Iterator[Leftover]:
    for run in filter(code_store.is_damaged, kept):
        note(f"keeping all saved code: cannot read snapshot.json in the folder of {_name(run)}")
        return
    snapshots = map(code_store.load_snapshot, (run for run in kept if run.root == base))
    needed = {snapshot.digest for snapshot in filter(None, snapshots)}
    for item in cleaning.find_code(base, needed, min(before, time.time() - cleaning.RECENT)):
        if added := cleaning.find_added(item.path):
            note(f"keeping the saved code {item.path.name}: a run has written to the file {added}")
        else:
            yield Leftover(item, item.used, what=CODE)


def _is_over(state: RunState) -> bool:
    """Return whether this is a run of the user's that has certainly ended, with no other job of it in the queue."""
    if state.record is None or not state.record.mine or state.copies or state.others:
        return False
    return state.status.is_final and state.status.outcome is not Outcome.LOST


def _ended(state: RunState) -> float:
    """Return when a run ended; if that is unknown, when its newest checkpoint was written, or its submission."""
    assert state.record is not None
    if state.status.ended is not None:
        return state.status.ended
    item = cleaning.find_checkpoints(state.record)
    return max(state.record.submission.at, item.used if item else 0.0)


def _checkpoints(state: RunState) -> Leftover | None:
    """Return the checkpoints of a run; None if it has none, or if they may be the result of the user's script."""
    run = state.record
    assert run is not None
    item = cleaning.find_checkpoints(run)
    if item is None or (state.status.outcome is Outcome.DONE and not cleaning.is_task(run)):
        return None
    return Leftover(item, _ended(state), run, state.status.state)


def _delete(ui: Ui, cluster: Cluster, leftover: Leftover) -> bool:
    run = leftover.run
    try:
        if leftover.what == CODE:
            return cleaning.delete_code(leftover.item)
        if run is None:
            cleaning.delete(leftover.item)
            return True
        with cluster.store().submitting(run):
            again = run_record.load(run.run_dir)
            if again is None or again.submission.token != run.submission.token:
                ui.note(f"keeping the checkpoints of {_name(run)}: the run has been resumed")
                return False
            cleaning.delete(leftover.item)
            return True
    except Ambiguous as error:
        ui.note(f"keeping the checkpoints of {_name(run)}: {error.message}" if run else error.message)
    except OSError as error:
        ui.note(f"deleted only part of {leftover.item.path}: {error.strerror or error}; run the command again")
    return False


def _name(run: RunRecord) -> str:
    return f"job {run.job_id}" if run.job_id is not None else f"run {run.run_id}"


def _row(leftover: Leftover, now: float) -> Sequence[str]:
    job, name = "", leftover.item.path.name
    if leftover.run is not None:
        job, name = str(leftover.run.job_id or ""), leftover.run.name
    age, size = f"{format_age(now - leftover.ended)} ago", format_bytes(leftover.item.size)
    return leftover.what, job, name, leftover.state, age, size


def _json(leftover: Leftover) -> dict[str, object]:
    item, run = leftover.item, leftover.run
    return {"path": str(item.path), "bytes": item.size, "run_id": run.run_id if run else None}


def _parse_age(text: str, now: float) -> float:
    age = parse_age(text)
    if age is None:
        raise RequestError(
            f"--older-than: {text[:40]!r} is not a valid age", hint="for example --older-than 30d, 12h or 1w"
        )
    return now - age
