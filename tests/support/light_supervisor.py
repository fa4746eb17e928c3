"""The job's supervisor with lines of bash, in LIGHT_BODY, in the place of the ranks; a job's script runs it by path.

It waits for the file STALL, if that is set, before it checks that the claim is still its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the job's Python may know nothing of this package
from clusterrun.run_folder import claims
from clusterrun.worker.job import supervisor

read = claims._read


def run_body(job: supervisor.Job, work: Sequence[str], termination: supervisor.Termination, again: object) -> int:
    ids = {
        "CLUSTERRUN_JOB_ID": job.name,
        "CLUSTERRUN_RUN_DIR": str(job.run_dir),
        "CLUSTERRUN_ATTEMPT_DIR": str(job.attempt_dir),
    }
    body = subprocess.Popen(["bash", "-c", os.environ["LIGHT_BODY"]], env=os.environ | ids, umask=job.umask)
    termination.watch(body)
    status = body.wait()
    return 128 - status if status < 0 else status


def read_late(file: Path) -> str:
    while file.name == "owner" and os.environ.get("STALL") and not os.path.exists(os.environ["STALL"]):
        time.sleep(0.05)
    return read(file)


if __name__ == "__main__":
    supervisor.run_step = run_body
    claims._read = read_late
    sys.exit(supervisor.main(sys.argv[2:]))
