"""Match a scheduler's jobs with runs.

A job belongs to a run if its name carries the run's token or, where a site renames jobs, by the unique path of its
script. A submission may create several jobs: the one that wrote the claim is the run's own. Writing the claim is a
job's first action, and the other copies exit when they find it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.base.job import JobStatus, split_tasks, token_part
from clusterrun.records import run_record
from clusterrun.records.run_record import RunRecord


class JobIndex:
    """The jobs of one scheduler answer, indexed by run.

    The tasks of an array that share a row are split when the array's first run is looked up.
    """

    def __init__(self, jobs: Sequence[JobStatus]) -> None:
        self._by_key: dict[str, list[JobStatus]] = {}
        self._tasks: dict[str, dict[int | None, list[JobStatus]]] = {}
        for job in jobs:
            self._by_key.setdefault(token_part(job), []).append(job)
            if job.script.startswith("/"):
                self._by_key.setdefault(job.script, []).append(job)

    def of(self, run: RunRecord) -> list[JobStatus]:
        """Return all jobs of a run's submission, copies included, oldest first."""
        if not self._by_key:  # as for each of thousands of ended runs
            return []
        alike = dict.fromkeys([*self._of(run.submission.token[:8], run), *self._of(str(run.sent_script), run)])
        jobs = [job for job in alike if run.mine or job.user == run.user]
        return sorted(jobs, key=lambda job: job.id.number)

    def _of(self, key: str, run: RunRecord) -> list[JobStatus]:
        task = run.submission.task
        if task is None:
            return self._by_key.get(key, [])
        if key not in self._tasks:
            tasks = self._tasks[key] = {}
            for row in self._by_key.get(key, ()):
                for job in split_tasks(row):
                    tasks.setdefault(job.id.task, []).append(job)
        return self._tasks[key].get(task, [])

    def others(self, run: RunRecord) -> list[JobStatus]:
        """Return the jobs of a run's other submissions."""
        return [job for one in run.submissions[:-1] for job in self.of(run.as_submission(one))]

    def own(self, run: RunRecord) -> JobStatus | None:
        """Return the run's own job: the one with the claim, else the recorded one, else the oldest.

        Returns None if the job with the claim is missing: the others are copies that exit without running.
        """
        alike = self.of(run)
        if not alike:
            return None
        by_number = {job.id.base: job for job in reversed(alike)}
        claim = run_record.claim_of(run)
        if claim is not None:
            return by_number.get(claim.job)
        return by_number.get(run.job_id.base if run.job_id else "", alike[0])
