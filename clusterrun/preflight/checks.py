"""Run all checks of a job side by side before it is queued. Nothing is written, and Slurm keeps no job."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterrun.base.errors import ClusterrunError, RequestError
from clusterrun.base.job import JobId, one_cluster
from clusterrun.jobspec.spec import Task
from clusterrun.preflight.findings import CannotCheck, Finding, refuse
from clusterrun.preflight.patience import Patience
from clusterrun.submit import checks
from clusterrun.submit.job_python import NotStarted

if TYPE_CHECKING:
    from clusterrun.free.snapshot import ClusterSnapshot
    from clusterrun.scheduler import Scheduler, SlurmCommands
    from clusterrun.scheduler.slurm.sbatch import Estimate, Start
    from clusterrun.submit.plan import Plan

T = TypeVar("T")
D = TypeVar("D")

#: Seconds for each command of a check. The job's Python has longer, since without it nothing can run: see Patience.
LIMIT = 2.0
#: Seconds for which the user's accounts and QOS may be known already; a job is refused by new answers only.
ACCOUNTS_AGE = 600.0


class _Report:
    """What the checks found, and what could not be checked and why."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.unchecked: list[str] = []

    def attempt(self, what: str, answer: Callable[[], T], otherwise: D) -> T | D:
        """Return an answer, or this if it cannot be had: no fault of a check may stop a submission."""
        try:
            return answer()
        except Exception as error:
            message = error.message if isinstance(error, ClusterrunError) else str(error) or type(error).__name__
            self.unchecked.append(f"{what} ({message})")
            return otherwise

    def add(self, what: str, judge: Callable[[], list[Finding]]) -> None:
        """Add what a check found. Raises RequestError if the job can never run."""
        self.findings += self.attempt(what, judge, [])
        refuse(self.findings)

    def lines(self) -> list[str]:
        lines = [f"warning: {finding}" for finding in self.findings]
        if self.unchecked:
            lines.append(f"not checked: {'; '.join(self.unchecked)}")
        return lines


def check(
    plan: Plan, scheduler: Scheduler, environ: Mapping[str, str], user: str, *,
    state: Path, say: Callable[[str], None], preload: bool, tasks: int = 1,
) -> list[str]:  # fmt: skip
    """Return lines for the user: warnings, what could not be checked, and the cost and expected start of a Slurm job.

    ``state`` is the user's state folder, ``say`` prints what is waited for. The cost is that of ``tasks`` such jobs.
    With ``preload`` submitit is imported at the same time, which takes as long as a check. Raises RequestError for a
    job that can never start or would fail at once.
    """
    spec, slurm = plan.spec, scheduler.slurm
    patience = Patience(state, spec.python, LIMIT)
    report = _Report()
    if spec.container_image:
        report.unchecked.append("Python and its packages (in the container)")
    with ThreadPoolExecutor(max_workers=6) as pool:
        packages = pool.submit(checks.check, spec, plan.script, environ, plan.python, plan.notify)
        settings = pool.submit(_check_settings, plan, environ, patience)
        answers = _ask_slurm(pool, slurm, plan, user) if slurm else {}
        if preload and slurm:
            from clusterrun.scheduler.slurm import executor  # noqa: F401
        _await(settings, patience, say)
    try:
        packages.result()
    except NotStarted as error:
        report.unchecked.append(f"Python, its packages and settings ({error.message})")
    report.add("settings", settings.result)
    if slurm is None:
        return report.lines()
    from clusterrun.preflight.summary import cost_line

    is_one_cluster = one_cluster(scheduler.cluster) == scheduler.cluster  # of several, sbatch chooses one
    cluster, start = _judge_answers(report, answers, slurm, plan, user, is_one_cluster=is_one_cluster)
    lines = report.lines()
    if lines and not start:
        return lines
    cost = cost_line(cluster, spec, start, tasks)
    return [*lines, cost] if lines else [f"OK: {cost}"]


def _check_settings(plan: Plan, environ: Mapping[str, str], patience: Patience) -> list[Finding]:
    """Return what is wrong with a built-in task's settings, if the job's Python may be started."""
    if plan.python.why_not or not isinstance(plan.spec.work, Task):
        return []
    from clusterrun.preflight.settings import check_settings

    return check_settings(plan.spec, plan.python, environ, plan.submission.workdir, patience)


