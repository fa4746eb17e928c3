"""Load the cluster's nodes, partitions and a user's limits with a few calls."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from clusterrun.base.units import first_few
from clusterrun.free.limits import UserLimit, account_chain, limits_of
from clusterrun.jobspec.spec import JobSpec
from clusterrun.scheduler import Reply, SlurmCommands
from clusterrun.scheduler.slurm import nodes as slurm_nodes
from clusterrun.scheduler.slurm import sacctmgr, scontrol
from clusterrun.scheduler.slurm.limits import LimitScope, limits_argv, parse_limits
from clusterrun.scheduler.slurm.nodes import Node, Partition, UserContext
from clusterrun.scheduler.slurm.sacctmgr import Association, parse_qos, parse_qos_flags, qos_argv
from clusterrun.scheduler.slurm.values import parse_int
from clusterrun.system.shell import SLURM_TIMEOUT

#: Seconds to wait for accounting; without an answer the rest is shown.
TIMEOUT = 15.0
#: The PreemptType with which a partition of a higher PriorityTier preempts jobs on the same nodes in partitions whose
#: PreemptMode is not OFF (slurm.conf(5)); with another one the tiers of partitions preempt no job.
_BY_PARTITION = "preempt/partition_prio"
_DONE = {"REQUEUE": "requeued", "CANCEL": "cancelled", "SUSPEND": "suspended"}
_SHOWN = 3
#: The queries to accounting, without which the rest is shown.
_SHOWN_WITHOUT = {"associations": "your accounts and QOS", "qos": "the per-user limits of the QOS",
                  "used": "your current usage"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preemption:
    """What happens to a partition's jobs (``requeued``, ``cancelled``, ``suspended``), and for which partitions."""

    done: str
    by: tuple[str, ...]

    @property
    def sentence(self) -> str:
        higher = f"partition{'s' * (len(self.by) > 1)} {first_few([*self.by], _SHOWN)}"
        return f"jobs in this partition may be {self.done} to make room for jobs in {higher}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The cluster as this user sees it; ``notes`` name what was not available, one line each.

    ``above`` maps each account of the user to itself and its parent accounts. ``preempted`` are the partitions whose
    jobs can be preempted. ``limits`` is None if they are unknown or not enforced. ``qos_flags`` are the flags of each
    QOS, None if they are unknown. ``passes_cpu_limit``: a job gets the limit on processor time (ulimit -t) of the shell
    that submits it.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    me: UserContext
    associations: tuple[Association, ...] = ()
    default_account: str = ""
    above: Mapping[str, frozenset[str]] = field(default_factory=dict)
    limits: tuple[UserLimit, ...] | None = None
    preempted: Mapping[str, Preemption] = field(default_factory=dict)
    qos_flags: Mapping[str, frozenset[str]] | None = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    passes_cpu_limit: bool = True

    def nodes_of(self, partition: str) -> list[Node]:
        return [node for node in self.nodes if partition in node.partitions]

    def closed(self, partition: Partition) -> str:
        """Return why the partition does not accept this user's jobs, or ""."""
        return slurm_nodes.closed(partition, self.me)

    def closed_to(self, partition: Partition, account: str, qos: str) -> str:
        """Return why the partition does not accept a job of that account and QOS ("" if unknown), or "".

        Slurm may accept such a job, which then stays pending forever (EnforcePartLimits).
        """
        if closed := self.closed(partition):
            return closed
        why = slurm_nodes.closed(partition, self._me_with_only(account, qos))
        if not why:
            return ""
        is_rule_for_accounts = why.partition("=")[0].endswith("Accounts")
        return f"{why}; this job's {f'account is {account}' if is_rule_for_accounts else f'QOS is {qos}'}"

    def _me_with_only(self, account: str, qos: str) -> UserContext:
        """Return the user as if they had only that account and QOS, where they are known."""
        me = self.me
        if account and me.accounts is not None:
            me = replace(me, accounts=frozenset({account}), above=self.above.get(account, frozenset({account})))
        if qos and me.qos is not None:
            me = replace(me, qos=frozenset({qos}))
        return me

    def flags_of(self, qos: str) -> frozenset[str]:
        """Return the flags of a QOS; empty if unknown."""
        return (self.qos_flags or {}).get(qos, frozenset())

    def account_and_qos(self, spec: JobSpec) -> tuple[str, str]:
        """Return the account and QOS of a job: those it requests, or the user's defaults; "" if unknown."""
        account = spec.directive("account") or self.default_account
        return account, spec.directive("qos") or self._default_qos(account)

    def _default_qos(self, account: str) -> str:
        """Return the default QOS of that account; "" if unknown."""
        defaults = {row.default_qos for row in self.associations if row.account == account}
        return defaults.pop() if len(defaults) == 1 else ""


