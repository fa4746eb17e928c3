"""Explain the limit that blocks a job, and find the QOS, accounts and partitions whose limits would not. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product

from clusterrun.base.units import format_duration, format_tres, plural
from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.reasons import Limit, Starts
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.why.pending.facts import Finding, PendingFacts

_SHOWN = 5
#: Limits on the number of running jobs, and of pending and running jobs.
_JOBS = {"GrpJobs", "MaxJobs", "MaxJobsPU", "MaxJobsPA"}
_QUEUED_JOBS = {"GrpSubmitJobs", "MaxSubmitJobs", "MaxSubmitJobsPU", "MaxSubmitJobsPA"}
#: what a limit on jobs counts: noun, what follows it, and their state
_COUNTED = {
    **dict.fromkeys(_JOBS, ("running job", "", "running")),
    **dict.fromkeys(_QUEUED_JOBS, ("job", " pending or running", "pending or running")),
}
_MINUTES = {"GrpTRESMins", "GrpTRESRunMins", "MaxTRESMinsPJ", "MaxTRESRunMinsPA", "MaxTRESRunMinsPU"}
_WALL = {"MaxWallPJ", "GrpWall"}
#: Limits on each job, of which nothing is in use.
_PER_JOB = {"MaxTRESPJ", "MaxTRESPN", "MaxTRESMinsPJ", "MinTRESPJ", "MaxWallPJ"}
#: Limits that block a job even if no other runs: slurmctld's name and sacctmgr's.
_CAPS = tuple(Limit(owner="qos", field=field, setting=setting) for field, setting in (
    ("MaxWallPJ", "MaxWall"), ("MaxTRESPJ", "MaxTRESPerJob"), ("MaxTRESPN", "MaxTRESPerNode"),
    ("MaxTRESPU", "MaxTRESPerUser"), ("MaxTRESPA", "MaxTRESPerAccount"), ("GrpTRES", "GrpTRES"),
))  # fmt: skip
#: States of jobs that have resources.
_STARTED = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"})
#: scontrol's key and the noun for the owner of a limit, and where the limit may be set too.
_OWNERS = {"qos": ("QOS", "QOS", ""), "association": ("Account", "account", " or its parent accounts")}


@dataclass(frozen=True, slots=True)
class SetLimit:
    """The value that a scope sets for a limit, how much of it is used, and what the job requests, in one unit.

    ``used`` is None if unknown and for a limit on each job, ``wants`` if unknown and for a limit that counts jobs.
    """

    limit: Limit
    scope: LimitScope
    tres: str
    value: float
    used: float | None
    wants: float | None

    @property
    def is_per_job(self) -> bool:
        return self.limit.field in _PER_JOB

    @property
    def is_too_small(self) -> bool:
        """Return whether the request alone exceeds the limit."""
        return self.wants is not None and self.wants > self.value

    @property
    def blocks(self) -> bool:
        """Return whether the limit blocks the job now."""
        if self.limit.least:
            return self.wants is not None and self.wants < self.value
        adds = 1.0 if self.wants is None else self.wants
        return (self.used or 0.0) + adds > self.value

    def format(self, amount: float) -> str:
        """Return an amount with its unit."""
        if self.limit.field in _COUNTED:
            noun, after, _ = _COUNTED[self.limit.field]
            return f"{plural(int(amount), noun)}{after}"
        if self.limit.field in _WALL:
            return format_duration(amount * 60)
        if self.limit.field in _MINUTES:
            return f"{amount:.10g} minutes of {self.tres}"
        return format_tres(self.tres, amount)

    def format_use(self, used: float) -> str:
        """Return how much of the limit is used."""
        if self.limit.field in _COUNTED:
            _, _, state = _COUNTED[self.limit.field]
            return f"{int(used)} {state} now"
        is_total = self.limit.field in ("GrpTRESMins", "GrpWall")
        return f"{self.format(used)} {'used so far' if is_total else 'in use'}"


def _set_limits(facts: PendingFacts, limits: Iterable[Limit], scopes: Iterable[LimitScope]) -> list[SetLimit]:
    """Return the values that the scopes set for these limits, scope by scope."""
    values = []
    for scope, limit in product(scopes, limits):
        for tres, value, in_use in scope.bounds(limit.field, limit.tres):
            wants = _requested(facts, limit.field, tres)
            used = None if limit.field in _PER_JOB else in_use
            if value is not None:
                values.append(SetLimit(limit, scope, tres, value, used, wants))
    return values


def _requested(facts: PendingFacts, field: str, tres: str) -> float | None:
    """Return what the job requests in the unit of a limit; None if unknown, or if the limit counts jobs."""
    minutes = None if facts.time_limit is None else facts.time_limit / 60
    amount = facts.requested.get(tres)
    if field in _WALL:
        return minutes
    if amount is None or field not in (*_MINUTES, "MaxTRESPN"):
        return amount
    if field == "MaxTRESPN":
        return amount / max(1.0, facts.requested.get("node", 1.0))
    return None if minutes is None else amount * minutes


def limit_evidence(facts: PendingFacts) -> Finding:
    """Return the evidence on the limit that the reason names."""
    limit = facts.limit
    assert limit is not None
    key, noun, above = _OWNERS[limit.owner]
    if facts.scopes is None:
        return Finding(unseen=(f"the limit {limit.setting} of the job's {limit.owner.replace('qos', 'QOS')}",))
    values = _set_limits(facts, (limit,), _scopes_of(facts, limit))
    if not values:
        name = f"{noun} {facts.job.get(key, '?')}{above}"
        return Finding(unseen=(f"the limit {limit.setting} of {name} (not visible to you)",))
    blocking = [value for value in values if value.blocks]
    found = Finding()
    for value in blocking or values:
        found += _describe(facts, value)
    return found + _alternatives(facts, limit, found)


def _scopes_of(facts: PendingFacts, limit: Limit) -> list[LimitScope]:
    """Return the scopes that may set the limit: the QOS of job and partition, or the association and its parents."""
    if limit.owner == "association":
        return _of_accounts(facts, facts.own_accounts)
    kind = {"PU": "qos user", "PA": "qos account"}.get(limit.field[-2:], "qos")
    return [scope for scope in _of_qos(facts, facts.own_qos) if scope.kind == kind]


def _describe(facts: PendingFacts, value: SetLimit) -> Finding:
    """Describe a limit, its use and the request, with a command that makes the request fit."""
    verb = "requires at least" if value.limit.least else "allows"
    line = f"{_scope_name(value.scope)} {verb} {value.format(value.value)}{_per(value)} ({value.limit.setting})"
    if value.used is not None:
        line += f"; {value.format_use(value.used)}"
    found = Finding((line,), _actions(facts, value))
    if value.wants is not None:
        found += Finding((f"this job requests {value.format(value.wants)}",))
    if value.is_per_job:
        return found
    if value.is_too_small:
        never = "this request alone exceeds the limit: the job cannot start even after all other jobs have ended"
        found += Finding((never,), starts=Starts.YOU)
    return found if facts.queue is None else found + Finding((_describe_users(facts, value),))


def _scope_name(scope: LimitScope) -> str:
    if scope.kind != "association":
        return f"QOS {scope.qos}"
    return f"user {scope.user} in account {scope.account}" if scope.user else f"account {scope.account}"


def _per(value: SetLimit) -> str:
    """Return `` per node``, `` per user``, `` per account`` or `` per job``; empty if all of them share the limit."""
    if value.limit.field == "MaxTRESPN":
        return " per node"
    if value.is_per_job:
        return " per job"
    return {"qos user": " per user", "qos account": " per account"}.get(value.scope.kind, "")


def _actions(facts: PendingFacts, value: SetLimit) -> tuple[str, ...]:
    """Return commands with known values: a time limit that fits, fewer nodes."""
    field, amount = value.limit.field, facts.requested.get(value.tres)
    if field == "MaxWallPJ":
        return (facts.update("TimeLimit", format_duration(value.value * 60)),)
    if field == "MaxTRESMinsPJ" and amount:
        return (facts.update("TimeLimit", format_duration(value.value / amount * 60)),)
    if field == "MaxTRESPJ" and value.tres == "node":
        return (facts.change_nodes(int(value.value)),)
    return ()


def _describe_users(facts: PendingFacts, value: SetLimit) -> str:
    """Return the running jobs that use the limit, largest use first."""
    rows = [row for row in facts.rows if _counts(row, value, facts)]
    if not rows:
        return "no job that you can see counts toward this limit"
    rows.sort(key=lambda row: (-row.holds(value.tres), row.raw))
    shown = "; ".join(_describe_user(row, facts, value.tres) for row in rows[:_SHOWN])
    if len(rows) > _SHOWN:
        shown += f" and {plural(len(rows) - _SHOWN, 'more job')}"
    return f"counted toward this limit: {shown}"


def _counts(row: Queued, value: SetLimit, facts: PendingFacts) -> bool:
    """Return whether another job of the queue counts toward the limit."""
    states = _STARTED | {"PENDING"} if value.limit.field in _QUEUED_JOBS else _STARTED
    if row.state not in states or row.id == facts.id:
        return False
    if value.tres and not row.holds(value.tres):
        return False
    return _shares(row, value.scope, facts)


def _shares(row: Queued, scope: LimitScope, facts: PendingFacts) -> bool:
    if scope.kind == "association":
        return row.account in facts.own_accounts and scope.user in ("", row.user)
    if scope.kind == "qos user" and row.user != facts.user:
        return False
    return row.qos == scope.qos and scope.account in ("", row.account)


def _describe_user(row: Queued, facts: PendingFacts, tres: str) -> str:
    whose = "" if row.user == facts.user else f" of {row.user}"
    details = [row.state]
    if row.state == "RUNNING" and row.left is not None:
        details = [f"ends within {format_duration(row.left)}"]
    if tres:
        details.insert(0, format_tres(tres, row.holds(tres)))
    return f"job {row.id}{whose} ({', '.join(details)})"


def _alternatives(facts: PendingFacts, limit: Limit, found: Finding) -> Finding:
    """Return the user's other QOS or accounts to which the job can be moved."""
    key, noun, _ = _OWNERS[limit.owner]
    targets = other_targets(facts, limit.owner)
    closed, commands = [], []
    for name, why in targets.items():
        if why:
            closed.append(f"{noun} {name}, which allows only {why}")
        else:
            commands.append(facts.update(key, name))
    commands = commands[:_SHOWN]
    if targets and not found.do:
        step = _step_without_move(facts, limit, found)
        commands.insert(0, f"{step}, or use another {noun}:" if commands else step)
    return Finding((f"ruled out: {'; '.join(closed[:_SHOWN])}",) if closed else (), tuple(commands))


