"""Everything that reads an answer of Slurm's, each beside an answer of a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterrun.base.job import JobId, JobStatus, outcome_of
from clusterrun.cli.logfiles import find_external_logs
from clusterrun.config import init_file
from clusterrun.config.survey import run_survey
from clusterrun.free import snapshot, text
from clusterrun.free.account_limits import exceeded_limits
from clusterrun.free.estimate import ShapeEstimate, StartEstimates, refusals
from clusterrun.free.shapes import Shape, shape_of, why_never
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command, build_spec
from clusterrun.records.store import Store
from clusterrun.scheduler import ClusterFacts, Scheduler, Submission
from clusterrun.scheduler.slurm import allocation
from clusterrun.scheduler.slurm.client import SlurmScheduler
from clusterrun.scheduler.slurm.sbatch import Start, estimate_start
from clusterrun.scheduler.slurm.scontrol import parse_cluster_facts
from clusterrun.scheduler.slurm.values import SEP
from clusterrun.state import external, query, show
from clusterrun.state.reconcile import JobIndex, RunState
from clusterrun.submit import left_out
from clusterrun.system import shell
from clusterrun.why import ended, pending
from tests.support.folders import DATA
from tests.support.recorded_queue import NOW, recorded

RunCommand = Callable[..., shell.Completed]
View = Callable[[RunCommand], Iterator[object]]
JOB = JobId("21")
FACTS = ClusterFacts("lab", accounting=True, gpus=True)


def answer(name: str) -> str:
    return shell._text((DATA / "slurm" / f"{name}.txt").read_bytes())


#: Answers of a real Slurm, by what was asked; those that end in " !" are on standard error, of a command that failed.
ANSWERS: Mapping[str, str] = {
    "squeue": answer("squeue-24.11"),
    "squeue, all columns": recorded("squeue-whole"),
    "sacct": answer("sacct-24.11"),
    "sacct, paths": SEP.join(("10_2", "12", "root", "node1", "train", "/tmp", "/tmp/a-%A_%a.out", "")) + "\n",
    "sacct, state": "10|CANCELLED by 1000\n10.batch|COMPLETED\n",
    "scontrol show job": recorded("show-jobs"),
    "scontrol show job --details": answer("allocation-22.05"),
    "scontrol show node": recorded("show-nodes"),
    "scontrol show partition": recorded("show-partitions"),
    "scontrol show reservation": recorded("show-reservations"),
    "scontrol show license": recorded("show-licenses"),
    "scontrol show assoc_mgr": recorded("show-qos") + recorded("show-assoc"),
    "scontrol show config": answer("config-accounting"),
    "scontrol hold !": answer("hold-theirs-24.11"),
    "sacctmgr show assoc": answer("assoc-two"),
    "sacctmgr show qos": "normal|||||||||||||\ntight|5|10|cpu=8|2|3|gres/gpu=2,mem=5G|||cpu=9|cpu=4||1-00:00:00|Deny\n",
    "sinfo": answer("sinfo-mixed"),
    "sinfo !": answer("sinfo-down"),
    "sinfo -N": SEP.join(("n1", "gpu*", "a,b", "idle")) + "\n" + SEP.join(("n2", "gpu*", "(null)", "down*")) + "\n",
    "sprio": "17|4294901741|10|20|0|30.5|500|0|0\n",
    "sbatch": "5;lab\n",
    "sbatch !": answer("sbatch-no-partition"),
    "sbatch --test-only": answer("test-only-24.11"),
    "sbatch --test-only !": "sbatch: error: allocation failure: Requested node configuration is not available\n",
    "scancel !": "scancel: error: Kill job error on job id 10: Invalid job id specified\nscancel: hm\n",
    "nvidia-smi": "GPU 0: NVIDIA A100 (UUID: GPU-1)\nGPU 1: NVIDIA A100 (UUID: GPU-2)\n",
}
#: By their last words, the first that fits.
_KINDS = {
    "squeue": (("--Format=", "squeue, all columns"), ("", "squeue")),
    "sacct": (("--duplicates", "sacct"), ("--allusers", "sacct, paths"), ("State", "sacct, state"), ("", "sacct")),
    "scontrol": (("job 8 --details", "scontrol show job --details"), ("show job", "scontrol show job"),
                 ("show node", "scontrol show node"), ("hold", "scontrol hold"),
                 ("show partition", "scontrol show partition"), ("reservation", "scontrol show reservation"),
                 ("license", "scontrol show license"), ("assoc_mgr", "scontrol show assoc_mgr"),
                 ("", "scontrol show config")),
    "sinfo": (("sinfo -h -a -N", "sinfo -N"), ("", "sinfo")),
    "sacctmgr": (("qos format", "sacctmgr show qos"), ("", "sacctmgr show assoc")),
    "sbatch": (("--test-only", "sbatch --test-only"), ("", "sbatch")),
}  # fmt: skip


#: Answers that are asked for only if another command fails.
_INSTEAD = {"sacct, paths": "scontrol show job", "nvidia-smi": "sinfo"}


class Slurm:
    """Slurm's commands: those that are asked for a ``changed`` answer give that, all others a real one."""

    def __init__(self, changed: str = "", data: bytes = b"") -> None:
        self.changed, self.data, self.asked = changed, data, set[str]()

    def __call__(self, argv: Sequence[str], **how: object) -> shell.Completed:
        line = " ".join(argv)
        kind = next(kind for words, kind in _KINDS.get(argv[0], (("", argv[0]),)) if words in line)
        self.asked |= {kind, f"{kind} !"} & ANSWERS.keys()
        if kind == _INSTEAD.get(self.changed):
            return shell.Completed(1, "", "error: Invalid job id specified\n")
        if self.changed == f"{kind} !":
            return shell.Completed(1, "", shell._text(self.data))
        said = shell._text(self.data) if self.changed == kind else ANSWERS.get(kind, "")
        if kind == "scontrol show job":  # of one job, as slurmctld does
            blocks = said.split("\n\n")
            said = next((block for block in blocks if f"JobId={argv[-1]} " in block), said)
        return shell.Completed(0, "", said) if kind == "sbatch --test-only" else shell.Completed(0, said, "")


