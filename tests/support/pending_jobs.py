"""A cluster with limits, and jobs that wait on it, each for a reason of its own."""

from __future__ import annotations

from typing import Any

from lab.cluster import Lab
from tests.support.installed_command import until

#: Word by word what Slurm is to say of each job, by our name for it.
REASONS = {
    "resources": "Resources",
    "priority": "Priority",
    "dependency": "Dependency",
    "never": "DependencyNeverSatisfied",
    "too long": "PartitionTimeLimit",
    "too wide": "PartitionNodeLimit",
    "qos": "QOSMaxGRESPerUser",
    "account": "AssocGrpCpuLimit",
    "long": "QOSMaxWallDurationPerJobLimit",
    "drained": "ReqNodeNotAvail",
    "held": "JobHeldUser",
    "stopped": "JobHeldAdmin",
    "later": "BeginTime",
    "array": "JobArrayTaskLimit",
    "reserved": "Reservation",
    "licensed": "Licenses",
}
#: A partition with limits, and limits of QOS and accounts that are enforced; what jobs there are is private.
SETTINGS = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "Licenses": "matlab:2",
    "PartitionName=tiny": "Nodes=ALL MaxNodes=1 MaxTime=30 State=UP",
    "MinJobAge": "300",
    "PriorityType": "priority/multifactor",
    "PriorityWeightPartition": "500",
    "PrivateData": "accounts,jobs,reservations,usage,users",  # from all but root
}
#: Another user. Not `nobody`, whose account 26.05 does not count as a user's.
OTHER = "daemon"
ACCOUNTS = (
    ("add", "account", "physics"),
    ("add", "account", "chem"),
    ("add", "user", "root", "account=physics"),
    ("add", "user", "root", "account=chem"),
    ("add", "user", OTHER, "account=physics"),
    ("add", "qos", "tight"),
    ("add", "qos", "short"),
    ("modify", "qos", "tight", "set", "MaxTRESPerUser=gres/gpu=2"),
    ("modify", "qos", "short", "set", "MaxWall=10"),
    ("modify", "user", f"root,{OTHER}", "set", "qos+=tight,short"),
    ("modify", "account", "chem", "set", "GrpTRES=cpu=2"),
)


def set_up(lab: Lab) -> None:
    """The accounts and QOS of a lab that was started with SETTINGS."""
    for words in ACCOUNTS:
        done = lab.run(["sacctmgr", "-i", *words])
        assert done.returncode == 0, (words, done.stdout, done.stderr)


def sbatch(lab: Lab, *options: str, command: str = "sleep 900", **kwargs: Any) -> str:
    argv = [
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--account=physics",
        "--time=20",
        *options,
        f"--wrap={command}",
    ]
    done = lab.run(argv, **kwargs)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout.strip()


def submit_all(lab: Lab) -> dict[str, str]:
    """Our names -> ids, of jobs that run and of those that wait: each for its own reason, which Slurm gives by now."""
    one, two, three = lab.node_names

    def submit(*options: str, **kwargs: Any) -> str:
        return sbatch(lab, *options, **kwargs)

    def control(*words: str) -> None:
        done = lab.run(["scontrol", *words])
        assert done.returncode == 0, (words, done.stderr)

    made = {"failed": submit(command="false")}
    lab.wait_job(made["failed"], "FAILED")
    control("update", f"NodeName={three}", "State=DRAIN", "Reason=bad fan")
    control(
        "create",
        "reservation",
        "ReservationName=later",
        "StartTime=now+1day",
        "Duration=60",
        f"Nodes={two}",
        "Users=root",
    )
    # what runs, in the order in which it is to start
    made["filler"] = submit("--gpus-per-node=4", f"--nodelist={one}")
    made["holder"] = submit("--qos=tight", "--gpus-per-node=2", f"--nodelist={two}")
    made["chemist"] = submit("--account=chem", "--ntasks=2", f"--nodelist={two}")
    made["licensee"] = submit("--licenses=matlab:2", f"--nodelist={two}")
    made["array"] = submit("--array=0-3%1", f"--nodelist={two}")
    until(lambda: len(lab.run(["squeue", "-h", "-t", "RUNNING"]).stdout.splitlines()) == 5, 30, lambda: squeue(lab))
    # what waits: those first that are in no line
    made["dependency"] = submit(f"--dependency=afterok:{made['filler']}")
    made["never"] = submit(f"--dependency=afterok:{made['failed']}")
    made["too long"] = submit("--partition=tiny", "--time=60")
    made["too wide"] = submit("--partition=tiny", "--nodes=2")
    made["qos"] = submit("--qos=tight", "--gpus-per-node=2")
    made["account"] = submit("--account=chem", "--ntasks=2")
    made["long"] = submit("--qos=short", "--time=15")
    made["drained"] = submit(f"--nodelist={three}")
    made["held"] = submit("--hold")
    made["stopped"] = submit("--hold")
    control("hold", made["stopped"])  # by root, which makes it an administrator's
    made["later"] = submit("--begin=now+1hour")
    made["reserved"] = submit("--reservation=later")
    made["licensed"] = submit("--licenses=matlab:1")
    made["resources"] = submit("--nodes=2", "--gpus-per-node=4")
    made["priority"] = submit("--nodes=2", "--gpus-per-node=4", user=OTHER)
    made["other's"] = submit("--qos=short", "--time=15", user=OTHER)
    until(lambda: not missing(lab, made), 45, lambda: f"{missing(lab, made)}\n{squeue(lab)}", pause=0.3)
    return made


def squeue(lab: Lab) -> str:
    return lab.run(["squeue", "-o", "%i|%T|%r"]).stdout


def missing(lab: Lab, made: dict[str, str]) -> dict[str, str]:
    """The jobs that Slurm does not yet give their reason, and what it says instead."""
    rows = (line.split("|") for line in squeue(lab).splitlines()[1:])
    said = {id.partition("_")[0]: reason for id, state, reason in rows if state == "PENDING"}
    return {
        name: said.get(made[name], "")
        for name, word in REASONS.items()
        if said.get(made[name], "").split(",")[0] != word
    }
