"""The reasons that name a limit of a QOS or an association: each family has one reason per resource.

Slurm spells a few of them differently (``QOSGrpCpuLimit``, ``QOSGrpGRES``). The limits are described in
slurm.schedmd.com/resource_limits.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class _Family:
    """The reasons of one limit: ``{}`` in ``pattern`` and ``meaning`` is a resource, ``odd`` has special spellings."""

    owner: str
    pattern: str
    limit: str
    setting: str
    meaning: str
    starts: Starts
    action: str
    odd: dict[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    source: str = PAGE
    least: bool = False

    def rows(self) -> Iterator[Reason]:
        for name, (tres, noun) in RESOURCES.items():
            if name not in self.without:
                yield self.row(self.odd.get(name, self.pattern.format(name)), tres, noun)

    def row(self, word: str, tres: str = "", noun: str = "") -> Reason:
        meaning = self.meaning.format(noun, who=_WHO[self.owner])
        return Reason(
            word=word,
            meaning=meaning[0].upper() + meaning[1:],
            starts=self.starts,
            action=self.action.replace("SEE", _SEE[self.owner]).replace("ELSE", _ELSE[self.owner]),
            source=self.source,
            limit=Limit(owner=self.owner, field=self.limit, setting=self.setting, tres=tres, least=self.least),
        )


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

_FAMILIES = (
    _Family("qos", "QOSGrp{}", "GrpTRES", "GrpTRES", _ALL_USED, Starts.ALONE, _WAIT,
            {"Cpu": "QOSGrpCpuLimit", "Memory": "QOSGrpMemLimit", "Node": "QOSGrpNodeLimit"}),
    _Family("qos", "QOSGrp{}Minutes", "GrpTRESMins", "GrpTRESMins", _BUDGET, Starts.ADMIN, _SPENT,
            {"Cpu": "QOSGrpCPUMinutesLimit"}),
    _Family("qos", "QOSGrp{}RunMinutes", "GrpTRESRunMins", "GrpTRESRunMins", _PROMISED, Starts.ALONE, _WAIT,
            {"Cpu": "QOSGrpCPURunMinutesLimit"}),
    _Family("qos", "QOSMax{}PerJob", "MaxTRESPJ", "MaxTRESPerJob", _JOB_MORE, Starts.YOU, _LESS,
            {"Cpu": "QOSMaxCpuPerJobLimit", "Node": "QOSMaxNodePerJobLimit"}),
    _Family("qos", "QOSMax{}PerNode", "MaxTRESPN", "MaxTRESPerNode", _NODE_MORE, Starts.YOU, _LESS,
            without=frozenset({"Node", "License"})),
    _Family("qos", "QOSMax{}MinutesPerJob", "MaxTRESMinsPJ", "MaxTRESMinsPerJob", _JOB_MINUTES, Starts.YOU, _SHORTER,
            {"Cpu": "QOSMaxCpuMinutesPerJobLimit"}),
    _Family("qos", "QOSMax{}PerUser", "MaxTRESPU", "MaxTRESPerUser",
            "Together with the user's running jobs, this job would use more {} than {who} allows per user.",
            Starts.ALONE, _WAIT,
            {"Cpu": "QOSMaxCpuPerUserLimit", "Node": "QOSMaxNodePerUserLimit"}),
    _Family("qos", "QOSMin{}", "MinTRESPJ", "MinTRESPerJob",
            "{who} requires more {} than the job requests.", Starts.YOU,
            "request more (run `clusterrun cancel {job}`, then submit again), or ELSE; SEE",
            {"Cpu": "QOSMinCpuNotSatisfied"}, least=True),
    _Family("qos", "Max{}PerAccount", "MaxTRESPA", "MaxTRESPerAccount",
            "Together with the account's running jobs, this job would use more {} than {who} allows per account.",
            Starts.ALONE, _WAIT),
    _Family("qos", "Max{}RunMinsPerAccount", "MaxTRESRunMinsPA", "MaxTRESRunMinsPerAccount",
            "Together with the account's running jobs, this job could use more TRES minutes of {} than {who} allows per"
            " account.",
            Starts.ALONE, _WAIT, source=_NEWER),
    _Family("qos", "Max{}RunMinsPerUser", "MaxTRESRunMinsPU", "MaxTRESRunMinsPerUser",
            "Together with the user's running jobs, this job could use more TRES minutes of {} than {who} allows per"
            " user.",
            Starts.ALONE, _WAIT, source=_NEWER),
    _Family("association", "AssocGrp{}", "GrpTRES", "GrpTRES", _ALL_USED, Starts.ALONE, _WAIT,
            {"Cpu": "AssocGrpCpuLimit", "Memory": "AssocGrpMemLimit", "Node": "AssocGrpNodeLimit"}),
    _Family("association", "AssocGrp{}Minutes", "GrpTRESMins", "GrpTRESMins", _BUDGET, Starts.ADMIN, _SPENT,
            {"Cpu": "AssocGrpCPUMinutesLimit", "Memory": "AssocGrpMemMinutes"}),
    _Family("association", "AssocGrp{}RunMinutes", "GrpTRESRunMins", "GrpTRESRunMins", _PROMISED, Starts.ALONE, _WAIT,
            {"Cpu": "AssocGrpCPURunMinutesLimit", "Memory": "AssocGrpMemRunMinutes"}),
    _Family("association", "AssocMax{}PerJob", "MaxTRESPJ", "MaxTRESPerJob", _JOB_MORE, Starts.YOU, _LESS,
            {"Cpu": "AssocMaxCpuPerJobLimit", "Memory": "AssocMaxMemPerJob", "Node": "AssocMaxNodePerJobLimit"}),
    _Family("association", "AssocMax{}PerNode", "MaxTRESPN", "MaxTRESPerNode", _NODE_MORE, Starts.YOU, _LESS,
            {"Memory": "AssocMaxMemPerNode"}, without=frozenset({"Node", "License"})),
    _Family("association", "AssocMax{}MinutesPerJob", "MaxTRESMinsPJ", "MaxTRESMinsPerJob", _JOB_MINUTES,
            Starts.YOU, _SHORTER,
            {"Cpu": "AssocMaxCpuMinutesPerJobLimit", "Memory": "AssocMaxMemMinutesPerJob"}),
)  # fmt: skip


def _count(word: str, owner: str, limit: str, setting: str, meaning: str, starts: Starts, action: str) -> Reason:
    return _Family(owner, word, limit, setting, meaning, starts, action).row(word)


_JOBS = "{who} already has as many running jobs as it allows."
_QUEUED = "{who} already has as many pending and running jobs as it allows."
_WALL = "{who} limits the total run time of its jobs, and this job's time limit exceeds the time left."
_LONG = "The job's time limit is longer than {who} allows."
_CUT = "request a shorter time limit, or ELSE; SEE"

_COUNTS = (
    _count("QOSGrpJobsLimit", "qos", "GrpJobs", "GrpJobs", _JOBS, Starts.ALONE, _WAIT),
    _count("QOSGrpSubmitJobsLimit", "qos", "GrpSubmitJobs", "GrpSubmitJobs", _QUEUED, Starts.ALONE, _WAIT),
    _count("QOSGrpWallLimit", "qos", "GrpWall", "GrpWall", _WALL, Starts.ADMIN, _SPENT),
    _count("QOSMaxJobsPerUserLimit", "qos", "MaxJobsPU", "MaxJobsPerUser",
           "The user already has as many running jobs as {who} allows per user.", Starts.ALONE, _WAIT),
    _count("QOSMaxSubmitJobPerUserLimit", "qos", "MaxSubmitJobsPU", "MaxSubmitJobsPerUser",
           "The user already has as many pending and running jobs as {who} allows per user.",
           Starts.ALONE, _WAIT),
    _count("QOSMaxWallDurationPerJobLimit", "qos", "MaxWallPJ", "MaxWallDurationPerJob", _LONG, Starts.YOU, _CUT),
    _count("MaxJobsPerAccount", "qos", "MaxJobsPA", "MaxJobsPerAccount",
           "The account already has as many running jobs as {who} allows per account.", Starts.ALONE, _WAIT),
    _count("MaxSubmitJobsPerAccount", "qos", "MaxSubmitJobsPA", "MaxSubmitJobsPerAccount",
           "The account already has as many pending and running jobs as {who} allows per account.",
           Starts.ALONE, _WAIT),
    _count("AssocGrpJobsLimit", "association", "GrpJobs", "GrpJobs", _JOBS, Starts.ALONE, _WAIT),
    _count("AssocGrpSubmitJobsLimit", "association", "GrpSubmitJobs", "GrpSubmitJobs", _QUEUED, Starts.ALONE, _WAIT),
    _count("AssocGrpWallLimit", "association", "GrpWall", "GrpWall", _WALL, Starts.ADMIN, _SPENT),
    _count("AssocMaxJobsLimit", "association", "MaxJobs", "MaxJobs", _JOBS, Starts.ALONE, _WAIT),
    _count("AssocMaxSubmitJobLimit", "association", "MaxSubmitJobs", "MaxSubmitJobs", _QUEUED, Starts.ALONE, _WAIT),
    _count("AssocMaxWallDurationPerJobLimit", "association", "MaxWallPJ", "MaxWallDurationPerJob", _LONG,
           Starts.YOU, _CUT),
)  # fmt: skip

#: Every reason of this kind.
ROWS: tuple[Reason, ...] = (*(row for family in _FAMILIES for row in family.rows()), *_COUNTS)
