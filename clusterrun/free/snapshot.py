"""Load the cluster's nodes, partitions and a user's limits with a few calls."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from clusterrun.free.limits import UserLimit, account_chain, limits_of
from clusterrun.free.preemption import BY_PARTITION, Preemption, find_preemption
from clusterrun.scheduler import Reply, SlurmCommands
from clusterrun.scheduler.slurm import nodes as slurm_nodes
from clusterrun.scheduler.slurm import sacctmgr, scontrol
from clusterrun.scheduler.slurm.limits import parse_limits
from clusterrun.scheduler.slurm.nodes import Node, Partition, UserContext
from clusterrun.scheduler.slurm.sacctmgr import Association, parse_qos, parse_qos_flags, qos_argv
from clusterrun.system.shell import SLURM_TIMEOUT

#: Seconds to wait for accounting; without an answer the rest is shown.
TIMEOUT = 15.0


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
        """Return why the partition does not accept a job of that account and QOS ("" for the user's defaults), or "".

        Slurm may accept such a job, which then stays pending forever (EnforcePartLimits).
        """
        if why := self.closed(partition):
            return why
        me, account, qos = self.me, account or self.default_account, qos or self.default_qos(account)
        if account and me.accounts is not None:
            me = replace(me, accounts=frozenset({account}), above=self.above.get(account, frozenset({account})))
        if qos and me.qos is not None:
            me = replace(me, qos=frozenset({qos}))
        if why := slurm_nodes.closed(partition, me):
            account_rule = why.partition("=")[0].endswith("Accounts")
            return f"{why}; this job's {'account' if account_rule else 'QOS'} is {account if account_rule else qos}"
        return ""

    def flags_of(self, partition: Partition, account: str, qos: str) -> frozenset[str]:
        """Return the flags of a job's QOS and of the partition's; empty if unknown."""
        names = (qos or self.default_qos(account), partition.qos)
        return frozenset().union(*((self.qos_flags or {}).get(name, ()) for name in names))

    def default_qos(self, account: str) -> str:
        """Return the default QOS of that account, "" for the default account; "" if unknown."""
        account = account or self.default_account
        found = {row.default_qos for row in self.associations if row.account == account}
        return found.pop() if len(found) == 1 else ""


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
    queries = {"nodes": slurm_nodes.nodes_argv(), "partitions": slurm_nodes.partitions_argv()}
    queries["config"] = scontrol.config_argv()
    if slurm.facts.accounting:
        queries["associations"] = sacctmgr.associations_argv(user, slurm.facts.cluster)
        queries["used"] = used_argv(user)
        queries |= {"qos": qos_argv()} if limits else {}

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
    by_tier = config.get("PreemptType", BY_PARTITION) == BY_PARTITION
    seen = ClusterSnapshot(
        nodes=tuple(nodes),
        partitions=tuple(slurm_nodes.parse_partitions(partition_text)),
        me=UserContext(user, _groups()),
        preempted=find_preemption(partition_text, nodes) if by_tier else {},
        passes_cpu_limit=_passes_limit("CPU", config),
    )
    if not slurm.facts.accounting:
        return replace(seen, notes=("This cluster has no accounting, so there are no QOS or user limits.",))
    return _accounted(seen, replies, config)


def _passes_limit(name: str, config: Mapping[str, str]) -> bool:
    """Return whether a job gets this limit (ulimit) of the shell that submits it; by default it gets all."""
    passed, kept = (
        set(re.split(r"[,\s]+", config.get(key, "").upper())) - {""}
        for key in ("PropagateResourceLimits", "PropagateResourceLimitsExcept")
    )
    return not ({name, "ALL"} & kept) and (not passed or bool({name, "ALL"} & passed))


def _accounted(seen: ClusterSnapshot, replies: Mapping[str, Reply], config: Mapping[str, str]) -> ClusterSnapshot:
    """Return the snapshot with the user's accounts, QOS and limits."""
    user = seen.me.user
    enforced = set(re.split(r"[,\s]+", config.get("AccountingStorageEnforce", "unknown").lower()))
    if not enforced - {"", "none", "0"}:
        return replace(seen, notes=("This cluster does not enforce accounts or limits (AccountingStorageEnforce).",))
    associations, used = replies["associations"], replies["used"]
    rows = sacctmgr.parse_associations(associations.text) if not associations.note else ()
    holders = parse_limits(used.text)
    if rows:
        accounts, qualities = frozenset(row.account for row in rows), frozenset(q for row in rows for q in row.qos)
        trees = {account: account_chain(holders, account) for account in accounts}
        me = UserContext(user, seen.me.groups, accounts, qualities, accounts.union(*trees.values()))
        seen = replace(seen, me=me, associations=rows, above=trees)
    default = [h.account for h in holders if h.user == user and "Yes" in h.values.get("DefAssoc", "")]
    seen = replace(seen, default_account=default[0] if len(default) == 1 else "")
    if "qos" not in replies:
        return seen
    seen = replace(seen, qos_flags=None if replies["qos"].note else parse_qos_flags(replies["qos"].text))
    if not enforced & {"limits", "safe", "all", "unknown"}:
        return replace(seen, notes=("This cluster does not enforce limits (AccountingStorageEnforce).",))
    set_by_qos = replies["qos"]
    unseen: dict[str, list[str]] = {}
    for reply, what in (
        (associations, "your accounts and QOS"),
        (set_by_qos, "the per-user limits of the QOS"),
        (used, "your current usage"),
    ):
        if reply.note:
            unseen.setdefault(re.sub(r"^(\w+): \1: (error: )?", r"\1: ", reply.note), []).append(what)
    notes = [f"not available: {', '.join(whats)} ({why})" for why, whats in unseen.items()]
    if not rows and not associations.note and enforced & {"associations", "limits", "safe", "all"}:
        notes.append(
            "You have no Slurm account, and this cluster requires one; ask your administrators for an account."
        )
    names = {p.qos: f"QOS {p.qos} of partition {p.name}" for p in seen.partitions if p.qos}
    # if the user's own QOS are unknown, all that slurmctld lists
    mine = [holder.qos for holder in holders] if associations.note else [q for row in rows for q in row.qos]
    names |= {name: f"QOS {name}" for name in mine if name}
    found = limits_of(holders, parse_qos(set_by_qos.text), user, os.getuid(), names)
    limits = None if used.note and set_by_qos.note else tuple(found)
    return replace(seen, limits=limits, notes=tuple(notes))


def used_argv(user: str) -> list[str]:
    """Return the command for a user's associations, all accounts and every QOS, with their use."""
    return ["scontrol", "show", "assoc_mgr", "flags=assoc,qos", f"users={user}"]


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
