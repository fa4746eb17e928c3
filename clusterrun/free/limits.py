"""Which limits of accounting are set on a user, and what is left of each: pure sums over what Slurm told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterrun.scheduler.slurm_limits import Holder
from clusterrun.scheduler.slurm_qos import Limits

Key = tuple[str, str]
Pair = tuple[float | None, float | None]

#: Slurm's names of limits, and what each is on, for people (man sacctmgr, SPECIFICATIONS FOR ASSOCIATIONS and QOS).
#: The first group is shared by all in it, the second each user's or account's own, the third holds for each job.
_SHARED = {"GrpTRES": "{}, together", "GrpJobs": "running jobs, together", "GrpSubmitJobs": "jobs, together",
           "GrpTRESMins": "{}, minutes together", "GrpTRESRunMins": "{}, minutes to run together"}  # fmt: skip
_OWN = {"MaxTRESPU": "{} of yours", "MaxJobs": "running jobs of yours", "MaxSubmitJobs": "jobs of yours",
        "MaxJobsPU": "running jobs of yours", "MaxSubmitJobsPU": "jobs of yours",
        "MaxTRESPA": "{} of your account", "MaxJobsPA": "running jobs of your account",
        "MaxSubmitJobsPA": "jobs of your account", "MaxTRESRunMinsPU": "{} of yours, minutes to run"}  # fmt: skip
_PER_JOB = {"MaxTRESPJ": "{} in a job", "MaxTRESPN": "{} on a node", "MinTRESPJ": "{} in a job, at least",
            "MaxWallPJ": "time limit"}  # fmt: skip
WORDS = _SHARED | _OWN | _PER_JOB
_TRES = {"gres/gpu": "GPUs", "cpu": "CPUs", "node": "nodes", "mem": "memory (MB)"}


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit that is set: ``by`` whom (``QOS normal``, ``account physics``), Slurm's ``name`` of it, on which TRES.

    In Slurm's units: MB, minutes. ``used`` is None for a limit on each job, and where Slurm did not say. It holds for
    jobs of that ``qos`` or of these ``accounts`` of the user's.
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
        """What is left of it, never below 0; None where nobody can say."""
        return None if self.used is None else max(0.0, self.limit - self.used)

    @property
    def words(self) -> str:
        """What is limited, for people."""
        return WORDS[self.name].format(_TRES.get(self.tres, self.tres.removeprefix("gres/").replace("gpu:", "GPUs ")))


def groups_of(holders: Iterable[Holder], user: str) -> list[Holder]:
    """The accounts a user is in and those above them, each as a whole."""
    rows = [h for h in holders if h.kind == "association"]
    groups = {h.account: h for h in rows if not h.user}
    found = {group.account: group for h in rows if h.user == user for group in _above(groups, h.account)}
    return list(found.values())


def _above(groups: Mapping[str, Holder], account: str) -> list[Holder]:
    """An account, its parent, and so on to the root."""
    found: list[Holder] = []
    while (group := groups.get(account)) is not None and group not in found:
        found.append(group)
        account = group.parent
    return found


def limits_of(
    holders: Sequence[Holder], by_qos: Mapping[str, Limits], user: str, uid: int, names: Mapping[str, str]
) -> list[Limit]:
    """The limits that are set on a user: his associations, the accounts above them, and the QOS of these names.

    ``names`` maps each to what people call it: a QOS may come with a partition.
    ``holders`` are slurmctld's, empty where it did not say; ``by_qos`` are accounting's limits, likewise.
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
        parts = [h for h in holders if h.qos == name and _is_mine(h, user, uid, accounts)]
        values: dict[Key, Pair] = {
            # a QOS in which nobody of mine has run yet has no part for me: nothing of it is used
            key: (limit, 0.0 if parts and key[0].endswith(("PU", "PA")) else None)
            for key, limit in by_qos.get(name, {}).items()
        }
        for part in parts:
            values |= {key: pair for key, pair in _values(part).items() if pair[0] is not None or key not in values}
        found += _set(called, values, qos=name)
    return found


def _is_mine(holder: Holder, user: str, uid: int, accounts: set[str]) -> bool:
    match holder.kind:
        case "qos user":
            return holder.user in (str(uid), user)
        case "qos account":
            return holder.account in accounts
    return holder.kind == "qos"


def _values(holder: Holder) -> dict[Key, Pair]:
    return {(name, bound.tres): (bound.limit, bound.used) for name in WORDS for bound in holder.bounds(name)}


def _set(by: str, values: Mapping[Key, Pair], *, qos: str = "", accounts: tuple[str, ...] = ()) -> Iterator[Limit]:
    for (name, tres), (limit, used) in values.items():
        if limit is not None:
            yield Limit(by, name, tres, limit, None if name in _PER_JOB else used, qos, accounts)


def _place(holder: Holder) -> str:
    return f"you in account {holder.account}" + (f", partition {holder.partition}" if holder.partition else "")
