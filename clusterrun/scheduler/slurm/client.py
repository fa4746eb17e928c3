"""The Slurm scheduler. It runs one sbatch per submission, one squeue for all jobs, one sacct for jobs that left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from clusterrun.base.decode import Damaged, parse_object
from clusterrun.base.errors import Ambiguous, CommandError, NoScheduler, Refused, SchedulerError
from clusterrun.base.job import JobId, JobStatus, carries
from clusterrun.run_folder import safe_files
from clusterrun.scheduler import Answer, Cancelled, ClusterFacts, Reply, SlurmCommands, Submission
from clusterrun.scheduler.slurm import sacct, scontrol, squeue
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.scheduler.slurm.scontrol import hold_argv, parse_cluster_facts, parse_hold
from clusterrun.scheduler.slurm.values import short
from clusterrun.system import shell
from clusterrun.system.processes import host_name

Run = Callable[..., shell.Completed]

#: scontrol's messages if there is no slurm.conf at all (22.05, 24.11): Slurm is installed, but there is no cluster.
_NO_CONFIGURATION = (
    "configuration source",
    "unable to status file",
    "Unable to process configuration file",
    "error parsing",
)
#: Seconds for which a squeue that failed is not repeated: a command that queries twice would hang twice as long.
SILENT_FOR = 2.0
_FACTS_FOR = 86_400  # seconds for which a cluster's facts are not queried again
_SCANCEL_IDS = 100  # of one scancel


def detect(environ: Mapping[str, str], cache: Path) -> ClusterFacts | None:
    """Return the cluster that this shell is configured for, None if there is none.

    The facts are cached for a day, so that not every command queries a busy controller. A controller that is down is
    still a cluster.
    """
    if not _has_program("sbatch", environ):
        return None
    path = cache / "clusters" / f"{_configuration(environ)}.json"
    cached = _cached_facts(path)
    if cached is not None and time.time() - path.stat().st_mtime < _FACTS_FOR:
        return cached
    facts_if_silent = cached or ClusterFacts("", accounting=False, gpus=False)
    try:
        done = shell.run(["scontrol", "show", "config"], env=shell.query_environment(environ))
    except CommandError:
        return facts_if_silent
    if done.status != 0:
        has_no_cluster = any(message in done.stderr for message in _NO_CONFIGURATION)
        return None if has_no_cluster else facts_if_silent
    facts = parse_cluster_facts(done.stdout)
    with contextlib.suppress(OSError):  # a cache
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(facts._asdict()))
    return facts


def _has_program(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a program is on PATH: shutil.which does the same, but loads the archive formats too."""
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    paths = [Path(folder, name) for folder in folders]
    return any(os.access(path, os.X_OK) and path.is_file() for path in paths)


