"""One start of the job on its first node: its ids, options and folders, and what it records. Standard library only."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from contextlib import suppress
from pathlib import Path

from ...base.errors import WorkerError
from ...run_folder import attempt_number, claims, ends, launches, submissions
from ...run_folder.claims import JobIdentity
from ...run_folder.files import is_listed, write_text
from ...run_folder.launches import LaunchRecord
from ...run_folder.rank_records import Records
from ..node import batch_host
from .notify import Notifier
from .restart import LaunchEnd
from .staged_env import StagedEnvironment
from .termination import TERMINATED, Termination


class Job:
    """One start of the job: its ids and options, and what it records."""

    def __init__(self, options: argparse.Namespace, umask: int) -> None:
        environ = os.environ
        self.options = options
        self.umask = umask  # the user's, for the ranks
        self.identity = JobIdentity.resolve(environ)
        self.run_dir = Path(environ.get("CLUSTERRUN_RUN_DIR") or "")
        self.token = environ.get("CLUSTERRUN_TOKEN") or ""
        self.folder_mode = 0o750 if options.shared else 0o700
        self.attempt_dir = Path()
        self.launch = self.of_other_jobs = 0  # launches
        self.record: LaunchRecord | None = None
        self.workers = self.unmarked = 0
        self.records: tuple[Records, Records] = {}, {}  # progress and ends of the ranks, read after the launch's end
        self.due = ""  # why Slurm ends this start, if this program requested it
        self.runs_again = False  # after this start
        self.notifier = Notifier()
        self.staged = StagedEnvironment()
        self.nodes: list[str] = []  # of the launch
        self.lost_nodes: set[str] = set()

    @property
    def name(self) -> str:
        """The job's id with its array task."""
        return self.identity.job_id

    @property
    def slurm_id(self) -> str:
        """The id of the Slurm job in which the ranks are steps: of a local job that is another one."""
        return os.environ.get("SLURM_JOB_ID", "") if self.options.in_job else self.identity.job_id

    @property
    def key(self) -> str:
        """What names this job among those of its run: its submission's token and its array task."""
        return self.token + self.identity.task

    @property
    def checkpoints(self) -> Path:
        """The folder of the run's checkpoints, if the ranks use no other."""
        return self.run_dir / "checkpoints"

    def begin(self, termination: Termination) -> None:
        """Claim the run; raises WorkerError if this job may not work in its folder."""
        self._wait_for_submission(termination)
        claims.own_folders(self.run_dir)
        claims.claim(self.run_dir, self.token, self.identity, self.folder_mode)
        with suppress(OSError):  # a script may save into it without creating it
            self.checkpoints.mkdir(mode=self.folder_mode)
        self.of_other_jobs = sum(not name.startswith(self.token) for name in os.listdir(self.run_dir / "attempts"))
        self.notifier.load(self.run_dir, {"run_id": os.environ.get("CLUSTERRUN_RUN_ID", ""), "job": self.name})
        self.open_attempt(0, time.time() - self.options.elapsed)
        write_text(self.attempt_dir / "log-start", self.options.log_start + "\n")

    def open_attempt(self, launch: int, began: float | None = None) -> None:
        """Begin the run's next attempt, and create the folder of the launch; raises WorkerError."""
        number = attempt_number.begin_next(self.run_dir, self.token, self.identity)
        os.environ[attempt_number.FILE] = str(attempt_number.path_of(self.run_dir, self.identity))
        os.environ[attempt_number.NUMBER] = str(number)
        self.launch, self.unmarked, self.records = launch, 0, ({}, {})
        self.attempt_dir = launches.folder_of(self.run_dir, self.key, self.identity.restart, launch)
        with suppress(OSError):
            self.attempt_dir.mkdir(mode=self.folder_mode)
        try:
            found = self.attempt_dir.lstat()
            usable = self.attempt_dir.is_dir() and not self.attempt_dir.is_symlink() and found.st_uid == os.geteuid()
        except OSError:
            usable = False
        if not usable:
            raise WorkerError(f"cannot write {self.attempt_dir}")
        self.record = LaunchRecord(self.attempt_dir, began or time.time())

    def note_queue(self, facts: dict[str, str]) -> None:
        """Keep in the record of the first launch how long the job waited, by Slurm's facts of the job."""
        if self.record is not None and self.launch == 0:
            self.record.note_queue(batch_host.queue_times(facts))

    def record_launch(self, end: LaunchEnd) -> None:
        """Record how the launch ended."""
        if self.record is not None:
            self.record.end(end.status, end.cause, end.kind, end.values, end.progress)

    def record_end(self, status: int, by_term: bool) -> None:
        """Write end.json: how the job ended, for clusters without accounting and for jobs that Slurm has forgotten.

        A failure to write it does not change the job's exit status.
        """
        reason = due = ""
        if by_term and not self.options.local:
            reason, due = batch_host.cancel_reason(self.slurm_id, int(self.options.log_start.split()[-1]))
        end = ends.JobEnd(
            status, "TERM" if by_term else "", reason, self.due or due, self.unmarked,
            self.identity.cluster, self.name, self.identity.restart, self.launch,
        )  # fmt: skip
        with suppress(OSError):
            ends.write_job_end(self.attempt_dir, end)

    def notify_end(self, status: int, cause: str) -> None:
        """Send how this start of the job ended."""
        if self.runs_again:
            self.notifier.send("stopped", "the job will continue from its last checkpoint")
        elif status == ends.SAVED:
            self.notifier.send("stopped", f"checkpoint saved; continue with: clusterrun resume {self.name}")
        elif status == 0:
            self.notifier.send("done", "all ranks have ended")
        else:
            self.notifier.send("failed", f"{cause}; see: clusterrun why {self.name}")
        self.notifier.finish()

    @property
    def earlier_starts(self) -> int:
        """How often the ranks were started before in this run; a requeue counts as one."""
        return self.of_other_jobs + self.identity.restart + self.launch

    def _wait_for_submission(self, termination: Termination) -> None:
        """Wait until the submission's record is visible.

        A script run by hand has none, so its records would describe a job that clusterrun never submitted: raises
        WorkerError, unless CLUSTERRUN_FORCE is 1.
        """
        record = submissions.path_of(self.run_dir, self.token)
        until = time.monotonic() + self.options.shown_late
        while self.identity.job_id == "none" or not is_listed(record):
            # do not wait outside a Slurm job, or in a script from `render`
            rendered = self.token == "TOKEN"  # noqa: S105  (what `render` prints, no secret)
            if "SLURM_JOB_ID" not in os.environ or rendered or time.monotonic() >= until:
                self.run_dir = self._folder_by_hand()
                return
            if termination.came:
                raise WorkerError("SIGTERM ended the job before the ranks were started", status=TERMINATED)
            time.sleep(1)

    def _folder_by_hand(self) -> Path:
        if os.environ.get("CLUSTERRUN_FORCE") != "1":
            shell, script = "bash", self.options.script
            if Path(script).name == "slurm_script":  # Slurm's copy, which is gone after the job
                shell, script = "sbatch", batch_host.script_of(self.identity.job_id)
            raise WorkerError(
                "this script was not submitted by clusterrun, so nothing was started.\n"
                "clusterrun: hint: use 'clusterrun submit', or run this script anyway:"
                f" CLUSTERRUN_FORCE=1 {shell} {shlex.quote(script)}",
                status=2,
            )
        return Path.cwd() / ".clusterrun" / "by-hand" / self.identity.job_id
