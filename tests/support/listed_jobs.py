"""Jobs for `list`, `status` and `wait`: runs of mine, and what squeue tells of them."""

from __future__ import annotations

import os
import time
from pwd import getpwuid
from typing import Any

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.scheduler.slurm.squeue import _JOB_FORMATS
from clusterrun.scheduler.slurm.values import SEP
from tests.support.run_records import submitted

SILENT = {"err": "slurm_load_jobs error: Unable to contact slurm controller\n", "status": 1}


def rows(*jobs: dict[str, Any]) -> str:
    """What squeue prints for these jobs; each has its fields by the letter of squeue's format, and `i`, its id.

    A field without a default, for example a new one of EXTRA_FIELDS, is the id.
    """
    defaults = {"T": "RUNNING", "r": "None", "u": "me", "P": "gpu", "N": "n1", "D": "1", "M": "1:00", "l": "1:00:00",
                "V": str(int(time.time()) - 60), "S": "1", "e": "1", "o": "(null)", "j": "job"}  # fmt: skip
    lines = [{**defaults, **job} for job in jobs]
    return "".join(SEP.join(line.get(c[1:], line["i"]) for c in _JOB_FORMATS) + "\n" for line in lines)


def run_row(run: RunRecord, **more: Any) -> dict[str, Any]:
    return {"i": str(run.job_id), "j": f"{run.name}.{run.submission.token[:8]}", **more}


def run(store: Store, number: int = 1, **more: Any) -> RunRecord:
    return submitted(store, number, cluster="desk", user=getpwuid(os.getuid()).pw_name, **more)