def load_snapshot(
    slurm: SlurmCommands,
    user: str,
    *,
    limits: bool = True,
    timeout: float | None = None,
    accounts_age: float | None = None,
) -> ClusterSnapshot:
    """Load nodes, partitions and this user's limits from Slurm; raises SchedulerError if it does not respond.

    Three queries at once: nodes, partitions and configuration; with accounting up to three more: associations, what is
    in use, and QOS. ``timeout`` (seconds) is for each; the default is 30, and 15 for what the rest is shown without.
    The answers of sacctmgr may be ``accounts_age`` seconds old, and are kept for others.
    """
    queries = {"nodes": slurm_nodes.nodes_argv(), "partitions": scontrol.show_argv("partition")}
    queries["config"] = scontrol.show_argv("config")
    if slurm.facts.accounting:
        queries["associations"] = sacctmgr.associations_argv(user, slurm.facts.cluster)
        queries["used"] = limits_argv(user)
        if limits:
            queries["qos"] = qos_argv()

    def ask(what: str) -> Reply:
        limit = timeout or (SLURM_TIMEOUT if what in ("nodes", "partitions") else TIMEOUT)
        if accounts_age is not None and what in ("associations", "qos"):
            return slurm.recent_answer(queries[what], limit, accounts_age)
        return slurm.answer(queries[what], limit)

    with ThreadPoolExecutor(max_workers=len(queries)) as pool:  # if accounting hangs, the timeouts run in parallel
        replies = dict(zip(queries, pool.map(ask, queries), strict=True))
    nodes = slurm_nodes.parse_nodes(_require_answer(replies["nodes"], "nodes"))
    partition_text = _require_answer(replies["partitions"], "partitions")
    config = scontrol.parse_config(replies["config"].text)
    by_tier = config.get("PreemptType", _BY_PARTITION) == _BY_PARTITION
    cluster = ClusterSnapshot(
        nodes=tuple(nodes),
        partitions=tuple(slurm_nodes.parse_partitions(partition_text)),
        me=UserContext(user, _groups()),
        preempted=find_preemption(partition_text, nodes) if by_tier else {},
        passes_cpu_limit=_passes_limit("CPU", config),
    )
    if not slurm.facts.accounting:
        return replace(cluster, notes=("This cluster has no accounting, so there are no QOS or user limits.",))
    return _accounted(cluster, replies, config)


def _words(config: Mapping[str, str], key: str, default: str = "") -> set[str]:
    """Return the words of a list in Slurm's configuration, in lower case."""
    return set(re.split(r"[,\s]+", config.get(key, default).lower())) - {""}


def _passes_limit(name: str, config: Mapping[str, str]) -> bool:
    """Return whether a job gets this limit (ulimit) of the shell that submits it; by default it gets all."""
    names = {name.lower(), "all"}
    if names & _words(config, "PropagateResourceLimitsExcept"):
        return False
    passed = _words(config, "PropagateResourceLimits")
    return not passed or bool(names & passed)


def _accounted(cluster: ClusterSnapshot, replies: Mapping[str, Reply], config: Mapping[str, str]) -> ClusterSnapshot:
    """Return the snapshot with the user's accounts, QOS and limits."""
    enforced = _words(config, "AccountingStorageEnforce", default="unknown")
    if not enforced - {"none", "0"}:
        return replace(cluster, notes=("This cluster does not enforce accounts or limits (AccountingStorageEnforce).",))
    scopes = parse_limits(replies["used"].text)
    cluster = _with_accounts(cluster, replies["associations"], scopes)
    qos = replies.get("qos")
    if qos is None:
        return cluster
    cluster = replace(cluster, qos_flags=None if qos.note else parse_qos_flags(qos.text))
    if not enforced & {"limits", "safe", "all", "unknown"}:
        return replace(cluster, notes=("This cluster does not enforce limits (AccountingStorageEnforce).",))
    notes = _not_available(replies)
    has_no_account = not cluster.associations and not replies["associations"].note
    if has_no_account and enforced & {"associations", "limits", "safe", "all"}:
        notes.append(
            "You have no Slurm account, and this cluster requires one; ask your administrators for an account."
        )
    if replies["used"].note and qos.note:
        return replace(cluster, notes=tuple(notes))
    names = _names_of_qos(cluster, replies["associations"], scopes)
    limits = limits_of(scopes, parse_qos(qos.text), cluster.me.user, os.getuid(), names)
    return replace(cluster, limits=tuple(limits), notes=tuple(notes))


