"""The reasons that name no single limit, one row each, and the sentences that Slurm writes instead of a reason."""

from __future__ import annotations

import re

from clusterrun.reasons.reason import OLD_SOURCE, PAGE, SOURCE, Reason, Starts

_MAN = "Slurm 22.05 to 26.05, squeue(1), JOB REASON CODES"
_SHOW = "see why with `scontrol show job {job}`"
_AGAIN = "`clusterrun cancel {job}`, then submit again"
_FREE = "see what is free with `clusterrun free`"
_WHY = "`clusterrun why {job}` looks for the cause in its log"
_LIMITS = "see the limits with `scontrol show assoc_mgr flags=qos,assoc users=$USER`"


def _row(word: str, starts: Starts, meaning: str, action: str, source: str = PAGE) -> Reason:
    return Reason(word=word, meaning=meaning, starts=starts, action=action, source=source)


ALONE, YOU, ADMIN, NEVER, OVER = Starts.ALONE, Starts.YOU, Starts.ADMIN, Starts.NEVER, Starts.OVER

ROWS: tuple[Reason, ...] = (
    # -- the scheduler has not started it --------------------------------------------------------------------------
    _row("None", ALONE, "Slurm has not considered the job yet, or not since something changed.",
         "check again in a minute"),
    _row("WaitingForScheduling", ALONE, "Slurm has not considered the job yet.", "check again in a minute", _MAN),
    _row("Priority", ALONE, "Jobs with a higher priority wait for the same partition or reservation.",
         "wait, or request less (fewer nodes or GPUs, a shorter time limit), so that it fits into a gap before the "
         "jobs ahead of it; `clusterrun free` shows what is free"),
    _row("Resources", ALONE, "It is next in line, but the nodes, GPUs, CPUs or memory it requests are in use.",
         f"wait, or request less; {_FREE}"),
    _row("SchedDefer", ALONE, "It has --immediate, but this cluster starts jobs only in scheduling rounds.",
         "submit it without --immediate"),
    _row("Prolog", ALONE, "Its nodes are allocated and are being prepared (the prolog is running).",
         f"wait; if it takes minutes, {_SHOW} and tell your administrators"),
    _row("Cleaning", ALONE, "It was requeued, and its previous run is still being cleaned up on its nodes.",
         "wait; if it takes minutes, tell your administrators: a node may be hanging"),
    _row("FedJobLock", ALONE, "Another cluster of the federation is about to start it.", "wait"),
    _row("JobArrayTaskLimit", ALONE, "The array already runs as many tasks as its %N allows at a time.",
         "wait, or allow more: `scontrol update JobId={job} ArrayTaskThrottle=N`"),
    _row("MpiPortsBusy", ALONE, "The ports that Slurm reserves for MPI are all in use on the nodes it would get.",
         "wait for other jobs on those nodes to end", f"Slurm 24.05 to 26.05, {SOURCE}"),
    _row("NvidiaImexChannels", ALONE, "All NVIDIA IMEX channels (GPU memory shared between nodes) are in use.",
         "wait for a job that uses one to end", f"Slurm 25.11 to 26.05, {SOURCE}"),
    _row("MaxPoweredUpNodes", ALONE, "The cluster has powered up as many nodes as it allows at a time.",
         "wait for other nodes to be powered down", f"Slurm 24.05 to 26.05, {SOURCE}"),
    _row("Licenses", ALONE, "Not enough of the licenses it requests are free.",
         "wait; see how many are in use with `scontrol show licenses`"),
    _row("BurstBufferResources", ALONE, "The burst buffer has no space for it now.",
         "wait; see it with `scontrol show burstbuffer`"),
    _row("BurstBufferStageIn", ALONE, "Its files are being copied into the burst buffer.",
         "wait; see it with `scontrol show burstbuffer`"),
    # -- requested by the user -------------------------------------------------------------------------------------
    _row("BeginTime", ALONE, "It cannot start before a set time (--begin, or the delay after a requeue).",
         "wait, or start it now: `scontrol update JobId={job} StartTime=now`"),
    _row("Dependency", ALONE, "It waits for another job, as set by --dependency.",
         "wait, or drop the condition: `scontrol update JobId={job} Dependency=`"),
    _row("DependencyNeverSatisfied", NEVER, "It waits for another job, whose end does not satisfy --dependency.",
         "drop the condition: `scontrol update JobId={job} Dependency=`, or cancel it: `clusterrun cancel {job}`"),
    _row("JobHeldUser", YOU, "It is held by its user (or by a requeue with hold).", "`scontrol release {job}`"),
    _row("Reservation", ALONE, "Its reservation has not begun, or is full.",
         "wait; see it with `scontrol show reservation`"),
    _row("ReservationDeleted", YOU, "Its reservation was deleted; the job is held.",
         "set another one, `scontrol update JobId={job} ReservationName=NAME` (empty for none), then "
         "`scontrol release {job}`"),
    _row("ReservationInvalid", YOU, "Its reservation is no longer valid; the job is held.",
         "set another one, which also releases it: `scontrol update JobId={job} ReservationName=NAME` (empty: none)",
         f"Slurm 23.02 to 26.05, {SOURCE}"),
    # -- the request does not fit ----------------------------------------------------------------------------------
    _row("PartitionTimeLimit", YOU, "Its time limit is longer than the partition allows.",
         "request less time (`scontrol show partition` shows its MaxTime), or move it: "
         "`scontrol update JobId={job} Partition=NAME`"),
    _row("PartitionNodeLimit", YOU, "It requests more or fewer nodes than the partition allows or has in service.",
         "`scontrol update JobId={job} NumNodes=N-N`, or move it: `scontrol update JobId={job} Partition=NAME`"),
    _row("PartitionConfig", YOU, "The partition's limits do not allow it.",
         "compare it with `scontrol show partition`, or move it: `scontrol update JobId={job} Partition=NAME`"),
    _row("MaxMemPerLimit", YOU, "It requests more memory per CPU or per node than the partition allows.",
         f"request less --mem: {_AGAIN}; the limit is MaxMemPerCPU or MaxMemPerNode of `scontrol show partition`"),
    _row("BadConstraints", YOU, "No node has all it requests (features, GPUs, memory …); the job is held.",
         "compare it with `sinfo -o '%P %D %c %m %G %f'`; any `scontrol update JobId={job} …` makes Slurm check again; "
         f"or {_AGAIN}"),
    _row("Constraints", YOU, "No node currently has everything it requests.",
         "compare it with `sinfo -o '%P %D %c %m %G %f'`; it starts once a node has all of it"),
    _row("ReqNodeNotAvail", ALONE, "Its nodes, or all suitable nodes, are down, drained, reserved or in use.",
         "wait until they are back (`sinfo -R` says why nodes are out), or submit it for other nodes or less time"),
    _row("AccountNotAllowed", YOU, "The partition does not accept jobs of this account or group.",
         "move it: `scontrol update JobId={job} Account=NAME` or `scontrol update JobId={job} Partition=NAME`; "
         "`scontrol show partition` shows AllowAccounts and AllowGroups"),
    _row("QOSNotAllowed", YOU, "The partition or the account does not accept jobs of this QOS.",
         "move it: `scontrol update JobId={job} QOS=NAME` or `scontrol update JobId={job} Partition=NAME`; "
         "`scontrol show partition` shows AllowQos"),
    _row("InvalidAccount", YOU, "Its account does not exist, or its user is not in it.",
         "`scontrol update JobId={job} Account=NAME`; your accounts: `sacctmgr show assoc user=$USER format=account`"),
    _row("InvalidQOS", YOU, "Its QOS does not exist, or its account may not use it.",
         "`scontrol update JobId={job} QOS=NAME`; your QOS: `sacctmgr show assoc user=$USER format=account,qos`"),
    _row("QOSUsageThreshold", ALONE, "Its user's fair share is below what the job's QOS requires (UsageThreshold).",
         "wait until past usage decays (`sshare`), or `scontrol update JobId={job} QOS=NAME`"),
    # -- unnamed limits --------------------------------------------------------------------------------------------
    _row("AccountingPolicy", ALONE, "A limit of the QOS or the association blocks it; Slurm does not say which.",
         _LIMITS),
    _row("AssociationJobLimit", ALONE, "Its account has reached its limit on jobs.", f"wait; {_LIMITS}"),
    _row("AssociationResourceLimit", ALONE, "Its account has reached its limit on some resource.",
         f"wait; {_LIMITS}"),
    _row("AssociationTimeLimit", YOU, "The job's time limit is more than its account allows.",
         f"request less time; {_LIMITS}"),
    _row("QOSJobLimit", ALONE, "The job's QOS has reached its limit on jobs.", f"wait; {_LIMITS}"),
    _row("QOSResourceLimit", ALONE, "The job's QOS has reached its limit on some resource.",
         f"wait; {_LIMITS}"),
    _row("QOSTimeLimit", YOU, "The job's time limit is more than its QOS allows.",
         f"request less time; {_LIMITS}"),
    # -- the cluster -----------------------------------------------------------------------------------------------
    _row("JobHeldAdmin", ADMIN, "It is held by an administrator (or a site rule); its user cannot release it.",
         f"ask the administrators; {_SHOW}"),
    _row("JobHoldMaxRequeue", ADMIN, "It failed to start as many times as the cluster allows; the job is held.",
         f"{_AGAIN}, or ask the administrators: slurmd's log shows the cause"),
    _row("PartitionDown", ADMIN, "The partition accepts jobs but starts none: its state is DOWN.",
         "wait for the administrators, or move it: `scontrol update JobId={job} Partition=NAME`"),
    _row("PartitionInactive", ADMIN, "The partition is out of service: its state is INACTIVE.",
         "wait for the administrators, or move it: `scontrol update JobId={job} Partition=NAME`"),
    _row("NodeDown", ADMIN, "A node it needs is down.",
         "`sinfo -R` says why; drop --nodelist, or wait until it is back"),
    _row("FrontEndDown", ADMIN, "No front-end node is up to start it.", "wait for the administrators",
         f"Slurm 22.05 to 24.11, {OLD_SOURCE}"),
    _row("PowerNotAvail", ALONE, "There is not enough power for it now.", "wait",
         f"Slurm 22.05 to 23.11, {OLD_SOURCE}"),
    _row("PowerReserved", ALONE, "The power it needs is reserved for later.", "wait",
         f"Slurm 22.05 to 23.11, {OLD_SOURCE}"),
    _row("BlockMaxError", ADMIN, "BlueGene: a block of nodes has failed too often.", "tell your administrators",
         f"Slurm 22.05, {OLD_SOURCE}"),
    _row("BlockFreeAction", ALONE, "BlueGene: a block of nodes is being freed.", "wait", f"Slurm 22.05, {OLD_SOURCE}"),
    _row("BurstBufferOperation", YOU, "A burst buffer operation failed; the job may be held.",
         f"{_SHOW}; fix the request, then `scontrol release {{job}}`"),
    # -- how a job ended -------------------------------------------------------------------------------------------
    _row("NonZeroExitCode", OVER, "It ended with an exit status other than 0.", _WHY),
    _row("RaisedSignal", OVER, "A signal ended it.", _WHY, f"Slurm 23.02 to 26.05, {SOURCE}"),
    _row("TimeLimit", OVER, "It reached its time limit.", _WHY),
    _row("OutOfMemory", OVER, "It used more memory than it requested and was killed.", _WHY),
    _row("InactiveLimit", OVER, "It was inactive for longer than the cluster allows.", _WHY),
    _row("DeadLine", OVER, "It could not end before its --deadline, so Slurm removed it.",
         "submit it with a later --deadline or a shorter time limit"),
    _row("JobLaunchFailure", OVER, "It could not start on its node: its log folder may be missing, or the disk full.",
         _WHY),
    _row("SystemFailure", OVER, "Slurm itself, a file system or the network failed.", f"{_WHY}; submit it again"),
)  # fmt: skip

