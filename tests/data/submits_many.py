"""Submit light jobs one after the other through the Python API, a JSON line for each: what a sweep of a user does.

submits_many.py NAME COUNT TEMPLATE [SBATCH_ARG...]: the jobs are called NAME with COUNT numbers, commas among them.
"""

import json
import sys
from typing import Any

from clusterrun.base.errors import Ambiguous, ClusterrunError
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import Value
from clusterrun.submit.request import SubmitArgs


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


name, count, template, *sbatch_args = sys.argv[1:]
cluster = Cluster(notify=lambda line: print(line, file=sys.stderr, flush=True))
for number in range(int(count)):
    flags = {
        "scheduler": "slurm", "job-name": f"{name},{number},of,{count}", "template": template, "gpus-per-node": 0,
        "tasks-per-node": 1, "sbatch-arg": sbatch_args, "requeue": True,
    }  # fmt: skip
    plan = cluster.plan(
        SubmitArgs(command=("true",), flags={key: Value(value, "test") for key, value in flags.items()})
    )
    run = plan.record
    told = {"run_id": run.run_id, "run_dir": str(run.run_dir), "name": f"{run.name}.{plan.submission.token[:8]}"}
    say(begun=run.run_id)
    try:
        say(**told, job_id=str(cluster.submit(plan).job_id))
    except Ambiguous as error:
        say(**told, job_id=None, error=error.message)
    except ClusterrunError as error:
        say(error=error.message, said=error.detail)
