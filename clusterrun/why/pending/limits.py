"""Explain the limit that blocks a job: its value, its use, the jobs that use it, the request. Pure."""

from __future__ import annotations

from clusterrun.base.units import format_duration, format_tres, plural
from clusterrun.scheduler.slurm.limits import LimitScope, LimitValue
from clusterrun.scheduler.slurm.reasons import Limit, Starts
from clusterrun.scheduler.slurm.squeue import Queued
from clusterrun.why.pending.facts import Finding, PendingFacts
from clusterrun.why.pending.limit_values import (
    QUEUED_JOBS,
    format_amount,
    format_use,
    is_per_job,
    requested_amount,
)
from clusterrun.why.pending.partition_rules import change_nodes_command
from clusterrun.why.pending.targets import other_targets

_SHOWN = 5


def limit_evidence(facts: PendingFacts) -> Finding:
    """Return the evidence on the limit that the reason names."""
    limit = facts.reason.limit if facts.reason else None
    if limit is None:
        return Finding()
    if facts.holders is None:
        return Finding(
            unseen=(f"the limit {limit.setting} of the job's {'QOS' if limit.owner == 'qos' else limit.owner}",)
        )
    hits = [(holder, bound) for holder in _holders(facts, limit) for bound in holder.bounds(limit.field, limit.tres)]
    hits = [(holder, bound) for holder, bound in hits if bound.limit is not None]
    if not hits:
        return Finding(unseen=(f"the limit {limit.setting} of {_names(facts, limit)} (not visible to you)",))
    tight = [(holder, bound) for holder, bound in hits if _exceeds(facts, limit, bound)] or hits
    found = Finding()
    for holder, bound in tight:
        found += _one(facts, limit, holder, bound)
    return found + _alternatives(facts, limit, found)


def _alternatives(facts: PendingFacts, limit: Limit, found: Finding) -> Finding:
    """Return the user's other QOS or accounts to which the job can be moved."""
    blocking = other_targets(facts, limit.owner)
    key, noun = ("QOS", "QOS") if limit.owner == "qos" else ("Account", "account")
    closed = [f"{noun} {name}, which allows only {why}" for name, why in blocking.items() if why]
    here = (f"ruled out: {'; '.join(closed[:_SHOWN])}",) if closed else ()
    names = [name for name, why in blocking.items() if not why][:_SHOWN]
    commands = tuple(f"scontrol update JobId={facts.id} {key}={name}" for name in names)
    if found.do or not (commands or closed):
        return Finding(here, commands)
    starts = found.starts or (facts.reason.starts if facts.reason else Starts.YOU)
    change = f"request {'more' if limit.least else 'less'} (run `clusterrun cancel {facts.id}`, then submit again)"
    wait = "wait for the jobs that count toward this limit to end"
    first = {Starts.ALONE: wait, Starts.ADMIN: "ask an administrator to raise the limit"}.get(starts, change)
    return Finding(here, (f"{first}, or use another {noun}:", *commands) if commands else (first,))


def _one(facts: PendingFacts, limit: Limit, holder: LimitScope, bound: LimitValue) -> Finding:
    assert bound.limit is not None
    verb = "requires at least" if limit.least else "allows"
    most = f"{format_amount(limit, bound, bound.limit)}{_per(holder, limit)}"
    line = f"{_scope_name(holder)} {verb} {most} ({limit.setting})"
    if bound.used is not None and not is_per_job(limit):
        line += f"; {format_use(limit, bound, bound.used)}"
    here = [line]
    wants = requested_amount(facts, limit, bound)
    if wants is not None:
        here.append(f"this job requests {format_amount(limit, bound, wants)}")
    alone = not is_per_job(limit) and wants is not None and wants > bound.limit
    if alone:
        here.append("this request alone exceeds the limit: the job cannot start even after all other jobs have ended")
    if not is_per_job(limit) and facts.queue is not None:
        here += _describe_users(facts, limit, holder, bound)
    return Finding(tuple(here), _actions(facts, limit, bound), starts=Starts.YOU if alone else None)


