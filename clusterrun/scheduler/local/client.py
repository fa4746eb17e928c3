"""The local scheduler: this machine stands in for a cluster, with one detached supervisor per job and no daemon.

This is the side of those who ask. It makes the job's folder, starts its supervisor and reads what that wrote; what
the script itself needs is in :mod:`clusterrun.scheduler.local.supervisor`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import clusterrun
from clusterrun.errors import Ambiguous, CommandError, Refused
from clusterrun.job import LOCAL, JobId
from clusterrun.scheduler import Answer, Cancelled, LocalJobs, Submission
from clusterrun.scheduler.local import cancel as localcancel
from clusterrun.scheduler.local import dependency
from clusterrun.scheduler.local.devices import visible
from clusterrun.scheduler.local.jobfiles import (
    Job,
    check_root,
    is_id,
    is_starting,
    job_folders,
    read_job,
    read_status,
    write_job,
)
from clusterrun.scheduler.local.processes import SUPERVISOR, TOKEN
from clusterrun.scheduler.local.safe_files import Unreadable
from clusterrun.system import shell

START_TIMEOUT = 10.0
"""Seconds a new supervisor has for its first word."""
GRACE = 10.0
"""Seconds from TERM to KILL."""

# The supervisor runs isolated (-I) and without site packages (-S): nothing in the current folder or in PYTHON*
# variables takes the place of the standard library, and our package is loaded from where it stands, wherever that is.
_BOOT = """
import sys
from importlib import util
package, folder = sys.argv[1:]
spec = util.spec_from_file_location("clusterrun", package + "/__init__.py", submodule_search_locations=[package])
sys.modules["clusterrun"] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
from clusterrun.scheduler.local.supervisor import main
sys.exit(main(folder))
"""


class LocalScheduler:
    """Runs jobs on this machine; ``folder`` is the user's state folder, ``grace`` the seconds from TERM to KILL."""

    name = "local"

    def __init__(self, folder: Path, environ: Mapping[str, str], grace: float = GRACE) -> None:
        self._root = folder.absolute() / "local"
        self._environ = environ
        self._grace = grace

    @property
    def cluster(self) -> str:
        return LOCAL

    @property
    def slurm(self) -> None:
        return None

    @property
    def local(self) -> LocalJobs:
        return self

    @property
    def folder(self) -> Path:
        """The folder of the local jobs, which have a folder each."""
        return self._root

    @property
    def devices(self) -> tuple[str, ...]:
        """The CUDA devices that this machine shows to a job."""
        return visible(self._environ)

    def submit(self, submission: Submission) -> JobId:
        """Start a supervisor for the run and return once it has taken the job.

        Raises Refused for a dependency that means nothing here, a state folder that cannot be written or a supervisor
        that does not start, and Ambiguous where it did not answer in time.
        """
        for id in dependency.parse(submission.dependency).ids:
            if read_status(self._root / id) is None:
                raise Refused(
                    f"--dependency: there is no local job {id}", hint="`clusterrun list --all` shows your jobs"
                )
        try:
            folder = self._take_folder(submission.logs)
            write_job(folder, self._job(folder.name, submission))
        except OSError as error:
            raise Refused(
                f"cannot write {error.filename or self._root}: {error.strerror}",
                hint="make room or set CLUSTERRUN_STATE to a folder that you can write",
            ) from error
        self._start(folder, submission)
        return JobId(folder.name)

    def _take_folder(self, logs: Path) -> Path:
        """Make the folder of the next free id: mkdir lets one of many submitters have it.

        An id is not free where ``logs`` holds a log of it: the state folder may have been lost, and its jobs with it.
        """
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = max((int(folder.name[1:]) for folder in job_folders(self._root)), default=0)
        while True:
            number += 1
            folder = self._root / f"L{number}"
            if any(os.path.lexists(logs / f"train_{folder.name}.{stream}") for stream in ("out", "err")):
                continue
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder

    def _job(self, id: str, submission: Submission) -> Job:
        return Job(
            id=id,
            token=submission.token,
            run_id=submission.run_id,
            run_dir=str(submission.run_dir.absolute()),
            script=str(submission.script.absolute()),
            workdir=str(submission.workdir.absolute()),
            logs=str(submission.logs.absolute()),
            umask=submission.umask,
            nodes=submission.nodes,
            tasks_per_node=submission.tasks_per_node,
            gpus_per_node=submission.gpus_per_node,
            time_limit=submission.time_limit,
            dependency=submission.dependency,
            submitted=int(time.time()),
            grace=self._grace,
        )

    def _start(self, folder: Path, submission: Submission) -> None:
        """Start the supervisor and wait for its first word, which comes down a pipe that closes with its life."""
        # the job's environment travels in the supervisor's own, so that no secret in it is written to disk
        env = {k: v for k, v in submission.env.items() if k != TOKEN} | {SUPERVISOR: folder.name}
        package = str(Path(clusterrun.__file__).absolute().parent)
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, package, str(folder)]
        log = folder / "supervisor.log"
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                with os.fdopen(writer, "wb") as out, os.fdopen(handle, "ab") as err:
                    process = shell.start(argv, env=env, cwd=Path("/"), stdout=out, stderr=err, umask=0o077)
            except (OSError, CommandError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                said = error.said if isinstance(error, CommandError) else str(error)
                raise Refused("the job's supervisor could not be started", said=said) from error
            answered = bool(select.select([reader], [], [], START_TIMEOUT)[0])
            word = os.read(reader, 64) if answered else b""
        finally:
            os.close(reader)
        if not answered:
            raise Ambiguous(
                f"the supervisor of {folder.name} did not answer within {START_TIMEOUT:.0f} s",
                hint=f"`clusterrun submit --recover {submission.run_id}` tells whether it runs",
            )
        process.wait()  # it forked and left
        if not word:
            said = _tail(log)
            shutil.rmtree(folder, ignore_errors=True)
            raise Refused(
                "the job's supervisor ended before it had taken the job",
                said=said,
                hint="nothing was started; if the disk is full make room, then submit again",
            )

    def find(self, token: str, since: int = 0, script: Path = Path()) -> Answer:
        """The job that carries a token, ended or not; not complete while a job is just being made."""
        found, unclear = [], []
        try:
            for folder in job_folders(self._root):
                try:
                    job = read_job(folder)
                    taken = job is not None and (folder / "state.json").exists()
                except Unreadable:
                    job, taken = None, False
                if taken and job is not None and job.token == token and (status := read_status(folder)) is not None:
                    found.append(status)
                elif not taken and (job is None or job.token == token) and is_starting(folder):
                    unclear.append(folder.name)
        except OSError as error:
            return Answer((), False, f"cannot read {error.filename}: {error.strerror}")
        if unclear and not found:
            return Answer((), False, f"{', '.join(unclear)} is just being started")
        return Answer(found)

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """How this user's local jobs stand, or just those, each with its supervisor's life checked."""
        try:
            check_root(self._root)
            if ids is None:
                folders = list(job_folders(self._root))
            else:
                folders = [self._root / text for text in dict.fromkeys(str(id) for id in ids) if is_id(text)]
            statuses = [read_status(folder) for folder in folders]
        except OSError as error:
            return Answer((), False, f"cannot read {error.filename}: {error.strerror}")
        return Answer([status for status in statuses if status is not None])

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """Nothing beyond what ``query`` knows: the state files are kept."""
        return Answer()

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """End jobs and return once they have ended, or a little after the grace; each answer says what was found."""
        return localcancel.cancel(self._root, ids, self._grace)

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """Always refused: a local job waits for its devices or its dependency, and for nobody's word."""
        raise Refused(f"local job {id} cannot be held", hint=f"`clusterrun cancel {id}` ends it")


def _tail(path: Path) -> str:
    """The last 2,000 characters of a file, or nothing."""
    try:
        return path.read_text("utf-8", "backslashreplace")[-2000:].strip()
    except OSError:
        return ""
