"""The reasons that name a limit of a QOS or an association: each family has one reason per resource.

Slurm spells a few of them differently (``QOSGrpCpuLimit``, ``QOSGrpGRES``). The limits are described in
slurm.schedmd.com/resource_limits.html.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from clusterrun.scheduler.slurm.reasons.words import PAGE, SOURCE, Limit, Reason, Starts

#: A resource in a reason -> in a TRES list, and in a sentence.
RESOURCES: dict[str, tuple[str, str]] = {
    "Cpu": ("cpu", "CPUs"),
    "Memory": ("mem", "memory"),
    "Node": ("node", "nodes"),
    "GRES": ("gres", "GPUs (or other GRES)"),
    "License": ("license", "licenses"),
    "BB": ("bb", "burst buffer space"),
    "Billing": ("billing", "billing units"),
    "Energy": ("energy", "energy"),
    "Unknown": ("", "resources (Slurm does not say which)"),
}

_WHO = {"qos": "the job's QOS", "association": "the job's association (account or user)"}
_SEE = {
    "qos": "see the limit with `scontrol show assoc_mgr flags=qos`",
    "association": "see the limit with `scontrol show assoc_mgr flags=assoc users=$USER`",
}
_ELSE = {
    "qos": "move the job to another QOS: `scontrol update JobId={job} QOS=NAME`",
    "association": "move the job to another of your accounts: `scontrol update JobId={job} Account=NAME`",
}
_SMALLER = "request less (run `clusterrun cancel {job}`, then submit again)"


def _family(
    owner: str, pattern: str, field: str, setting: str, meaning: str, starts: Starts, action: str,
    spelt: Mapping[str, str] | None = None, *, without: Collection[str] = (), source: str = PAGE, least: bool = False,
) -> list[Reason]:  # fmt: skip
    """Return the reasons of one limit: ``{}`` in ``pattern`` and ``meaning`` is a resource, ``spelt`` has odd words."""
    return [
        Reason(
            word=(spelt or {}).get(resource, pattern).format(resource),
            meaning=_sentence(meaning.format(noun, who=_WHO[owner])),
            starts=starts,
            action=action.replace("SEE", _SEE[owner]).replace("ELSE", _ELSE[owner]),
            source=source,
            limit=Limit(owner=owner, field=field, setting=setting, tres=tres, least=least),
        )
        for resource, (tres, noun) in RESOURCES.items()
        if resource not in without
    ]


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


_ALL_USED = "Together with the running jobs in {who}, this job would use more {} than allowed."
_BUDGET = "{who} limits the total TRES minutes of {}, and too few minutes are left for this job."
_PROMISED = "Together with the running jobs in {who}, this job could use more TRES minutes of {} than allowed."
_JOB_MORE = "The job requests more {} than {who} allows per job."
_NODE_MORE = "The job requests more {} on one node than {who} allows."
_JOB_MINUTES = "Within its time limit, the job could use more TRES minutes of {} than {who} allows per job."
_WAIT = "wait for the jobs that count toward this limit to end, or ELSE; SEE"
_SPENT = "ask an administrator to raise the limit, or ELSE; SEE"
_SHORTER = "request fewer resources or a shorter time limit, or ELSE; SEE"
_LESS = f"{_SMALLER}, or ELSE; SEE"
_NEWER = f"Slurm 24.05 to 26.05, {SOURCE}"

_CPU_MEM_NODE = {"Cpu": "CpuLimit", "Memory": "MemLimit", "Node": "NodeLimit"}


def _of_both(owner: str, prefix: str) -> list[Reason]:
    """Return the reasons that exist for a QOS and for an association; of the latter, memory is ``Mem``."""

    def family(
        pattern: str, field: str, setting: str, meaning: str, starts: Starts, action: str, cpu: str = "",
        node: str = "", without: Collection[str] = (),
    ) -> list[Reason]:  # fmt: skip
        memory = pattern.format("Mem") if owner == "association" else ""
        odd = {resource: prefix + word for resource, word in (("Cpu", cpu), ("Memory", memory), ("Node", node)) if word}
        return _family(owner, prefix + pattern, field, setting, meaning, starts, action, odd, without=without)

    return [
        *_family(owner, f"{prefix}Grp{{}}", "GrpTRES", "GrpTRES", _ALL_USED, Starts.ALONE, _WAIT,
                 {resource: f"{prefix}Grp{word}" for resource, word in _CPU_MEM_NODE.items()}),
        *family("Grp{}Minutes", "GrpTRESMins", "GrpTRESMins", _BUDGET, Starts.ADMIN, _SPENT, "GrpCPUMinutesLimit"),
        *family("Grp{}RunMinutes", "GrpTRESRunMins", "GrpTRESRunMins", _PROMISED, Starts.ALONE, _WAIT,
                "GrpCPURunMinutesLimit"),
        *family("Max{}PerJob", "MaxTRESPJ", "MaxTRESPerJob", _JOB_MORE, Starts.YOU, _LESS,
                "MaxCpuPerJobLimit", "MaxNodePerJobLimit"),
        *family("Max{}PerNode", "MaxTRESPN", "MaxTRESPerNode", _NODE_MORE, Starts.YOU, _LESS,
                without=("Node", "License")),
        *family("Max{}MinutesPerJob", "MaxTRESMinsPJ", "MaxTRESMinsPerJob", _JOB_MINUTES, Starts.YOU, _SHORTER,
                "MaxCpuMinutesPerJobLimit"),
        _count(f"{prefix}GrpJobsLimit", owner, "GrpJobs", "GrpJobs", _JOBS, Starts.ALONE, _WAIT),
        _count(f"{prefix}GrpSubmitJobsLimit", owner, "GrpSubmitJobs", "GrpSubmitJobs", _QUEUED, Starts.ALONE, _WAIT),
        _count(f"{prefix}GrpWallLimit", owner, "GrpWall", "GrpWall", _WALL, Starts.ADMIN, _SPENT),
        _count(f"{prefix}MaxWallDurationPerJobLimit", owner, "MaxWallPJ", "MaxWallDurationPerJob", _LONG, Starts.YOU,
               _CUT),
    ]  # fmt: skip


def _count(word: str, owner: str, field: str, setting: str, meaning: str, starts: Starts, action: str) -> Reason:
    """Return the reason of a limit that counts no resource."""
    return _family(owner, word, field, setting, meaning, starts, action)[-1]  # of the unknown resource


_JOBS = "{who} already has as many running jobs as it allows."
_QUEUED = "{who} already has as many pending and running jobs as it allows."
_WALL = "{who} limits the total run time of its jobs, and this job's time limit exceeds the time left."
_LONG = "The job's time limit is longer than {who} allows."
_CUT = "request a shorter time limit, or ELSE; SEE"

#: Every reason of this kind.
ROWS: tuple[Reason, ...] = (
    *_of_both("qos", "QOS"),
    *_of_both("association", "Assoc"),
    *_family("qos", "QOSMax{}PerUser", "MaxTRESPU", "MaxTRESPerUser",
             "Together with the user's running jobs, this job would use more {} than {who} allows per user.",
             Starts.ALONE, _WAIT, {"Cpu": "QOSMaxCpuPerUserLimit", "Node": "QOSMaxNodePerUserLimit"}),
    *_family("qos", "QOSMin{}", "MinTRESPJ", "MinTRESPerJob",
             "{who} requires more {} than the job requests.", Starts.YOU,
             "request more (run `clusterrun cancel {job}`, then submit again), or ELSE; SEE",
             {"Cpu": "QOSMinCpuNotSatisfied"}, least=True),
    *_family("qos", "Max{}PerAccount", "MaxTRESPA", "MaxTRESPerAccount",
             "Together with the account's running jobs, this job would use more {} than {who} allows per account.",
             Starts.ALONE, _WAIT),
    *_family("qos", "Max{}RunMinsPerAccount", "MaxTRESRunMinsPA", "MaxTRESRunMinsPerAccount",
             "Together with the account's running jobs, this job could use more TRES minutes of {} than {who} allows "
             "per account.", Starts.ALONE, _WAIT, source=_NEWER),
    *_family("qos", "Max{}RunMinsPerUser", "MaxTRESRunMinsPU", "MaxTRESRunMinsPerUser",
             "Together with the user's running jobs, this job could use more TRES minutes of {} than {who} allows "
             "per user.", Starts.ALONE, _WAIT, source=_NEWER),
    _count("QOSMaxJobsPerUserLimit", "qos", "MaxJobsPU", "MaxJobsPerUser",
           "The user already has as many running jobs as {who} allows per user.", Starts.ALONE, _WAIT),
    _count("QOSMaxSubmitJobPerUserLimit", "qos", "MaxSubmitJobsPU", "MaxSubmitJobsPerUser",
           "The user already has as many pending and running jobs as {who} allows per user.", Starts.ALONE, _WAIT),
    _count("MaxJobsPerAccount", "qos", "MaxJobsPA", "MaxJobsPerAccount",
           "The account already has as many running jobs as {who} allows per account.", Starts.ALONE, _WAIT),
    _count("MaxSubmitJobsPerAccount", "qos", "MaxSubmitJobsPA", "MaxSubmitJobsPerAccount",
           "The account already has as many pending and running jobs as {who} allows per account.",
           Starts.ALONE, _WAIT),
    _count("AssocMaxJobsLimit", "association", "MaxJobs", "MaxJobs", _JOBS, Starts.ALONE, _WAIT),
    _count("AssocMaxSubmitJobLimit", "association", "MaxSubmitJobs", "MaxSubmitJobs", _QUEUED, Starts.ALONE, _WAIT),
)  # fmt: skip