_BY_WORD = {row.word: row for row in ROWS}
#: Sentences that slurmctld writes instead of a reason (``state_desc``), each with that reason. Source: 22.05.8 and
#: 26.05.3, node_scheduler.c, job_scheduler.c, partition_mgr.c, reservation.c, job_mgr.c, acct_policy.c.
SENTENCES: tuple[tuple[re.Pattern[str], Reason], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), row)
    for pattern, row in (
        (r"Nodes required for job are DOWN, DRAINED or reserved",
         _row("Resources", ALONE, "Every suitable node is down, drained, or reserved for higher-priority jobs.",
              f"wait; `sinfo -R` says why nodes are out; {_FREE}",
              "Slurm 22.05 to 26.05, src/slurmctld/job_scheduler.c")),
        (r"launch failure limit exceeded requeued held", _BY_WORD["JobHoldMaxRequeue"]),
        (r"user env retrieval failed requeued held",
         _row("JobHeldUser", YOU, "Its user's login environment could not be read on the node; the job is held.",
              "look for a command that blocks in your shell's profile, then `scontrol release {job}`",
              "Slurm 26.05, src/slurmctld/job_mgr.c")),
        (r"launch failed requeued held",
         _row("JobHeldUser", YOU, "It could not be started on its node (perhaps a prolog failed); the job is held.",
              "`scontrol release {job}`; if it happens again, ask the administrators: slurmd's log shows the cause",
              "Slurm 22.05 to 26.05, src/slurmctld/job_mgr.c")),
        (r"job requeued in (held|special exit) state",
         _row("JobHeldUser", YOU, "It was requeued and held (`scontrol requeuehold`).",
              "`scontrol release {job}`", "Slurm 26.05, src/slurmctld/job_mgr.c")),
        (r"Reservation .* was deleted", _BY_WORD["ReservationDeleted"]),
        (r"Reservation .* is invalid", _BY_WORD["ReservationInvalid"]),
        (r"not in group permitted to use this partition|account not (permitted|known)", _BY_WORD["AccountNotAllowed"]),
        (r"QOS not (permitted|known)", _BY_WORD["QOSNotAllowed"]),
        (r"License request .* is no longer valid",
         _row("JobHeldAdmin", ADMIN, "A license it requests no longer exists; the job is held.",
              "`scontrol update JobId={job} Licenses=`, then ask the administrators to release it",
              "Slurm 26.05, src/slurmctld/read_config.c")),
    )
)  # fmt: skip