def _step_without_move(facts: PendingFacts, limit: Limit, found: Finding) -> str:
    """Return what helps a job that stays in its QOS and account."""
    assert facts.reason is not None
    starts = found.starts or facts.reason.starts
    if starts is Starts.ALONE:
        return "wait for the jobs that count toward this limit to end"
    if starts is Starts.ADMIN:
        return "ask an administrator to raise the limit"
    return f"request {'more' if limit.least else 'less'} (run `clusterrun cancel {facts.id}`, then submit again)"


def other_targets(facts: PendingFacts, owner: str) -> dict[str, str]:
    """Return the user's other accounts, or other QOS in the job's account (``qos``), each with its blocking limit.

    That is the first limit that the job exceeds there even if no other job runs, as ``10:00 (MaxWall)``; "" if none is
    known. The limits of a partition's QOS override those of the job's QOS, and these override those of the account
    (resource_limits.html, hierarchy).
    """
    names: dict[str, None] = {}
    for row in facts.associations or ():
        if owner == "association":
            names[row.account] = None
        elif row.account == facts.account:
            names |= dict.fromkeys(row.qos)
    own, above, scopes_of = facts.job.get("QOS", ""), facts.partition_qos, _of_qos
    if owner == "association":
        own, above, scopes_of = facts.account, facts.own_qos, _of_accounts
    names.pop(own, None)
    return {name: _blocking_limit(facts, scopes_of(facts, [name]), _of_qos(facts, above)) for name in names}


