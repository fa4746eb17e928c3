"""Run all checks of a job side by side before it is queued. Nothing is written, and Slurm keeps no job."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from clusterrun.base.errors import ClusterrunError
from clusterrun.base.job import JobId
from clusterrun.jobspec.spec import Task
from clusterrun.preflight.findings import CannotCheck, Finding, refuse
from clusterrun.preflight.patience import Patience
from clusterrun.submit import checks
from clusterrun.submit.job_python import NotStarted

if TYPE_CHECKING:
    from clusterrun.free.snapshot import ClusterSnapshot
    from clusterrun.scheduler import Scheduler, SlurmCommands
    from clusterrun.submit.plan import Plan

T = TypeVar("T")

#: Seconds for each command of a check. The job's Python has longer, since without it nothing can run: see Patience.
LIMIT = 2.0
#: Seconds for which the user's accounts and QOS may be known already; a job is refused by new answers only.
ACCOUNTS_AGE = 600.0


def check(
    plan: Plan, scheduler: Scheduler, environ: Mapping[str, str], user: str, *,
    state: Path, say: Callable[[str], None], preload: bool, tasks: int = 1,
) -> list[str]:  # fmt: skip
    """Return lines for the user: warnings, what could not be checked, and the cost and expected start of a Slurm job.

    ``state`` is the user's state folder, ``say`` prints what is waited for. The cost is that of ``tasks`` such jobs.
    With ``preload`` submitit is imported at the same time, which takes as long as a check. Raises RequestError for a
    job that can never start or would fail at once.
    """
    spec, slurm, workdir = plan.spec, scheduler.slurm, plan.submission.workdir
    patience = Patience(state, spec.python, LIMIT)
    unchecked = ["Python and its packages (in the container)"] if spec.container_image else []

    def attempt(what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Exception as error:  # no fault of a check may stop a submission
            message = error.message if isinstance(error, ClusterrunError) else str(error) or type(error).__name__
            unchecked.append(f"{what} ({message})")
            return None

    def settings() -> list[Finding]:
        from clusterrun.preflight.settings import check_settings

        return check_settings(spec, plan.python, environ, workdir, patience)

    with ThreadPoolExecutor(max_workers=5) as pool:
        packages = pool.submit(checks.check, spec, plan.script, environ, plan.python, plan.notify)
        of_settings = pool.submit(settings) if isinstance(spec.work, Task) and not plan.python.why_not else None
        answers = _ask_slurm(pool, slurm, plan, user) if slurm is not None else {}
        if preload and slurm is not None:
            from clusterrun.scheduler.slurm import executor  # noqa: F401
        if of_settings:
            _await(of_settings, patience, say)
    try:
        packages.result()
    except NotStarted as error:
        unchecked.append(f"Python, its packages and settings ({error.message})")
    found = (attempt("settings", of_settings.result) if of_settings else None) or []
    refuse(found)
    if slurm is None:
        return _lines(found, unchecked)
    from clusterrun.preflight import limits
    from clusterrun.preflight.summary import cost_line
    from clusterrun.scheduler.slurm.sbatch import No, Start

    several = "," in scheduler.cluster or scheduler.cluster == "all"  # sbatch chooses one of them
    seen: ClusterSnapshot | None = attempt("the cluster's limits", answers["limits"].result)
    reservations = attempt("reservations", answers["reservations"].result) or []
    estimate = attempt("the estimated start", answers["start"].result)

    def judge() -> list[Finding]:
        judged = []
        if seen is not None and not several:
            judged = limits.judge_limits(seen, spec) + limits.judge_maintenance(seen, spec, reservations, time.time())
            judged += limits.judge_shell(seen, spec, resource.getrlimit(resource.RLIMIT_CPU)[0])
        return [*judged, limits.judge_refusal(seen, spec, estimate)] if isinstance(estimate, No) else judged

    judged = attempt("Slurm's answers", judge) or []
    if seen is not None and any(one.never for one in judged):
        from clusterrun.free.snapshot import load_snapshot

        seen = attempt("the cluster's limits", lambda: load_snapshot(slurm, user, timeout=LIMIT, accounts_age=0.0))
        judged = attempt("Slurm's answers", judge) or []
    found += [*judged, *(attempt("the dependency", answers["dependency"].result) or [])]
    refuse(found)
    start = estimate if isinstance(estimate, Start) else None
    lines = _lines(found, unchecked)
    return lines if lines and not start else [*lines, ("" if lines else "OK: ") + cost_line(seen, spec, start, tasks)]


def _await(settings: Future[list[Finding]], patience: Patience, say: Callable[[str], None]) -> None:
    """Wait for the check of the settings, and name a Python that takes longer than the other checks."""
    if patience.seconds > patience.least and not wait([settings], patience.least).done:
        say(f"waiting up to {patience.seconds:.0f} s for {patience.python} to check the settings")
        wait([settings])


def _ask_slurm(pool: ThreadPoolExecutor, slurm: SlurmCommands, plan: Plan, user: str) -> dict[str, Future[Any]]:
    """Start the queries: a snapshot of the cluster, the reservations, and the estimate of sbatch --test-only."""
    from clusterrun.free.snapshot import load_snapshot
    from clusterrun.scheduler.slurm.sbatch import Estimate, Silence, estimate_start
    from clusterrun.scheduler.slurm.scontrol import parse_show, show_argv

    def reservations() -> list[dict[str, str]]:
        reply = slurm.answer(show_argv("reservation"), LIMIT)
        if reply.note:
            raise CannotCheck(reply.note)
        return parse_show(reply.text)

    def start() -> Estimate:
        estimate = estimate_start(slurm, plan.submission, plan.script, LIMIT)
        if isinstance(estimate, Silence):
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

    ids = [JobId(number) for number in dict.fromkeys(re.findall(r":(\d{1,18})", dependency))]
    if not ids:
        return []
    reply = slurm.answer(squeue_argv(ids), LIMIT)
    if reply.note and "Invalid job id" not in reply.note:
        raise CannotCheck(reply.note)
    known = {job.id.base for job in parse_squeue(reply.text)}
    forgotten = ", ".join(job.raw for job in ids if job.raw not in known)
    text = f"--dependency {dependency}: Slurm does not know job {forgotten} (any more), and may start this job at once;"
    return [Finding(f"{text} --after-ok refuses a job that may have failed")] if forgotten else []


def _lines(found: list[Finding], unchecked: list[str]) -> list[str]:
    lines = [f"warning: {one.line}" for one in found]
    return [*lines, f"not checked: {'; '.join(unchecked)}"] if unchecked else lines
