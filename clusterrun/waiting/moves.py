"""Whether a job would be beyond a limit where it is moved to: another QOS, account or partition. Pure.

Only limits that no end of another job would mend count, as far as slurmctld told of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterrun.reasons import Limit
from clusterrun.scheduler.slurm_limits import Holder
from clusterrun.waiting.facts import Facts
from clusterrun.waiting.measures import value, wanted

#: slurmctld's name of a limit -> sacctmgr's.
_CAPS = {"MaxWallPJ": "MaxWall", "MaxTRESPJ": "MaxTRESPerJob", "MaxTRESPN": "MaxTRESPerNode",
         "MaxTRESPU": "MaxTRESPerUser", "MaxTRESPA": "MaxTRESPerAccount", "GrpTRES": "GrpTRES"}  # fmt: skip


def wall(facts: Facts, *, qos: str = "", account: str = "") -> str:
    """The first limit of a QOS or an account that the job is beyond, in words: ``10:00 (MaxWall)``; "" for none."""
    if qos:
        return next(_beyond(facts, _of_qos(facts, qos)), "")
    rows = [row for row in facts.holders or () if row.kind == "association" and row.account == account]
    # what the QOS of the job or of its partition sets takes the place of the account's own
    above = [row for name in facts.own_qos for row in _of_qos(facts, name)]
    return next(_beyond(facts, [row for row in rows if row.user in ("", facts.user)], above), "")


def _of_qos(facts: Facts, name: str) -> list[Holder]:
    rows = [row for row in facts.holders or () if row.qos == name]
    own = {"qos user": (facts.uid, facts.user), "qos account": (facts.job.get("Account", ""),)}
    return [row for row in rows if row.kind == "qos" or (row.user or row.account) in own.get(row.kind, ())]


def _beyond(facts: Facts, rows: Iterable[Holder], above: Iterable[Holder] = ()) -> Iterator[str]:
    set_above = {(field, b.tres) for row in above for field in _CAPS for b in row.bounds(field) if b.limit is not None}
    for row in rows:
        for field, setting in _CAPS.items():
            limit = Limit(owner="qos" if row.qos else "association", field=field, setting=setting)
            for bound in row.bounds(field):
                wants = wanted(facts, limit, bound)
                if bound.limit is None or wants is None or (field, bound.tres) in set_above:
                    continue
                if wants > bound.limit:
                    yield f"{value(limit, bound, bound.limit)} ({setting})"