def limit_of_partition_qos(facts: PendingFacts, qos: str) -> str:
    """Return the first limit of another partition's QOS that the job exceeds, as in :func:`other_targets`."""
    return _blocking_limit(facts, _of_qos(facts, [qos]), ())


def _of_accounts(facts: PendingFacts, names: Collection[str]) -> list[LimitScope]:
    return [scope for scope in facts.own_scopes if scope.kind == "association" and scope.account in names]


def _of_qos(facts: PendingFacts, names: Collection[str]) -> list[LimitScope]:
    """Return these QOS and the shares of the job's user and account in them; an association has no QOS."""
    named = set(names) - {""}
    return [scope for scope in facts.own_scopes if scope.qos in named and scope.account in ("", facts.account)]


def _blocking_limit(facts: PendingFacts, scopes: Iterable[LimitScope], above: Iterable[LimitScope]) -> str:
    """Return the first limit of the scopes that the job exceeds, of those that the scopes ``above`` do not set."""
    overridden = {(value.limit, value.tres) for value in _set_limits(facts, _CAPS, above)}
    for value in _set_limits(facts, _CAPS, scopes):
        if value.is_too_small and (value.limit, value.tres) not in overridden:
            return f"{value.format(value.value)} ({value.limit.setting})"
    return ""