def _judge_answers(
    report: _Report, answers: Mapping[str, Future[Any]], slurm: SlurmCommands, plan: Plan, user: str, *,
    is_one_cluster: bool,
) -> tuple[ClusterSnapshot | None, Start | None]:  # fmt: skip
    """Add what Slurm's answers mean for the job; return the cluster and the expected start, as far as they are known.

    The user's accounts and QOS may be out of date: Slurm is asked again before they refuse a job.
    """
    from clusterrun.free.snapshot import load_snapshot
    from clusterrun.scheduler.slurm.sbatch import Start

    cluster = report.attempt("the cluster's limits", answers["limits"].result, None)
    reservations: list[dict[str, str]] = report.attempt("reservations", answers["reservations"].result, [])
    estimate = report.attempt("the estimated start", answers["start"].result, None)

    def judge() -> list[Finding]:
        limits = _judge_limits(cluster if is_one_cluster else None, plan, reservations)
        return limits + _judge_refusal(cluster, plan, estimate)

    findings = report.attempt("Slurm's answers", judge, [])
    if cluster is not None and any(isinstance(finding, RequestError) for finding in findings):
        load_again = partial(load_snapshot, slurm, user, timeout=LIMIT, accounts_age=0.0)
        cluster = report.attempt("the cluster's limits", load_again, None)
        findings = report.attempt("Slurm's answers", judge, [])
    report.findings += findings
    report.add("the dependency", answers["dependency"].result)
    return cluster, estimate if isinstance(estimate, Start) else None


def _judge_limits(
    cluster: ClusterSnapshot | None, plan: Plan, reservations: Sequence[Mapping[str, str]]
) -> list[Finding]:  # fmt: skip
    if cluster is None:
        return []
    from clusterrun.preflight import limits

    return [
        *limits.judge_limits(cluster, plan.spec),
        *limits.judge_maintenance(cluster, plan.spec, reservations, time.time()),
        *limits.judge_shell(cluster, plan.spec, resource.getrlimit(resource.RLIMIT_CPU)[0]),
    ]


def _judge_refusal(cluster: ClusterSnapshot | None, plan: Plan, estimate: Estimate | None) -> list[Finding]:
    from clusterrun.preflight.limits import judge_refusal
    from clusterrun.scheduler.slurm.sbatch import No

    return [judge_refusal(cluster, plan.spec, estimate)] if isinstance(estimate, No) else []


def _await(settings: Future[list[Finding]], patience: Patience, say: Callable[[str], None]) -> None:
    """Wait for the check of the settings, and name a Python that takes longer than the other checks."""
    if patience.seconds > patience.least and not wait([settings], patience.least).done:
        say(f"waiting up to {patience.seconds:.0f} s for {patience.python} to check the settings")
        wait([settings])


def _ask_slurm(pool: ThreadPoolExecutor, slurm: SlurmCommands, plan: Plan, user: str) -> dict[str, Future[Any]]:
    """Start the queries: a snapshot of the cluster, the reservations, and the estimate of sbatch --test-only."""
    from clusterrun.free.snapshot import load_snapshot
    from clusterrun.scheduler.slurm.sbatch import No, estimate_start
    from clusterrun.scheduler.slurm.scontrol import parse_show, show_argv

    def reservations() -> list[dict[str, str]]:
        reply = slurm.answer(show_argv("reservation"), LIMIT)
        if reply.note:
            raise CannotCheck(reply.note)
        return parse_show(reply.text)

    def start() -> Estimate:
        estimate = estimate_start(slurm, plan.submission, plan.script, LIMIT)
        if isinstance(estimate, No) and estimate.is_silence:
            raise CannotCheck(estimate.words)
        return estimate

    return {
        "dependency": pool.submit(_find_forgotten, slurm, plan.spec.directive("dependency")),
        "limits": pool.submit(load_snapshot, slurm, user, timeout=LIMIT, accounts_age=ACCOUNTS_AGE),
        "reservations": pool.submit(reservations),
        "start": pool.submit(start),
    }


def _find_forgotten(slurm: SlurmCommands, dependency: str) -> list[Finding]:
    """Warn of the jobs in a dependency that Slurm does not know: it takes such a condition as met."""
    from clusterrun.scheduler.slurm.squeue import parse_squeue, squeue_argv

    numbers = dict.fromkeys(re.findall(r":(\d{1,18})", dependency))
    if not numbers:
        return []
    reply = slurm.answer(squeue_argv([*map(JobId, numbers)]), LIMIT)
    if reply.note and "Invalid job id" not in reply.note:
        raise CannotCheck(reply.note)
    in_queue = {job.id.base for job in parse_squeue(reply.text)}
    forgotten = [number for number in numbers if number not in in_queue]
    if not forgotten:
        return []
    unknown = f"Slurm does not know job {', '.join(forgotten)} (any more), and may start this job at once"
    return [f"--dependency {dependency}: {unknown}; --after-ok refuses a job that may have failed"]