def _holders(facts: PendingFacts, limit: Limit) -> list[LimitScope]:
    """Return the scopes that may set the limit: the QOS of job and partition, or the association and its parents."""
    rows = facts.holders or ()
    if limit.owner == "association":
        here = ("", *facts.partition_names)
        mine = [row for row in rows if row.kind == "association" and row.user in ("", facts.user)]
        return [row for row in mine if row.partition in here and row.account in facts.own_accounts]
    kind = "qos user" if limit.field.endswith("PU") else "qos account" if limit.field.endswith("PA") else "qos"
    return [
        row for row in rows
        if row.kind == kind and row.qos in facts.own_qos
        and (kind != "qos user" or row.user in (facts.uid, facts.user))
        and (kind != "qos account" or row.account == facts.job.get("Account", ""))
    ]  # fmt: skip


def _names(facts: PendingFacts, limit: Limit) -> str:
    if limit.owner == "qos":
        return f"QOS {facts.job.get('QOS', '?')}"
    return f"account {facts.job.get('Account', '?')} or its parent accounts"


def _scope_name(holder: LimitScope) -> str:
    if holder.kind != "association":
        return f"QOS {holder.qos}"
    return f"user {holder.user} in account {holder.account}" if holder.user else f"account {holder.account}"


def _per(holder: LimitScope, limit: Limit) -> str:
    """Return `` per node``, `` per user``, `` per account`` or `` per job``; empty if all of them share the limit."""
    kind = {"qos user": "user", "qos account": "account"}.get(holder.kind, "job" if is_per_job(limit) else "")
    if limit.field == "MaxTRESPN":
        kind = "node"
    return f" per {kind}" if kind else ""


def _exceeds(facts: PendingFacts, limit: Limit, bound: LimitValue) -> bool:
    """Return whether this limit blocks the job."""
    assert bound.limit is not None
    wants = requested_amount(facts, limit, bound)
    if limit.least:
        return wants is not None and wants < bound.limit
    used = 0.0 if is_per_job(limit) else bound.used or 0.0
    return used + (wants if wants is not None else 1.0) > bound.limit


def _describe_users(facts: PendingFacts, limit: Limit, holder: LimitScope, bound: LimitValue) -> list[str]:
    """Return the running jobs that use the limit, largest use first."""
    live = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", *(("PENDING",) if limit.field in QUEUED_JOBS else ()))
    rows = [row for row in facts.queue or () if row.state in live and row.id != facts.id]
    rows = [row for row in rows if _shares(row, holder, facts) and (row.holds(bound.tres) or not bound.tres)]
    if not rows:
        return ["no job that you can see counts toward this limit"]
    rows.sort(key=lambda row: (-row.holds(bound.tres), row.raw))
    shown = [_describe_user(row, facts, bound.tres) for row in rows[:_SHOWN]]
    more = f" and {plural(len(rows) - _SHOWN, 'more job')}" if len(rows) > _SHOWN else ""
    return [f"counted toward this limit: {'; '.join(shown)}{more}"]


def _shares(row: Queued, holder: LimitScope, facts: PendingFacts) -> bool:
    if holder.kind == "association":
        return row.account in facts.own_accounts and (not holder.user or row.user == holder.user)
    if row.qos != holder.qos:
        return False
    if holder.kind == "qos user":
        return row.user == facts.user
    return holder.kind != "qos account" or row.account == holder.account


def _describe_user(row: Queued, facts: PendingFacts, tres: str) -> str:
    amount = f"{format_tres(tres, row.holds(tres))}, " if tres else ""
    whose = "" if row.user == facts.user else f" of {row.user}"
    left = f"ends within {format_duration(row.left)}" if row.state == "RUNNING" and row.left is not None else row.state
    return f"job {row.id}{whose} ({amount}{left})"


def _actions(facts: PendingFacts, limit: Limit, bound: LimitValue) -> tuple[str, ...]:
    """Return commands with known values: a time limit that fits, fewer nodes."""
    assert bound.limit is not None
    if limit.field == "MaxWallPJ":
        return (f"scontrol update JobId={facts.id} TimeLimit={format_duration(bound.limit * 60)}",)
    asked = facts.requested.get(bound.tres)
    if limit.field == "MaxTRESMinsPJ" and asked:
        return (f"scontrol update JobId={facts.id} TimeLimit={format_duration(bound.limit / asked * 60)}",)
    if limit.field == "MaxTRESPJ" and bound.tres == "node":
        return (change_nodes_command(facts, int(bound.limit)),)
    return ()
