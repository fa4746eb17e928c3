"""Compute the accounting limits on a user and what is left of each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterrun.scheduler.slurm.limits import LimitScope
from clusterrun.scheduler.slurm.sacctmgr import Limits

Key = tuple[str, str]
Pair = tuple[float | None, float | None]

#: Slurm's names of limits and their labels (man sacctmgr, SPECIFICATIONS FOR ASSOCIATIONS and QOS): limits that users
#: share, limits of each user or account, and limits of each job.
_SHARED = {"GrpTRES": "{}, in total", "GrpJobs": "running jobs, in total", "GrpSubmitJobs": "jobs, in total",
           "GrpTRESMins": "{} times minutes, summed over all jobs",
           "GrpTRESRunMins": "{} times remaining minutes, summed over running jobs"}  # fmt: skip
_OWN = {"MaxTRESPU": "your {}", "MaxJobs": "your running jobs", "MaxSubmitJobs": "your jobs",
        "MaxJobsPU": "your running jobs", "MaxSubmitJobsPU": "your jobs",
        "MaxTRESPA": "your account's {}", "MaxJobsPA": "your account's running jobs",
        "MaxSubmitJobsPA": "your account's jobs",
        "MaxTRESRunMinsPU": "{} times remaining minutes, summed over your running jobs"}  # fmt: skip
_PER_JOB = {"MaxTRESPJ": "{} per job", "MaxTRESPN": "{} per node", "MinTRESPJ": "minimum {} per job",
            "MaxWallPJ": "time limit"}  # fmt: skip
LABELS = _SHARED | _OWN | _PER_JOB
_TRES = {"gres/gpu": "GPUs", "cpu": "CPUs", "node": "nodes", "mem": "memory (MB)"}


@dataclass(frozen=True, slots=True)
class UserLimit:
    """One limit: set ``by`` (``QOS normal``, ``account physics``), Slurm's ``name``, the TRES. In MB and minutes.

    ``used`` is None for a limit on each job and if unknown. The limit applies to jobs of that ``qos`` or ``accounts``.
    """

    by: str
    name: str
    tres: str
    limit: float
    used: float | None = None
    qos: str = ""
    accounts: tuple[str, ...] = ()

    @property
    def left(self) -> float | None:
        """Return what is left, at least 0; None if unknown."""
        return None if self.used is None else max(0.0, self.limit - self.used)

    def applies_to(self, account: str, qos: Collection[str]) -> bool:
        """Return whether a job of that account and these QOS counts towards the limit."""
        if self.qos and self.qos not in qos:
            return False
        return not self.accounts or account in self.accounts

    @property
    def label(self) -> str:
        return LABELS[self.name].format(_TRES.get(self.tres, self.tres.removeprefix("gres/").replace("gpu:", "GPUs ")))


def account_chain(holders: Iterable[LimitScope], account: str) -> frozenset[str]:
    """Return the names of an account and its parents."""
    groups = {h.account: h for h in holders if h.kind == "association" and not h.user}
    return frozenset({account, *(group.account for group in _above(groups, account))})


def _above(groups: Mapping[str, LimitScope], account: str) -> list[LimitScope]:
    """Return an account, its parent, and so on to the root."""
    found: list[LimitScope] = []
    while (group := groups.get(account)) is not None and group not in found:
        found.append(group)
        account = group.parent
    return found


def limits_of(
    holders: Sequence[LimitScope], by_qos: Mapping[str, Limits], user: str, uid: int, names: Mapping[str, str]
) -> list[UserLimit]:
    """Return the limits on a user: of the associations, their parent accounts and the QOS of ``names``.

    ``names`` maps each QOS to its name in the output, since a partition may set it. ``holders`` are from slurmctld and
    ``by_qos`` from accounting; both are empty if unknown.
    """
    own = [h for h in holders if h.kind == "association" and h.user == user]
    found = [limit for h in own for limit in _set(_place(h), _values(h), accounts=(h.account,))]
    accounts = {h.account for h in own}
    groups = {h.account: h for h in holders if h.kind == "association" and not h.user}
    chains = {account: [group.account for group in _above(groups, account)] for account in sorted(accounts)}
    for name in dict.fromkeys(name for chain in chains.values() for name in chain):
        mine = tuple(account for account, chain in chains.items() if name in chain)
        found += _set(f"account {name}", _values(groups[name]), accounts=mine)
    for name, called in names.items():
        of_qos = [h for h in holders if h.qos == name]
        # slurmctld lists a user or account in a QOS only after the first job there: until then nothing is used
        unused = 0.0 if of_qos else None
        limits = by_qos.get(name, {})
        shared: dict[Key, Pair] = {k: (v, unused if k[0].endswith("PU") else None) for k, v in limits.items()}
        per_account: dict[Key, Pair] = {k: (v, unused) for k, v in limits.items() if k[0].endswith("PA")}
        for holder in of_qos:
            if holder.kind == "qos" or (holder.kind == "qos user" and holder.user in (str(uid), user)):
                shared = _joined(shared, holder)
        found += _set(called, {k: v for k, v in shared.items() if k not in per_account}, qos=name)
        for account in sorted(accounts):
            mine_here = dict(per_account)
            for holder in of_qos:
                if holder.kind == "qos account" and holder.account == account:
                    mine_here = _joined(mine_here, holder)
            found += _set(f"{called}, account {account}", mine_here, qos=name, accounts=(account,))
    return found


def _joined(values: Mapping[Key, Pair], holder: LimitScope) -> dict[Key, Pair]:
    """Return the values, replaced by those of a holder that have a limit or are new."""
    own = {key: pair for key, pair in _values(holder).items() if pair[0] is not None or key not in values}
    return {**values, **own}


def _values(holder: LimitScope) -> dict[Key, Pair]:
    return {(name, bound.tres): (bound.limit, bound.used) for name in LABELS for bound in holder.bounds(name)}


def _set(by: str, values: Mapping[Key, Pair], *, qos: str = "", accounts: tuple[str, ...] = ()) -> Iterator[UserLimit]:
    for (name, tres), (limit, used) in values.items():
        if limit is not None:
            yield UserLimit(by, name, tres, limit, None if name in _PER_JOB else used, qos, accounts)


def _place(holder: LimitScope) -> str:
    return f"you in account {holder.account}" + (f", partition {holder.partition}" if holder.partition else "")
