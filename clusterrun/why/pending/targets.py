"""Check whether a limit would block a job in another QOS, account or partition. Pure.

Only known limits count, and only those that the job exceeds even when no other job runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.reasons import Limit
from clusterrun.why.pending.facts import PendingFacts
from clusterrun.why.pending.limit_values import format_amount, requested_amount

#: slurmctld's name of a limit -> sacctmgr's.
_CAPS = {"MaxWallPJ": "MaxWall", "MaxTRESPJ": "MaxTRESPerJob", "MaxTRESPN": "MaxTRESPerNode",
         "MaxTRESPU": "MaxTRESPerUser", "MaxTRESPA": "MaxTRESPerAccount", "GrpTRES": "GrpTRES"}  # fmt: skip


def blocking_limit(facts: PendingFacts, *, qos: str = "", account: str = "", partition_qos: str = "") -> str:
    """Return the first limit that the job exceeds there, as ``10:00 (MaxWall)``; "" if none is known.

    Give a QOS or an account for the job, or another partition's QOS. The limits of a partition's QOS override those
    of the job's QOS, and these override those of the account (resource_limits.html, hierarchy).
    """
    if partition_qos:
        return next(_exceeded(facts, _of_qos(facts, partition_qos)), "")
    names = [name for p in facts.own_partitions if (name := p.get("QoS", ""))]
    if qos:
        return next(_exceeded(facts, _of_qos(facts, qos), _all(facts, names)), "")
    rows = [row for row in facts.holders or () if row.kind == "association" and row.account == account]
    rows = [row for row in rows if row.user in ("", facts.user)]
    return next(_exceeded(facts, rows, _all(facts, facts.own_qos)), "")


def other_targets(facts: PendingFacts, owner: str) -> dict[str, str]:
    """Return the user's other accounts, or other QOS in the job's account (``qos``), each with its blocking limit."""
    account, rows = facts.job.get("Account", ""), facts.associations or ()
    if owner == "qos":
        names = [name for row in rows if row.account == account for name in row.qos if name != facts.job.get("QOS")]
        return {name: blocking_limit(facts, qos=name) for name in names}
    return {row.account: blocking_limit(facts, account=row.account) for row in rows if row.account != account}


def _all(facts: PendingFacts, names: Iterable[str]) -> list[LimitScope]:
    return [row for name in names for row in _of_qos(facts, name)]


def _of_qos(facts: PendingFacts, name: str) -> list[LimitScope]:
    rows = [row for row in facts.holders or () if row.qos == name]
    own = {"qos user": (facts.uid, facts.user), "qos account": (facts.job.get("Account", ""),)}
    return [row for row in rows if row.kind == "qos" or (row.user or row.account) in own.get(row.kind, ())]


def _exceeded(facts: PendingFacts, rows: Iterable[LimitScope], above: Iterable[LimitScope] = ()) -> Iterator[str]:
    set_above = {(field, b.tres) for row in above for field in _CAPS for b in row.bounds(field) if b.limit is not None}
    for row in rows:
        for field, setting in _CAPS.items():
            limit = Limit(owner="qos" if row.qos else "association", field=field, setting=setting)
            for bound in row.bounds(field):
                wants = requested_amount(facts, limit, bound)
                if bound.limit is None or wants is None or (field, bound.tres) in set_above:
                    continue
                if wants > bound.limit:
                    yield f"{format_amount(limit, bound, bound.limit)} ({setting})"
