"""Slurm, by its own commands: one sbatch to submit, one squeue for all jobs, one sacct for what has left."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.errors import Ambiguous, CommandError, NoScheduler, Refused, SchedulerError
from clusterrun.job import JobId, JobStatus
from clusterrun.records.ownership import carries
from clusterrun.scheduler import Answer, Cancelled, Submission
from clusterrun.scheduler.slurm import sacct, sbatch, scontrol, squeue
from clusterrun.scheduler.slurm.cache import QueueCache
from clusterrun.scheduler.slurm.scontrol import ClusterFacts, hold_argv, parse_cluster_facts, parse_hold
from clusterrun.system import shell

if TYPE_CHECKING:
    from clusterrun.scheduler.slurm.sbatch import Estimate

Run = Callable[..., shell.Completed]

#: scontrol's words where there is no slurm.conf at all (22.05, 24.11): the programs are there, a cluster is not.
_NO_CONFIGURATION = (
    "configuration source",
    "unable to status file",
    "Unable to process configuration file",
    "error parsing",
)


#: Seconds for which a squeue that failed is not repeated: a command that asks twice would hang twice as long.
SILENT_FOR = 2.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A command's standard output; ``note`` says in one line why it failed, empty where it did not."""

    text: str
    note: str = ""
    stderr: str = ""


def detect(environ: Mapping[str, str], cache: Path) -> ClusterFacts | None:
    """The cluster that this shell is configured for, None where there is none.

    The answer is kept for a day, so that a busy controller is not asked for it at every command, and a
    controller that is down is still Slurm, never taken for none.
    """
    if shutil.which("sbatch", path=environ.get("PATH")) is None:
        return None
    path = cache / "clusters" / f"{_configuration(environ)}.json"
    kept = _kept(path)
    if kept is not None and time.time() - path.stat().st_mtime < 86_400:
        return kept
    try:
        done = shell.run(["scontrol", "show", "config"], env=shell.query_environment(environ))
    except CommandError:
        return kept or ClusterFacts("", accounting=False, gpus=False)
    if done.status != 0:
        if any(words in done.stderr for words in _NO_CONFIGURATION):
            return None
        return kept or ClusterFacts("", accounting=False, gpus=False)
    facts = parse_cluster_facts(done.stdout)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(facts)))
    except OSError:
        pass  # a cache
    return facts


