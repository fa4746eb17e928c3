"""Compute the accounting limits on a user and what is left of each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterrun.base.units import clause
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


def account_chain(scopes: Iterable[LimitScope], account: str) -> frozenset[str]:
    """Return the names of an account and its parents."""
    return frozenset({account, *(scope.account for scope in _above(_of_accounts(scopes), account))})


def _of_accounts(scopes: Iterable[LimitScope]) -> dict[str, LimitScope]:
    """Return the association of each account itself."""
    return {scope.account: scope for scope in scopes if scope.kind == "association" and not scope.user}


def _above(accounts: Mapping[str, LimitScope], name: str) -> list[LimitScope]:
    """Return an account, its parent, and so on to the root."""
    chain: list[LimitScope] = []
    account = accounts.get(name)
    while account is not None and account not in chain:
        chain.append(account)
        account = accounts.get(account.parent)
    return chain


def limits_of(
    scopes: Sequence[LimitScope], by_qos: Mapping[str, Limits], user: str, uid: int, names: Mapping[str, str]
) -> list[UserLimit]:
    """Return the limits on a user: of the associations, their parent accounts and the QOS of ``names``.

    ``names`` maps each QOS to its name in the output, since a partition may set it. ``scopes`` are from slurmctld and
    ``by_qos`` from accounting; both are empty if unknown.
    """
    accounts: set[str] = set()
    limits: list[UserLimit] = []
    for scope in scopes:
        if scope.kind == "association" and scope.user == user:
            accounts.add(scope.account)
            limits += _set(_place(scope), _values(scope), accounts=(scope.account,))
    limits += _limits_of_accounts(scopes, sorted(accounts))
    for qos, label in names.items():
        of_qos = [scope for scope in scopes if scope.qos == qos and scope.user in ("", user, str(uid))]
        limits += _limits_of_qos(qos, label, of_qos, by_qos.get(qos, {}), sorted(accounts))
    return limits


def _limits_of_accounts(scopes: Sequence[LimitScope], accounts: Sequence[str]) -> list[UserLimit]:
    """Return the limits of these accounts and of their parents, each for the accounts below it."""
    of_accounts = _of_accounts(scopes)
    below: dict[str, list[str]] = {}
    for account in accounts:
        for scope in _above(of_accounts, account):
            below.setdefault(scope.account, []).append(account)
    limits: list[UserLimit] = []
    for name, included in below.items():
        limits += _set(f"account {name}", _values(of_accounts[name]), accounts=tuple(included))
    return limits


def _limits_of_qos(
    qos: str, label: str, scopes: Sequence[LimitScope], by_accounting: Limits, accounts: Sequence[str]
) -> list[UserLimit]:
    """Return the limits that a QOS sets for all, for this user, and for each of the accounts."""
    # slurmctld lists a user or account in a QOS only after the first job there: until then nothing is used
    shared, per_account = _limits_by_accounting(by_accounting, unused=0.0 if scopes else None)
    for scope in scopes:
        if not scope.account:
            _update(shared, scope)
    for key in per_account:
        shared.pop(key, None)
    limits = [*_set(label, shared, qos=qos)]
    for account in accounts:
        of_account = dict(per_account)
        for scope in scopes:
            if scope.account == account:
                _update(of_account, scope)
        limits += _set(f"{label}, account {account}", of_account, qos=qos, accounts=(account,))
    return limits


def _limits_by_accounting(limits: Limits, unused: float | None) -> tuple[dict[Key, Pair], dict[Key, Pair]]:
    """Return the limits that accounting lists for all and for each user, and those for each account."""
    shared: dict[Key, Pair] = {}
    per_account: dict[Key, Pair] = {}
    for key, limit in limits.items():
        if key[0].endswith("PA"):
            per_account[key] = limit, unused
        elif key[0].endswith("PU"):
            shared[key] = limit, unused
        else:
            shared[key] = limit, None
    return shared, per_account


def _update(values: dict[Key, Pair], scope: LimitScope) -> None:
    """Replace the values by those of a scope that have a limit or are new."""
    for key, pair in _values(scope).items():
        limit, _ = pair
        if limit is not None or key not in values:
            values[key] = pair


def _values(scope: LimitScope) -> dict[Key, Pair]:
    return {(name, tres): (limit, used) for name in LABELS for tres, limit, used in scope.bounds(name)}


def _set(by: str, values: Mapping[Key, Pair], *, qos: str = "", accounts: tuple[str, ...] = ()) -> Iterator[UserLimit]:
    for (name, tres), (limit, used) in values.items():
        if limit is not None:
            yield UserLimit(by, name, tres, limit, None if name in _PER_JOB else used, qos, accounts)


def _place(scope: LimitScope) -> str:
    return f"you in account {scope.account}{clause(scope.partition, ', partition {}')}"
