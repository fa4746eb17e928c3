"""What a reason is; those that name no single limit, one row each; the sentences that Slurm writes instead of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: The sources of the tables, with the releases that have the reasons.
PAGE = "Slurm 26.05, slurm.schedmd.com/job_reason_codes.html"
SOURCE = "src/common/job_state_reason.c"
OLD_SOURCE = "src/common/slurm_protocol_defs.c"


class Starts(StrEnum):
    """Whether a job with this reason starts, and who has to act."""

    ALONE = "automatically"
    YOU = "only after you take action"
    ADMIN = "only after an administrator takes action"
    NEVER = "never"
    OVER = "again only if it is requeued"  # the reason of an ended job


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limit that a reason names.

    ``owner`` is ``qos`` or ``association``; ``field`` its name in ``scontrol show assoc_mgr``, ``setting`` its name in
    ``sacctmgr``, ``tres`` the resource counted in it, or "". ``least`` is True for a minimum.
    """

    owner: str
    field: str
    setting: str
    tres: str = ""
    least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason: its meaning, whether the job starts, what to do, and the source.

    ``{job}`` in ``action`` stands for the job's id. ``detail`` is what Slurm adds to the reason.
    """

    word: str
    meaning: str
    starts: Starts
    action: str
    source: str = PAGE
    limit: Limit | None = None
    detail: str = ""

    def what_to_do(self, job: str) -> str:
        """Return the action for a job, with its id filled in."""
        return self.action.replace("{job}", job)


_MAN = "Slurm 22.05 to 26.05, squeue(1), JOB REASON CODES"
_AGAIN = "run `clusterrun cancel {job}`, then submit again"
_FREE = "`clusterrun free` shows free GPUs and nodes"
_WHY = "look for the cause in the job's log with `clusterrun logs {job} -n 50`"
_LIMITS = "see the limits with `scontrol show assoc_mgr flags=qos,assoc users=$USER`"


def _row(word: str, starts: Starts, meaning: str, action: str, source: str = PAGE) -> Reason:
    return Reason(word=word, meaning=meaning, starts=starts, action=action, source=source)


ALONE, YOU, ADMIN, NEVER, OVER = Starts.ALONE, Starts.YOU, Starts.ADMIN, Starts.NEVER, Starts.OVER

ROWS: tuple[Reason, ...] = (
    # -- the scheduler has not started it --------------------------------------------------------------------------
    _row("None", ALONE, "The job is new or was changed, and Slurm has not considered it yet.",
         "check again in a minute"),
    _row("WaitingForScheduling", ALONE, "Slurm has not considered the job yet.", "check again in a minute", _MAN),
    _row("Priority", ALONE, "Jobs with a higher priority are waiting for the same partition or reservation.",
         f"wait, or request fewer nodes, fewer GPUs or less time so that Slurm can backfill the job; {_FREE}"),
    _row("Resources", ALONE,
         "The job is next in line, but the nodes, GPUs, CPUs or memory that it requests are in use.",
         f"wait, or request less; {_FREE}"),
    _row("SchedDefer", ALONE,
         "The job was submitted with --immediate, but this cluster does not start jobs at submission (defer).",
         "wait, or submit the job without --immediate"),
    _row("Prolog", ALONE, "The job's nodes are allocated and are being prepared (the prolog is running).",
         "wait; if the prolog runs for several minutes, tell your administrators"),
    _row("Cleaning", ALONE, "The job was requeued, and its previous launch is still being cleaned up on the nodes.",
         "wait; if the cleanup takes several minutes, tell your administrators: a node may be hung"),
    _row("FedJobLock", ALONE, "The clusters of the federation have not yet agreed which one starts the job.", "wait"),
    _row("JobArrayTaskLimit", ALONE, "The array already has as many running tasks as its limit (%N) allows.",
         "wait, or raise the limit: `scontrol update JobId={job} ArrayTaskThrottle=N`"),
    _row("MpiPortsBusy", ALONE, "All ports that Slurm reserves for MPI are in use on the nodes that the job would get.",
         "wait for other jobs on those nodes to end", f"Slurm 24.05 to 26.05, {SOURCE}"),
    _row("NvidiaImexChannels", ALONE, "All NVIDIA IMEX channels (for sharing GPU memory between nodes) are in use.",
         "wait until a job that uses a channel ends", f"Slurm 25.11 to 26.05, {SOURCE}"),
    _row("MaxPoweredUpNodes", ALONE, "The cluster has reached its limit on powered-up nodes.",
         "wait for other nodes to be powered down", f"Slurm 24.05 to 26.05, {SOURCE}"),
    _row("Licenses", ALONE, "Not enough of the requested licenses are free.",
         "wait; `scontrol show licenses` shows how many are in use"),
    _row("BurstBufferResources", ALONE, "The burst buffer currently has no space for the job.",
         "wait; see the burst buffer's state with `scontrol show burstbuffer`"),
    _row("BurstBufferStageIn", ALONE, "The job's files are being copied into the burst buffer.",
         "wait; see the burst buffer's state with `scontrol show burstbuffer`"),
    # -- requested by the user -------------------------------------------------------------------------------------
    _row("BeginTime", ALONE,
         "The job's earliest start time is in the future (set with --begin, or by the delay after a requeue).",
         "wait, or start the job now: `scontrol update JobId={job} StartTime=now`"),
    _row("Dependency", ALONE, "The job is waiting for another job (--dependency).",
         "wait, or remove the dependency: `scontrol update JobId={job} Dependency=`"),
    _row("DependencyNeverSatisfied", NEVER,
         "The job's --dependency can never be satisfied: the other job did not end as required.",
         "remove the dependency: `scontrol update JobId={job} Dependency=`, or run `clusterrun cancel {job}`"),
    _row("JobHeldUser", YOU, "The job was held by its user, or was requeued and held.",
         "release the job: `scontrol release {job}`"),
    _row("Reservation", ALONE, "The job's reservation has not begun, or is full.",
         "wait; see the reservation with `scontrol show reservation`"),
    _row("ReservationDeleted", YOU, "The job's reservation was deleted, so the job is held.",
         "set another reservation with `scontrol update JobId={job} ReservationName=NAME` (leave NAME empty for no "
         "reservation), then run `scontrol release {job}`"),
    _row("ReservationInvalid", YOU, "The job's reservation is no longer valid, so the job is held.",
         "release the job by setting another reservation: `scontrol update JobId={job} ReservationName=NAME` "
         "(leave NAME empty for no reservation)",
         f"Slurm 23.02 to 26.05, {SOURCE}"),
    # -- the request does not fit ----------------------------------------------------------------------------------
    _row("PartitionTimeLimit", YOU, "The job's time limit is longer than the partition allows.",
         "request less time (`scontrol show partition` shows MaxTime), or move the job: "
         "`scontrol update JobId={job} Partition=NAME`"),
    _row("PartitionNodeLimit", YOU,
         "The partition does not allow the number of nodes requested, or has too few nodes in service.",
         "set the number of nodes to N: `scontrol update JobId={job} NumNodes=N-N`, or move the job: "
         "`scontrol update JobId={job} Partition=NAME`"),
    _row("PartitionConfig", YOU, "The partition's limits do not allow the job.",
         "move the job: `scontrol update JobId={job} Partition=NAME`; `scontrol show partition` shows the limits"),
    _row("MaxMemPerLimit", YOU, "The job requests more memory per CPU or per node than the partition allows.",
         f"{_AGAIN} with a lower --mem; `scontrol show partition` shows the limit (MaxMemPerCPU or MaxMemPerNode)"),
    _row("BadConstraints", YOU,
         "No node has everything that the job requests (features, GPUs, memory …), so the job is held.",
         "compare the request with the output of `sinfo -o '%P %D %c %m %G %f'`; then change the request with "
         "`scontrol update JobId={job} …`, or run `clusterrun cancel {job}` and submit a request that fits"),
    _row("Constraints", ALONE, "Too few nodes currently satisfy the job's constraints (--extra).",
         "compare Extra in `scontrol show job {job}` with Extra in `scontrol show node`; "
         "the job starts once enough nodes match"),
    _row("ReqNodeNotAvail", ALONE, "The requested nodes, or all suitable nodes, are down, drained, reserved or in use.",
         "wait, or request other nodes; if the nodes are reserved for later, request less time; "
         "`sinfo -R` shows why nodes are down or drained"),
    _row("AccountNotAllowed", YOU,
         "The partition does not accept the job's account, or accepts none of the user's groups.",
         "move the job to another account or partition: `scontrol update JobId={job} Account=NAME` or "
         "`scontrol update JobId={job} Partition=NAME`; "
         "`scontrol show partition` shows AllowAccounts and AllowGroups"),
    _row("QOSNotAllowed", YOU, "The partition or the account does not accept the job's QOS.",
         "move the job to another QOS or partition: `scontrol update JobId={job} QOS=NAME` or "
         "`scontrol update JobId={job} Partition=NAME`; "
         "`scontrol show partition` shows AllowQos"),
    _row("InvalidAccount", YOU,
         "The job's account does not exist, or the job's user is not a member of the account.",
         "set another account: `scontrol update JobId={job} Account=NAME`; see your accounts with "
         "`sacctmgr show assoc user=$USER format=account`"),
    _row("InvalidQOS", YOU, "The job's QOS does not exist, or the job's account may not use that QOS.",
         "set another QOS: `scontrol update JobId={job} QOS=NAME`; see your accounts and QOS with "
         "`sacctmgr show assoc user=$USER format=account,qos`"),
    _row("QOSUsageThreshold", ALONE,
         "The user's fair share is below the minimum that the job's QOS requires (UsageThreshold).",
         "wait until past usage decays (see `sshare`), or set another QOS: `scontrol update JobId={job} QOS=NAME`"),
    # -- unnamed limits --------------------------------------------------------------------------------------------
    _row("AccountingPolicy", ALONE,
         "A QOS or association limit blocks the job; Slurm does not say which one.",
         _LIMITS),
    _row("AssociationJobLimit", ALONE,
         "The job's account has reached its limit on the number of jobs.", f"wait; {_LIMITS}"),
    _row("AssociationResourceLimit", ALONE, "The job's account has reached one of its resource limits.",
         f"wait; {_LIMITS}"),
    _row("AssociationTimeLimit", YOU, "The job's time limit is longer than its account allows.",
         f"request less time; {_LIMITS}"),
    _row("QOSJobLimit", ALONE, "The job's QOS has reached its limit on the number of jobs.", f"wait; {_LIMITS}"),
    _row("QOSResourceLimit", ALONE, "The job's QOS has reached one of its resource limits.",
         f"wait; {_LIMITS}"),
    _row("QOSTimeLimit", YOU, "The job's time limit is longer than its QOS allows.",
         f"request less time; {_LIMITS}"),
    # -- the cluster -----------------------------------------------------------------------------------------------
    _row("JobHeldAdmin", ADMIN, "The job is held by an administrator or a site policy; users cannot release it.",
         "ask the administrators to release the job; `scontrol show job {job}` shows their comment, if any"),
    _row("JobHoldMaxRequeue", ADMIN,
         "The job has reached the cluster's limit on failed starts, so the job is held.",
         "ask the administrators to find the cause in slurmd's log and to release the job; or, if the cause was "
         f"temporary, {_AGAIN}"),
    _row("PartitionDown", ADMIN, "The partition accepts jobs but starts none: its state is DOWN.",
         "wait until the administrators bring the partition up, or move the job: "
         "`scontrol update JobId={job} Partition=NAME`"),
    _row("PartitionInactive", ADMIN, "The partition is out of service: its state is INACTIVE.",
         "wait until the administrators bring the partition up, or move the job: "
         "`scontrol update JobId={job} Partition=NAME`"),
    _row("NodeDown", ADMIN, "A node that the job needs is down.",
         "wait until the node is back (`sinfo -R` shows why it is down), or submit again without --nodelist"),
    _row("FrontEndDown", ADMIN, "No front-end node is available to start the job.",
         "wait until the administrators bring a front-end node up",
         f"Slurm 22.05 to 24.11, {OLD_SOURCE}"),
    _row("PowerNotAvail", ALONE, "There is currently not enough power for the job.", "wait",
         f"Slurm 22.05 to 23.11, {OLD_SOURCE}"),
    _row("PowerReserved", ALONE, "The power that the job needs is set aside for a reservation.", "wait",
         f"Slurm 22.05 to 23.11, {OLD_SOURCE}"),
    _row("BlockMaxError", ADMIN, "BlueGene: a block of nodes has failed too often.", "tell your administrators",
         f"Slurm 22.05, {OLD_SOURCE}"),
    _row("BlockFreeAction", ALONE, "BlueGene: a block of nodes is being freed.", "wait", f"Slurm 22.05, {OLD_SOURCE}"),
    _row("BurstBufferOperation", YOU, "A burst buffer operation failed; the job may be held.",
         "see the error with `scontrol show job {job}`; then run `clusterrun cancel {job}`, and submit again with a "
         "corrected burst buffer request"),
    # -- how a job ended -------------------------------------------------------------------------------------------
    _row("NonZeroExitCode", OVER, "The job ended with an exit status other than 0.", _WHY),
    _row("RaisedSignal", OVER, "The job was killed by a signal.", _WHY, f"Slurm 23.02 to 26.05, {SOURCE}"),
    _row("TimeLimit", OVER, "The job reached its time limit.", _WHY),
    _row("OutOfMemory", OVER, "The job used more memory than it requested and was killed.", _WHY),
    _row("InactiveLimit", OVER, "The job was inactive for longer than the cluster allows.", _WHY),
    _row("DeadLine", OVER, "The job could not finish before its --deadline, so Slurm removed the job.",
         "submit the job with a later --deadline or a shorter time limit"),
    _row("JobLaunchFailure", OVER,
         "The job could not start on its node: the log folder may be missing, or the disk may be full.",
         _WHY),
    _row("SystemFailure", OVER, "Slurm itself, a file system or the network failed.",
         f"{_WHY}, then submit the job again"),
)  # fmt: skip

_BY_WORD = {row.word: row for row in ROWS}
#: Sentences that slurmctld writes instead of a reason (``state_desc``), each with that reason. Source: 22.05.8 and
#: 26.05.3, node_scheduler.c, job_scheduler.c, partition_mgr.c, reservation.c, job_mgr.c, acct_policy.c.
SENTENCES: tuple[tuple[re.Pattern[str], Reason], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), row)
    for pattern, row in (
        (r"Nodes required for job are DOWN, DRAINED or reserved",
         _row("Resources", ALONE, "Every suitable node is down, drained, or reserved for higher-priority jobs.",
              "wait; `sinfo -R` shows why nodes are down, and `clusterrun free` shows free GPUs and nodes",
              "Slurm 22.05 to 26.05, src/slurmctld/job_scheduler.c")),
        (r"launch failure limit exceeded requeued held", _BY_WORD["JobHoldMaxRequeue"]),
        (r"user env retrieval failed requeued held",
         _row("JobHeldUser", YOU, "The user's login environment could not be read on the node, so the job is held.",
              "fix any command that hangs in your shell's startup files, then run `scontrol release {job}`",
              "Slurm 26.05, src/slurmctld/job_mgr.c")),
        (r"launch failed requeued held",
         _row("JobHeldUser", YOU,
              "The job could not be started on its node (a prolog may have failed), so the job is held.",
              "run `scontrol release {job}`; if the job is held again, ask the administrators to look "
              "for the cause in slurmd's log",
              "Slurm 22.05 to 26.05, src/slurmctld/job_mgr.c")),
        (r"job requeued in (held|special exit) state",
         _row("JobHeldUser", YOU, "The job was requeued and held (`scontrol requeuehold`).",
              "release the job: `scontrol release {job}`", "Slurm 26.05, src/slurmctld/job_mgr.c")),
        (r"Reservation .* was deleted", _BY_WORD["ReservationDeleted"]),
        (r"Reservation .* is invalid", _BY_WORD["ReservationInvalid"]),
        (r"not in group permitted to use this partition|account not (permitted|known)", _BY_WORD["AccountNotAllowed"]),
        (r"QOS not (permitted|known)", _BY_WORD["QOSNotAllowed"]),
        (r"License request .* is no longer valid",
         _row("JobHeldAdmin", ADMIN, "A license that the job requests no longer exists, so the job is held.",
              "run `scontrol update JobId={job} Licenses=`, then ask the administrators to release the job",
              "Slurm 26.05, src/slurmctld/read_config.c")),
    )
)  # fmt: skip
