"""Which of a scheduler's jobs belongs to a run: nothing else decides it.

A job is a run's by the token in its name or, where a site has renamed it, by the path of its script, which only this
run has. Of several (a submission can be made twice) the one that wrote the claim is the run's own: the claim is a job's
first act, and the others leave when they find it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterrun.job import JobStatus
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord


class Jobs:
    """The jobs of one answer, looked up by run."""

    def __init__(self, jobs: Sequence[JobStatus]) -> None:
        self._by_key: dict[str, list[JobStatus]] = {}
        for job in jobs:
            self._by_key.setdefault(token_part(job), []).append(job)
            if job.script.startswith("/"):
                self._by_key.setdefault(job.script, []).append(job)

    def of(self, run: RunRecord) -> list[JobStatus]:
        """Return every job of a run, copies included, the oldest first."""
        named = self._by_key.get(run.submission.token[:8], [])
        renamed = self._by_key.get(str(run.run_dir / "script.sh"), [])
        found = [*named, *(job for job in renamed if not any(job is one for one in named))]
        return sorted((job for job in found if run.mine or job.user == run.user), key=_age)

    def own(self, run: RunRecord) -> JobStatus | None:
        """Return the run's own job: the one that claimed it, else the recorded one, else the oldest.

        None where the one that claimed it is not here: the others are copies that leave without having run.
        """
        alike, claim = self.of(run), run_record.claim_of(run)
        wanted = claim.job if claim else run.job_id.base if run.job_id else None
        found = next((job for job in alike if job.id.base == wanted), None)
        return found or (alike[0] if alike and claim is None else None)


def carries(job: JobStatus, token: str, script: Path) -> bool:
    """Whether a job of this user is that of a submission: by its name, or by the script that Slurm was given."""
    return job.name.endswith("." + token[:8]) or job.script == str(script)


def token_part(job: JobStatus) -> str:
    """Return the end of a job's name, which has the first eight letters of the token unless a site has renamed it."""
    return job.name.rpartition(".")[2]


def covers(where: str, cluster: str) -> bool:
    """Whether the scheduler of ``where`` can be asked about the jobs of a cluster.

    ``where`` is a cluster, several (``a,b``), ``all``, or empty where it is not known; so may ``cluster`` be.
    """
    return cluster == where or (bool(where) and (where == "all" or not cluster or cluster in where.split(",")))


def one_cluster(where: str) -> str:
    """Return the cluster's name where it is one, an empty text where it is several or not known."""
    return "" if where == "all" or "," in where else where


def _age(job: JobStatus) -> int:
    return int(job.id.raw.lstrip("L"))