class SlurmScheduler:
    """Slurm as one :class:`clusterrun.scheduler.Scheduler`.

    ``run`` is :func:`clusterrun.system.shell.run` or a stand-in for it. ``calls`` counts the commands run by name:
    promise slurmctld can be checked. In the folder ``cache`` the last answer about my jobs is kept (``kept``).
    """

    name = "slurm"

    def __init__(
        self, facts: ClusterFacts, environ: Mapping[str, str], *, run: Run = shell.run, cache: Path | None = None
    ) -> None:
        self.facts = facts
        self._query_env = shell.query_environment(environ)
        self._run = run
        self._where = environ.get("SLURM_CLUSTERS", "")
        self.kept = QueueCache(cache / "clusters", _configuration(environ), self.cluster) if cache else None
        self._silence: tuple[float, Answer] | None = None
        self.calls: dict[str, int] = {}

    @property
    def cluster(self) -> str:
        return self._where or self.facts.cluster

    def submit(self, submission: Submission) -> JobId:
        """Run sbatch once; raises Refused, NotDelivered, Ambiguous, or NoScheduler where sbatch is not there."""
        from clusterrun.scheduler.slurm.executor import TrainExecutor

        found: list[JobId] = []

        def send(argv: Sequence[str]) -> str:
            found.append(self._sbatch(argv, submission))
            return str(found[0])

        TrainExecutor(submission, send).submit_script()
        return found[0]

    def find(self, token: str, since: int, script: Path) -> Answer:
        """My jobs that carry a token or run that script: by squeue, then, for one that has come and gone, by sacct."""
        live = self.query()
        mine = [job for job in live.jobs if carries(job, token, script)]
        if mine or not live.complete or not self.facts.accounting:
            return Answer(mine, live.complete, live.note)
        past = self._ask(sacct.sacct_argv((), since - 3600, self._where), sacct.parse_sacct)
        # an accounting that does not answer is no reason to doubt the controller, which has answered; and a row that it
        # holds for open is one that a controller crash has left behind, or the job would be in the queue
        return Answer([job for job in past.jobs if carries(job, token, script) and job.is_over])

    def query(self, ids: Sequence[JobId] | None = None) -> Answer:
        """All of my jobs, or those ids, by one squeue; where it does not answer, what it last said of mine."""
        begun = self.kept.now() if self.kept is not None else 0.0

        def parse(said: str) -> list[JobStatus]:
            if ids is None and self.kept is not None:
                self.kept.keep(said, begun)
            return squeue.parse_squeue(said)

        if self._silence is not None and time.monotonic() - self._silence[0] < SILENT_FOR:
            return self._silence[1]
        answer = self._ask(squeue.squeue_argv(ids, self._where), parse)
        if answer.complete:
            return answer
        last = self.kept.last() if self.kept is not None else None
        if last is not None:
            answer = replace(answer, last=last[0], last_at=last[1])
        self._silence = time.monotonic(), answer
        return answer

    def account(self, ids: Sequence[JobId], since: int) -> Answer:
        """Those ids by one sacct; complete and empty where the cluster keeps no accounts."""
        if not ids or not self.facts.accounting:
            return Answer(none_kept=not self.facts.accounting)
        return self._ask(sacct.sacct_argv(ids, since, self._where), sacct.parse_sacct)

    def cancel(self, ids: Sequence[JobId]) -> Sequence[Cancelled]:
        """One scancel for a hundred ids; raises SchedulerError where Slurm did not answer."""
        results: list[Cancelled] = []
        for first in range(0, len(ids), 100):
            some = ids[first : first + 100]
            done = self._call(scontrol.scancel_argv(some, self._where))
            refused = scontrol.parse_scancel(done.stderr)
            if done.status != 0 and not refused:
                raise SchedulerError(
                    "Slurm did not cancel: scancel failed",
                    said=done.stderr.strip(),
                    hint="ask `scontrol ping`, then try again",
                )
            self._changed()
            results += [Cancelled(i, str(i) not in refused, refused.get(str(i), "")) for i in some]
        return results

    def estimate(self, submission: Submission, script: str, timeout: float = shell.SLURM_TIMEOUT) -> Estimate:
        """When Slurm would start that job; nothing is staged, and no job is made. Never raises."""
        from clusterrun.scheduler.slurm.sbatch import parse_test_only, test_only_argv

        # the job's environment and not that of a query: in --begin=16:00 the time is the user's own
        env = {**submission.env, "SLURM_TIME_FORMAT": "%s"}
        argv = test_only_argv(submission.argv)
        reply = self.answer(argv, timeout, env=env, cwd=submission.workdir, stdin=script)
        return parse_test_only(reply.stderr, reply.note)

    def hold(self, id: JobId, *, release: bool = False) -> None:
        """One scontrol; raises Refused with its words, SchedulerError where it did not answer."""
        done = self._call(hold_argv(id, release=release, cluster=self._where))
        if done.status != 0:
            word = "release" if release else "hold"
            raise Refused(f"Slurm did not {word} job {id}", said=parse_hold(done.stderr))
        self._changed()

    def answer(self, argv: Sequence[str], timeout: float = shell.SLURM_TIMEOUT, **how: object) -> Reply:
        """What a Slurm command that only reads says: its text, or why there is none. Never raises.

        ``argv`` comes from a pure function, as does what reads the text; both streams count, as sbatch --test-only
        answers on its standard error.
        """
        try:
            done = self._call(argv, timeout=timeout, **how)
        except CommandError as error:
            return Reply("", f"{argv[0]}: {_line(error.said) or error.message}")
        if done.status != 0:
            return Reply(done.stdout, f"{argv[0]}: {_line(done.stderr) or f'status {done.status}'}", done.stderr)
        return Reply(done.stdout, "", done.stderr)

    def _sbatch(self, argv: Sequence[str], submission: Submission) -> JobId:
        try:
            done = self._call(argv, env=submission.env, umask=submission.umask, cwd=submission.workdir)
        except CommandError as error:
            if error.timed_out:
                raise Ambiguous("sbatch did not answer in time", said=error.said) from error
            raise NoScheduler("sbatch could not be started", said=error.said, hint="use --scheduler local") from error
        if done.status != 0:
            raise sbatch.sbatch_error(done)
        job, alone = sbatch.sbatch_id(done.stdout)
        if job is None or not alone:
            # it said yes, in the middle of other words: the token tells which job is ours
            raise Ambiguous(
                "sbatch said yes, but not clearly which job it made",
                said=(done.stdout + done.stderr).strip()[-500:],
                accepted=True,
            )
        return job

    def _ask(self, argv: Sequence[str], parse: Callable[[str], list[JobStatus]]) -> Answer:
        try:
            done = self._call(argv)
        except CommandError as error:
            return Answer(complete=False, note=f"{argv[0]}: {said}" if (said := _line(error.said)) else error.message)
        if done.status != 0:
            if "Invalid job id specified" in done.stderr:  # how squeue says that it does not know the one id asked for
                return Answer()
            return Answer(complete=False, note=f"{argv[0]}: {_line(done.stderr)}")
        return Answer(parse(done.stdout))

    def _changed(self) -> None:
        if self.kept is not None:
            self.kept.outdate()

    def _call(self, argv: Sequence[str], **kwargs: object) -> shell.Completed:
        self.calls[argv[0]] = self.calls.get(argv[0], 0) + 1
        return self._run(argv, **({"env": self._query_env} | kwargs))


def _line(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")


def _configuration(environ: Mapping[str, str]) -> str:
    """The configuration of Slurm that a shell uses, as a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", environ.get("SLURM_CONF", "default") + environ.get("SLURM_CLUSTERS", ""))[
        -100:
    ]


def _kept(path: Path) -> ClusterFacts | None:
    try:
        return ClusterFacts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
