"""Submit light jobs one after the other through the Python API, a JSON line for each: what a sweep of a user does.

submits_many.py NAME COUNT TEMPLATE [SBATCH_ARG...]: the jobs are called NAME with COUNT numbers, commas among them.
"""

import json
import sys

from clusterrun.cluster import Cluster
from clusterrun.errors import Ambiguous, ClusterrunError
from clusterrun.fields import Value
from clusterrun.request import Asked

name, count, template, *sbatch_args = sys.argv[1:]
cluster = Cluster(tell=lambda line: print(line, file=sys.stderr))
for number in range(int(count)):
    flags = {
        "scheduler": "slurm", "job-name": f"{name},{number},of,{count}", "template": template, "gpus-per-node": 0,
        "tasks-per-node": 1, "sbatch-arg": sbatch_args,
    }  # fmt: skip
    plan = cluster.plan(Asked(words=("true",), flags={key: Value(value, "test") for key, value in flags.items()}))
    told = {"run_id": plan.record.run_id, "name": plan.record.name + "." + plan.order.token[:8]}
    print(json.dumps({"begun": told["run_id"]}), flush=True)
    try:
        run = cluster.submit(plan)
        print(json.dumps(told | {"job_id": str(run.job_id), "run_dir": str(run.run_dir)}), flush=True)
    except Ambiguous as error:
        print(json.dumps(told | {"job_id": None, "error": error.message, "run_dir": str(plan.record.run_dir)}), flush=True)
    except ClusterrunError as error:
        print(json.dumps({"error": error.message, "said": error.said}), flush=True)
