"""A submitit executor that submits clusterrun's staged script; no other module imports submitit.

A contract test checks every overridden name against the installed release. Each override notes what submitit does
and why it is replaced.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# submitit's import configures logging to standard output, which is reserved for --json
os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")

from submitit.core import utils
from submitit.slurm import slurm

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.job import PICKLES
from clusterrun.scheduler import Submission


class TrainPaths(utils.JobPaths):
    """The log files of a job: ``logs/train_<id>.out|err`` instead of a file per task."""

    logs: Path

    @property
    def stdout(self) -> Path:
        return self.logs / f"train_{self.job_id}.out"

    @property
    def stderr(self) -> Path:
        return self.logs / f"train_{self.job_id}.err"


class TrainJob(slurm.SlurmJob[Any]):
    """submitit's job with clusterrun's log files."""

    @property
    def paths(self) -> TrainPaths:
        paths = TrainPaths(self._paths.folder, job_id=self.job_id, task_id=self.task_id)
        paths.logs = self.logs
        return paths

    logs = Path("logs")

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        """submitit unpickles any user's file; this checks the owner. Raises UncompletedJobError without a result."""
        path, until = self.paths.result_pickle, time.monotonic() + self._results_timeout_s
        while path not in path.parent.iterdir():  # not exists(): its answer may be a minute old on NFS
            if time.monotonic() > until:
                raise utils.UncompletedJobError(
                    f"rank {self.task_id} of job {self.job_id} wrote no result ({self.state}); see {self.paths.stderr}"
                )
            time.sleep(1)
        outcome, result = load_own(path)
        return str(outcome), result


def load_own(path: Path) -> Any:
    """Unpickle a file of this user that no other user can write, since a pickle may run any code.

    Raises RequestError for any other file, before reading it.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise RequestError(
                f"refusing to unpickle {path}: other users may have written the file",
                hint=f"check the file's owner and permissions: ls -l {path}",
            )
        return pickle.load(file)


def save_call(run_dir: Path, function: Callable[[Any], Any], value: Any) -> None:
    """Pickle a call into a run's folder for ``worker/rank/callable.py``; raises RequestError if it cannot."""
    before = os.umask(0o077)
    try:
        (run_dir / PICKLES).mkdir()
        utils.DelayedSubmission(function, value).dump(run_dir / PICKLES / "call.pkl")
    except OSError:
        raise
    except Exception as error:
        raise RequestError(f"cannot pickle the call: {error}", hint="pass only values that can be pickled") from error
    finally:
        os.umask(before)


def load_result(run_dir: Path, job: str, *, done: bool) -> tuple[Any, Exception | None]:
    """Return what the call of a run returned, or what it raised, with its traceback as a note.

    Raises FileNotFoundError if neither was written.
    """
    if done:
        return load_own(run_dir / PICKLES / "result.pkl"), None
    data, trace = load_own(run_dir / PICKLES / "error.pkl")
    try:
        error = pickle.loads(data)
    except Exception:  # this process lacks its class, or it could not be pickled
        error = None
    if not isinstance(error, Exception):
        raised = [line for line in trace.splitlines() if line and not line.startswith(" ")]
        error = ClusterrunError(
            f"{job}: {raised[-1] if raised else 'failed'}", hint=f"clusterrun why {job.rsplit(maxsplit=1)[-1]}"
        )
    error.add_note(f"in {job}:\n{trace}")
    return None, error


class TrainExecutor(slurm.SlurmExecutor):
    """Submits a staged run: the script already exists, is never renamed, and needs no pickle.

    ``send`` runs sbatch with the run's environment and a timeout, and returns the id or raises a clusterrun error.
    Python callables are pickled by submitit (``submit``) and run through the same script.
    """

    job_class = TrainJob

    def __init__(self, submission: Submission, send: Callable[[Sequence[str]], str]) -> None:
        self._submission = submission
        self._send = send
        super().__init__(submission.run_dir / PICKLES)
        self.parameters.update(nodes=submission.nodes, ntasks_per_node=submission.tasks_per_node)
        if submission.time_limit is not None:
            # whole minutes: submitit multiplies the value, and a string breaks its handler of preemption
            self.parameters["time"] = max(1, submission.time_limit // 60)

    @classmethod
    def affinity(cls) -> int:
        """submitit checks for srun, which a login node may lack."""
        return 2 if shutil.which("sbatch") else -1

    def submit_script(self) -> TrainJob:
        """Submit the staged script as a plain command, so that a requeue cannot replay old arguments."""
        return self._submit_command("")

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._submission.script.read_text("utf-8", "surrogateescape")

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["sbatch", "--parsable", *self._submission.argv, "--", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """``send`` has checked the id; submitit would take ``job 7`` from a site's banner."""
        return string if isinstance(string, str) else string.decode()

    def _submit_command(self, command: str) -> TrainJob:
        """submitit inherits the whole environment, has no timeout and renames the script after sbatch."""
        answer = self._send(self._make_submission_command(self._submission.script))
        job_id = self._get_job_id_from_submission_command(answer).split(";")[0]
        job = self.job_class(folder=self.folder, job_id=job_id, tasks=list(range(self._num_tasks())))
        job.logs = self._submission.logs
        return job

    def _internal_process_submissions(self, delayed_submissions: list[Any]) -> list[Any]:
        """submitit builds arrays with its own class, which loses the script."""
        if len(delayed_submissions) != 1:
            raise RequestError("cannot submit several callables at once", hint="submit them one at a time")
        before = os.umask(0o077)  # submitit creates its folder and the pickle with the current umask
        try:
            return list(super()._internal_process_submissions(delayed_submissions))
        finally:
            os.umask(before)
