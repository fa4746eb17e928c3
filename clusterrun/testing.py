"""A fake scheduler for tests of code that uses clusterrun; no Slurm is needed.

    scheduler = FakeScheduler()
    run = Cluster(scheduler=scheduler).submit_script("train.py", nodes=2, gpus_per_node=4)
    scheduler.set_state(run.job_id, "FAILED", exit_status=1)

It implements :class:`clusterrun.scheduler.Scheduler`. Jobs change only when the test calls ``set_state``, ``cancel`` or
``hold``: nothing is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterrun.base.errors import ClusterrunError, Refused
from clusterrun.base.job import JobId, JobStatus, carries, outcome_of
from clusterrun.run_folder.safe_files import user_name
from clusterrun.scheduler import Answer, Cancelled, SlurmCommands, Submission

__all__ = ["FakeScheduler"]


class FakeScheduler:
    """A scheduler that accepts every submission as a pending job and records all requests.

    ``jobs`` maps ids to the current states, ``submissions`` and ``cancelled`` hold the requests in order. Set
    ``next_error`` to make the next submission fail with it, and ``answers`` to False to make queries fail.
    """

    def __init__(self, *, name: str = "slurm", cluster: str = "fake") -> None:
        self.name = name
        self.cluster = cluster
        self.jobs: dict[JobId, JobStatus] = {}
        self.submissions: list[Submission] = []
        self.cancelled: list[JobId] = []
        self.next_error: ClusterrunError | None = None
        self.answers = True
        self.slurm: SlurmCommands | None = None
        self.local = None

    # -- for the test ----------------------------------------------------------------------------------------------

    def add_job(self, token: str = "", state: str = "PENDING", **values: Any) -> JobId:
        """Add a job and return its id: 100, 101, … ``values`` are fields of JobStatus."""
        id = JobId(str(100 + len(self.jobs)))
        known = {"name": f"job.{token[:8]}", "user": user_name(os.getuid()), "source": "squeue"}
        self.jobs[id] = JobStatus(id=id, state=state, **{"outcome": outcome_of(state), **known, **values})
        return id

    def set_state(self, id: JobId, state: str, **values: Any) -> None:
        """Set a job's Slurm state (``RUNNING``, ``COMPLETED`` …); ``values`` are other fields of JobStatus."""
        outcome = outcome_of(state, values.get("exit_status"))
        self.jobs[id] = replace(self.jobs[id], state=state, outcome=outcome, **values)

    # -- the protocol of a scheduler -------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> JobId:
        """Record a submission and add its job, or raise ``next_error``."""
        self.submissions.append(submission)
        error, self.next_error = self.next_error, None
        if error is not None:
            raise error
        return self.add_job(submission.token, script=str(submission.script))

    def find(self, token: str, since: int, script: Path) -> Answer:
        """Return the jobs of a submission."""
        answer = self.query()
        return answer._replace(jobs=[job for job in answer.jobs if carries(job, token, script)])

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """Return all jobs, or those with these ids."""
        if not self.answers:
            return Answer(complete=False, note="the fake scheduler is not responding")
        return Answer([job for id, job in self.jobs.items() if ids is None or id in ids])

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """Return those of the jobs that have ended."""
        answer = self.query(ids)
        return answer._replace(jobs=[job for job in answer.jobs if job.is_over])

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """Record the request and set the state of active jobs to CANCELLED."""
        self.cancelled += ids
        for id in ids:
            if id in self.jobs and not self.jobs[id].is_over:
                self.set_state(id, "CANCELLED")
        return [Cancelled(id, id in self.jobs) for id in ids]

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """Hold or release a pending job; raises Refused for any other."""
        if id not in self.jobs or self.jobs[id].state != "PENDING":
            raise Refused(f"job {id} is not pending")
        self.jobs[id] = replace(self.jobs[id], reason="" if release else "JobHeldUser")