def _scheduler(run: RunCommand) -> SlurmScheduler:
    return SlurmScheduler(FACTS, {"PATH": "/usr/bin"}, run=run)


@dataclass
class _Cluster:
    """A cluster with this Slurm."""

    run: RunCommand

    def scheduler(self, name: str) -> Scheduler:
        return _scheduler(self.run)


def _state(state: str, number: str = "10", reason: str = "", **more: str) -> RunState:
    job = JobStatus(id=JobId.parse(number), state=state, outcome=outcome_of(state), reason=reason, user="root",
                    source="squeue", partition="gpu", **more)  # fmt: skip
    return RunState(None, job)


def _queue(run: RunCommand) -> Iterator[object]:
    for found in (_scheduler(run).query(), _scheduler(run).query([JOB]), _scheduler(run).find("a" * 16, 0, Path("/s"))):
        _, others = query.unmatched_jobs(Store(Path("/r"), Path("/r")), [], found)
        for state in others:
            yield json.dumps(show.status_json(state)), show.state_lines(state), show.list_row(state)
            yield external.folders_of(state.status.script)
        yield JobIndex(found.jobs)


def _accounting(run: RunCommand) -> Iterator[object]:
    for job in _scheduler(run).account([JOB], 0).jobs:
        yield json.dumps(show.state_json(RunState(None, job))), show.state_lines(RunState(None, job))


def _cancel(run: RunCommand) -> Iterator[object]:
    yield _scheduler(run).cancel([JOB, JobId("11", 2)])


def _hold(run: RunCommand) -> Iterator[object]:
    yield _scheduler(run).hold(JOB)


SENT = Submission("r", Path("/r"), "a" * 16, Path("/r/s.sh"), Path("/"), Path("/l"), {})


def _sbatch(run: RunCommand) -> Iterator[object]:
    yield _scheduler(run)._sbatch(["sbatch"], SENT)


def _why_ended(run: RunCommand) -> Iterator[object]:
    for state in ("FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "COMPLETED"):
        found = ended.explain(_Cluster(run), _state(state, nodes="node[1-2]"))
        yield json.dumps(found.json()), found.facts()


def _why_pending(number: str, reason: str) -> View:
    def view(run: RunCommand) -> Iterator[object]:
        found = pending.explain(_scheduler(run), _state("PENDING", number, reason), NOW)
        yield json.dumps(found.json()), found.facts()

    return view


def _logs(run: RunCommand) -> Iterator[object]:
    found = find_external_logs(JOB, _scheduler(run))
    yield found.existing, found.is_array, found.find(JobId("10", 2))


def _free(run: RunCommand) -> Iterator[object]:
    seen = snapshot.load_snapshot(_scheduler(run), "root")
    yield text.format_summary(seen, NOW)
    values = {"nodes": Value(2, "me"), "gpus-per-node": Value(2, "me"), "python": Value("/usr/bin/python3", "me")}
    spec = build_spec(values, Command("/bin/true"))
    shape = shape_of(spec)
    yield [why_never(seen, partition, spec, shape) for partition in seen.partitions]
    yield [line for line, _ in exceeded_limits(seen, spec, [one.name for one in seen.partitions])]


def _left_out(run: RunCommand) -> Iterator[object]:
    spec = build_spec({"gpus-per-node": Value(0, "me"), "constraint": Value("a", "me")}, Command("/bin/true"))
    yield left_out.choose(("n1",), left_out._partitions(_scheduler(run), spec), 1)


def _estimate(run: RunCommand) -> Iterator[object]:
    shape = Shape(2, 2)
    found = estimate_start(_scheduler(run), SENT, "#!/bin/sh\n")
    if isinstance(found, Start):
        estimates = StartEstimates(shape=shape, starts=(ShapeEstimate(shape, "gpu", found, "clusterrun submit"),))
    else:
        estimates = StartEstimates(shape=shape, starts=(), refused=((shape, "gpu", found),))
    yield text.format_estimates(estimates, NOW), refusals(estimates)


def _survey(run: RunCommand) -> Iterator[object]:
    found = run_survey(run, "alice")
    yield init_file.config_text(found)


def _facts(run: RunCommand) -> Iterator[object]:
    yield parse_cluster_facts(run(["scontrol", "show", "config"]).stdout)


def _allocation(run: RunCommand) -> Iterator[object]:
    found = allocation.parse("8", run(["scontrol", "show", "job", "8", "--details"]).stdout, 0)
    yield allocation.cpus_per_task(found, SENT._replace(in_job="8", gpus_per_node=1))


VIEWS: tuple[View, ...] = (
    _queue, _accounting, _cancel, _hold, _sbatch, _why_ended, _logs, _free, _left_out,
    _estimate, _survey, _facts, _allocation,
    *(_why_pending(job, reason) for job, reason in (
        ("9", "Resources"), ("10", "Priority"), ("18", "Dependency"), ("21", "QOSMaxGRESPerUser"),
        ("5", "AssocGrpCpuLimit"), ("22", "ReqNodeNotAvail"),
        ("6", "Licenses"), ("7", "Reservation"), ("15", "PartitionTimeLimit"))),
)  # fmt: skip