def _with_accounts(cluster: ClusterSnapshot, associations: Reply, scopes: Sequence[LimitScope]) -> ClusterSnapshot:
    """Return the snapshot with the user's accounts, their parent accounts and QOS, and the default account."""
    user = cluster.me.user
    defaults = [scope.account for scope in scopes if scope.user == user and scope.is_default]
    if len(defaults) == 1:
        cluster = replace(cluster, default_account=defaults[0])
    rows = sacctmgr.parse_associations(associations.text)
    if associations.note or not rows:
        return cluster
    accounts = frozenset(row.account for row in rows)
    qos = frozenset[str]().union(*(row.qos for row in rows))
    above = {account: account_chain(scopes, account) for account in accounts}
    me = UserContext(user, cluster.me.groups, accounts, qos, accounts.union(*above.values()))
    return replace(cluster, me=me, associations=rows, above=above)


def _not_available(replies: Mapping[str, Reply]) -> list[str]:
    """Return which answers are missing, in a line for each reason."""
    missing: dict[str, list[str]] = {}
    for query, what in _SHOWN_WITHOUT.items():
        note = replies[query].note
        if note:
            why = re.sub(r"^(\w+): \1: (error: )?", r"\1: ", note)
            missing.setdefault(why, []).append(what)
    return [f"not available: {', '.join(whats)} ({why})" for why, whats in missing.items()]


def _names_of_qos(cluster: ClusterSnapshot, associations: Reply, scopes: Iterable[LimitScope]) -> dict[str, str]:
    """Return each QOS that may limit the user, with its name in the output.

    If the user's own QOS are unknown, they are all that slurmctld lists.
    """
    names = {partition.qos: f"QOS {partition.qos} of partition {partition.name}" for partition in cluster.partitions}
    if associations.note:
        names |= {scope.qos: f"QOS {scope.qos}" for scope in scopes}
    for row in cluster.associations:
        names |= {qos: f"QOS {qos}" for qos in row.qos}
    names.pop("", None)
    return names


def _require_answer(reply: Reply, what: str) -> str:
    if reply.note:
        message = f"could not get the list of {what} from Slurm"
        raise scontrol.no_list(what, reply.stderr.strip() or reply.note, message)
    return reply.text


def _groups() -> frozenset[str]:
    """Return the names of this process's groups; groups without a name are left out."""
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return frozenset(names)


def find_preemption(partitions: str, nodes: Iterable[Node]) -> dict[str, Preemption]:
    """Return the partitions whose jobs can be preempted, from ``scontrol show partition``."""
    blocks = {block["PartitionName"]: block for block in scontrol.parse_show(partitions) if block.get("PartitionName")}
    on_same_nodes = _partitions_on_same_nodes(nodes)
    preempted = {}
    for name, block in blocks.items():
        done, neighbours = _done_to_jobs(block), on_same_nodes.get(name, ())
        higher = [other for other in blocks if other in neighbours and _tier(blocks[other]) > _tier(block)]
        if done and higher:
            preempted[name] = Preemption(done, tuple(higher))
    return preempted


def _partitions_on_same_nodes(nodes: Iterable[Node]) -> dict[str, set[str]]:
    """Return the partitions that have a node with each partition in common, itself included."""
    neighbours: dict[str, set[str]] = {}
    for partitions in {node.partitions for node in nodes}:
        for name in partitions:
            neighbours.setdefault(name, set()).update(partitions)
    return neighbours


def _done_to_jobs(block: Mapping[str, str]) -> str:
    """Return what preemption does to the partition's jobs, "" for nothing."""
    for mode in block.get("PreemptMode", "OFF").upper().split(","):
        if mode in _DONE:
            return _DONE[mode]
    return ""


def _tier(block: Mapping[str, str]) -> int:
    return parse_int(block.get("PriorityTier", "1")) or 0