class SlurmScheduler:
    """Slurm as a :class:`clusterrun.scheduler.Scheduler`.

    ``run`` is :func:`clusterrun.system.shell.run` or a replacement. ``calls`` counts the commands by name. ``cache`` is
    the user's state folder; the default keeps nothing. Accounting is queried at most every ``accounting_interval``
    seconds of ``now``.
    """

    name = "slurm"

    def __init__(
        self, facts: ClusterFacts, environ: Mapping[str, str], *, run: Run = shell.run, cache: Path = Path(os.devnull),
        accounting_interval: float = 0.0, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.facts = facts
        self._query_env = shell.query_environment(environ)
        self._run = run
        self._where = environ.get("SLURM_CLUSTERS", "")
        self._configuration = _configuration(environ)
        self.queue_cache = QueueCache(cache / "clusters", self._configuration, self.cluster)
        self._recent = cache / "clusters"
        self._silence: tuple[float, Answer] | None = None
        self.calls: dict[str, int] = {}
        self._accounting_interval, self._now = accounting_interval, now
        self._accounted: tuple[float, frozenset[JobId], Answer] | None = None

    @property
    def cluster(self) -> str:
        return self._where or self.facts.cluster

    @property
    def slurm(self) -> SlurmCommands:
        return self

    @property
    def local(self) -> None:
        return None

    def submit(self, submission: Submission) -> JobId:
        """Run sbatch once. Raises Refused, NotDelivered, Ambiguous, or NoScheduler if sbatch cannot be started."""
        from clusterrun.scheduler.slurm.executor import TrainExecutor

        found: list[JobId] = []

        def send(argv: Sequence[str]) -> str:
            found.append(self._sbatch(argv, submission))
            return str(found[0])

        TrainExecutor(submission, send).submit_script()
        return found[0]

    def find(self, token: str, since: int, script: Path) -> Answer:
        """Return the user's jobs that carry the token or run the script: from squeue, else from sacct."""
        live = self.query()
        mine = [job for job in live.jobs if carries(job, token, script)]
        if mine or not live.complete or not self.facts.accounting:
            return Answer(mine, live.complete, live.note)
        past = self._query_jobs(sacct.sacct_argv((), since - 3600, self._where), sacct.parse_sacct)
        # the controller has answered, so the answer is complete even if accounting fails; an open row in accounting is
        # left over from a controller crash, or the job would be in the queue
        return Answer([job for job in past.jobs if carries(job, token, script) and job.is_over])

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """Return all jobs of the user, or those ids, from one squeue; if it fails, also the last known jobs."""
        begun = self.queue_cache.now()

        def parse(stdout: str) -> list[JobStatus]:
            if ids is None:
                self.queue_cache.save(stdout, begun)
            return squeue.parse_squeue(stdout)

        if self._silence is not None and time.monotonic() - self._silence[0] < SILENT_FOR:
            return self._silence[1]
        answer = self._query_jobs(squeue.squeue_argv(ids, self._where), parse)
        if answer.complete:
            return answer
        last = self.queue_cache.load_newest()
        if last is not None:
            answer = answer._replace(last=last[0], last_at=last[1])
        self._silence = time.monotonic(), answer
        return answer

    def cached_query(
        self, ids: Collection[JobId], since: float, *, sleep: Callable[[float], None] = time.sleep
    ) -> tuple[Answer, float]:
        """Return the user's jobs and the age of the answer in seconds; see :meth:`QueueCache.query`."""
        return self.queue_cache.query(self.query, ids, since, sleep)

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """Return those ids from one sacct; complete and empty if the cluster has no accounting.

        Within the minimum interval the last answer is returned; it is not complete for ids that it was not about.
        """
        if not ids or not self.facts.accounting:
            return Answer(no_accounting=not self.facts.accounting)
        now = self._now()
        if self._accounted is not None and now - self._accounted[0] < self._accounting_interval:
            _, known, past = self._accounted
            note = f"accounting is queried at most once every {self._accounting_interval:.0f} s"
            return past if known.issuperset(ids) else Answer(past.jobs, complete=False, note=note)
        past = self._query_jobs(sacct.sacct_argv(ids, since, self._where), sacct.parse_sacct)
        self._accounted = now, frozenset(ids), past
        return past

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """Run one scancel per hundred ids. Raises SchedulerError if Slurm does not respond.

        With more ids than a hundred the error is the result of those that the failed scancel was about.
        """
        if len(ids) <= _SCANCEL_IDS:
            return self._scancel(ids)
        results: list[Cancelled] = []
        for first in range(0, len(ids), _SCANCEL_IDS):
            some = ids[first : first + _SCANCEL_IDS]
            try:
                results += self._scancel(some)
            except SchedulerError as error:
                results += [
                    Cancelled(i, False, error.message, may_be=isinstance(error, CommandError) and error.timed_out)
                    for i in some
                ]
        return results

    def _scancel(self, ids: Sequence[JobId]) -> list[Cancelled]:
        done = self._call(scontrol.scancel_argv(ids, self._where))
        refused = scontrol.parse_scancel(done.stderr)
        if done.status != 0 and not refused:
            jobs = "the job was" if len(ids) == 1 else "the jobs were"
            raise SchedulerError(
                f"scancel failed; {jobs} not cancelled",
                detail=done.stderr.strip(),
                hint="run `scontrol ping`, then try again",
            )
        self.queue_cache.invalidate()
        return [Cancelled(i, str(i) not in refused, refused.get(str(i), "")) for i in ids]

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """Run one scontrol. Raises Refused with its message, SchedulerError if it does not respond."""
        done = self._call(hold_argv(id, release=release, cluster=self._where))
        if done.status != 0:
            word = "release" if release else "hold"
            raise Refused(f"Slurm did not {word} job {id}", detail=parse_hold(done.stderr))
        self.queue_cache.invalidate()

    def answer(self, argv: Sequence[str], timeout: float = shell.SLURM_TIMEOUT, **options: object) -> Reply:
        """Run a Slurm command that only reads, and return its output or its error. Never raises.

        Standard error is part of the reply: sbatch --test-only answers there.
        """
        try:
            done = self._call(argv, timeout=timeout, **options)
        except CommandError as error:
            detail = _last_line(error.detail)
            return Reply("", f"{argv[0]}: {detail}" if detail else error.message)
        if done.status != 0:
            return Reply(done.stdout, f"{argv[0]}: {_last_line(done.stderr) or f'status {done.status}'}", done.stderr)
        return Reply(done.stdout, "", done.stderr)

    def recent_answer(self, argv: Sequence[str], timeout: float, max_age: float) -> Reply:
        """As ``answer``, or the answer that a process of this user got at most ``max_age`` seconds ago.

        Errors are not kept.
        """
        where = re.sub(r"[^A-Za-z0-9_-]+", "_", f"{self._configuration}.{self.facts.cluster}.{host_name()}")[-150:]
        command = zlib.crc32("\0".join(argv).encode("utf-8", "surrogateescape"))
        path = self._recent / f"{where}.{command:08x}.answer"
        if (text := load_answer(path, max_age)) is not None:
            return Reply(text)
        reply = self.answer(argv, timeout)
        if not reply.note:
            with contextlib.suppress(OSError):  # a cache
                self._recent.mkdir(mode=0o700, parents=True, exist_ok=True)
                safe_files.write(path, reply.text.encode("utf-8", "surrogateescape"))
        return reply

    def _sbatch(self, argv: Sequence[str], submission: Submission) -> JobId:
        from clusterrun.scheduler.slurm import sbatch  # only a submission needs it

        try:
            done = self._call(argv, env=submission.env, umask=submission.umask, cwd=submission.workdir)
        except CommandError as error:
            if error.timed_out:
                raise Ambiguous(
                    "sbatch timed out", detail=error.detail, busy=sbatch.busy_sentence(error.detail)
                ) from error
            raise NoScheduler("cannot run sbatch", detail=error.detail, hint="use --scheduler local") from error
        if done.status != 0:
            raise sbatch.sbatch_error(done)
        job, alone = sbatch.sbatch_id(done.stdout)
        if job is None or not alone:
            # sbatch succeeded, but a banner hides the id: the token finds the job
            raise Ambiguous(
                "sbatch succeeded, but its output does not show the job id",
                detail=(done.stdout + done.stderr).strip()[-500:],
                accepted=True,
            )
        return job

    def _query_jobs(self, argv: Sequence[str], parse: Callable[[str], list[JobStatus]]) -> Answer:
        reply = self.answer(argv)
        if not reply.note:
            return Answer(parse(reply.text))
        if "Invalid job id specified" in reply.stderr:  # squeue was given one id, and does not know it
            return Answer()
        return Answer(complete=False, note=reply.note)

    def _call(self, argv: Sequence[str], **kwargs: object) -> shell.Completed:
        self.calls[argv[0]] = self.calls.get(argv[0], 0) + 1
        return self._run(argv, **({"env": self._query_env} | kwargs))


def load_answer(path: Path, max_age: float) -> str | None:
    """Return a command's answer of the last ``max_age`` seconds from its file, else None."""
    try:
        age = time.time() - path.stat().st_mtime
        return safe_files.read_bytes(path).decode() if 0 <= age < max_age else None
    except (OSError, ValueError):
        return None


def _last_line(text: str) -> str:
    return short(next((line.strip() for line in reversed(text.splitlines()) if line.strip()), ""))


def _configuration(environ: Mapping[str, str]) -> str:
    """Return the Slurm configuration that a shell uses, as a file name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", environ.get("SLURM_CONF", "default") + environ.get("SLURM_CLUSTERS", ""))[
        -100:
    ]


def _cached_facts(path: Path) -> ClusterFacts | None:
    try:
        match parse_object(path.read_bytes()):
            case {"cluster": str(cluster), "accounting": bool(accounting), "gpus": bool(gpus)}:
                return ClusterFacts(cluster, accounting, gpus)
    except (OSError, Damaged):
        pass
    return None
