"""The words that name a job on the command line: an id, the job's name, or ``last``."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.cluster import Cluster
from clusterrun.errors import NoSuchJob, RequestError
from clusterrun.job import JobId, is_job_id, is_run_id
from clusterrun.records.run_record import RunRecord
from clusterrun.state.reconcile import RunState
from clusterrun.terminal.safe_text import safe_line

LAST = "last"
_SHOWN = 3  # of the older jobs with the same name


def find_ids(cluster: Cluster, words: Sequence[str]) -> tuple[str, ...]:
    """Return a job id or run id for each word: a job's number may mean other jobs too, on other clusters or later.

    ``last`` is the job submitted last from the current project. A name means the newest run of that name, of this
    project if it has one, else the user's external job in the queue with that name. Raises NoSuchJob, or RequestError
    for a mistyped id and for several external jobs.
    """
    return tuple(_find_id(cluster, word) for word in words)


def _find_id(cluster: Cluster, word: str) -> str:
    if word == LAST:
        return _last(cluster)
    if is_run_id(word) or is_job_id(word):
        return word
    runs = cluster.store().all()
    same = [run for run in runs if run.name == word]
    if not same and not word[:1].isalpha():
        JobId.parse(word)  # raises RequestError: it is more likely a mistyped id than a name
    same = [run for run in same if run.root == cluster.store().root] or same
    if not same:
        return _external(cluster, word, {run.name for run in runs})
    *older, newest = sorted(same, key=_submitted)
    if older:
        others = ", ".join(map(_id_of, reversed(older[-_SHOWN:]))) + (", …" if len(older) > _SHOWN else "")
        cluster.notify(f"{len(same)} jobs are named {word}; using the newest, {_id_of(newest)} (older: {others})")
    return newest.run_id


def _last(cluster: Cluster) -> str:
    runs = [run for run in cluster.store().here() if run.what != "check"]
    if not runs:
        raise NoSuchJob(
            f"no job was submitted from {cluster.store().root}", hint="give a job id; `clusterrun list` shows your jobs"
        )
    run = max(runs, key=_submitted)
    cluster.notify(f"{LAST}: {'job' if run.job_id else 'run'} {_id_of(run)} ({safe_line(run.name)})")
    return run.run_id


def _external(cluster: Cluster, name: str, known: set[str]) -> str:
    """Return the id of the user's only active job of this name that clusterrun did not submit."""
    states = cluster.listing().states if cluster.facts() is not None else ()
    jobs: dict[tuple[str, str], list[RunState]] = {}  # by cluster and number: an array may have several rows
    for state in states:
        if state.record is None and state.status.name == name:
            jobs.setdefault((state.status.id.cluster, state.status.id.base), []).append(state)
    found = [base + (f";{where}" if where else "") if len(rows) > 1 else _handle(rows[0])
             for (where, base), rows in jobs.items()]  # fmt: skip
    if len(found) > 1:
        raise RequestError(f"{len(found)} jobs are named {name}: {', '.join(found[:8])}", hint="give one of these ids")
    if found:
        return found[0]
    import difflib  # its import takes longer than the rest of this module

    near = difflib.get_close_matches(name, sorted({*known, LAST}), n=1)
    hint = f"did you mean {near[0]}?" if near else "`clusterrun list --all` shows your jobs"
    raise NoSuchJob(f"no job is named {name[:40]}", hint=hint)


def _handle(state: RunState) -> str:
    """Return the id of an external job: a whole array if tasks share a row, with its cluster if known."""
    job = state.status.id
    return (job.base if state.status.tasks else str(job)) + (f";{job.cluster}" if job.cluster else "")


def _submitted(run: RunRecord) -> tuple[int, int]:
    """Return a key that sorts by time of submission; within a second, by the job's number."""
    return run.submission.at, int(run.job_id.raw.lstrip("L")) if run.job_id is not None else 0


def _id_of(run: RunRecord) -> str:
    return str(run.job_id) if run.job_id is not None else run.run_id
