"""Check whether a limit would block a job in another QOS, account or partition. Pure.

Only limits that no end of another job would mend count, as far as slurmctld told of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterrun.reasons import Limit
from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.why.pending.facts import PendingFacts
from clusterrun.why.pending.limit_values import format_amount, requested_amount

#: slurmctld's name of a limit -> sacctmgr's.
_CAPS = {"MaxWallPJ": "MaxWall", "MaxTRESPJ": "MaxTRESPerJob", "MaxTRESPN": "MaxTRESPerNode",
         "MaxTRESPU": "MaxTRESPerUser", "MaxTRESPA": "MaxTRESPerAccount", "GrpTRES": "GrpTRES"}  # fmt: skip


def blocking_limit(facts: PendingFacts, *, qos: str = "", account: str = "", partition_qos: str = "") -> str:
    """Return the first limit that the job exceeds there, as ``10:00 (MaxWall)``; "" if none is known.

    One of three is given: a QOS or an account for the job, or the QOS of another partition. What a partition's QOS sets
    takes the place of the job's own QOS, and that of what is set on the account (resource_limits.html, hierarchy).
    """
    if partition_qos:
        return next(_exceeded(facts, _of_qos(facts, partition_qos)), "")
    names = [name for p in facts.own_partitions if (name := p.get("QoS", ""))]
    if qos:
        return next(_exceeded(facts, _of_qos(facts, qos), _all(facts, names)), "")
    rows = [row for row in facts.holders or () if row.kind == "association" and row.account == account]
    rows = [row for row in rows if row.user in ("", facts.user)]
    return next(_exceeded(facts, rows, _all(facts, facts.own_qos)), "")


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
