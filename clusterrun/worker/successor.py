"""Submit the next job of a run from its last one, where Slurm does not let a job be requeued. Standard library only.

It is a submission of its own, with a new token: `clusterrun/submit/resume.py` does the same from the command line.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from ..base.decode import parse_object
from ..run_folder.files import write_json, write_text
from .batch_host import clean
from .job import Job

SUBMIT_S = 30.0
NOT_CONFIRMED = "(not confirmed)"  # instead of the job's id
JOB_ID = re.compile(r"^([1-9][0-9]{0,17})(?:;([A-Za-z0-9_.-]{1,64}))?$", re.MULTILINE)
TOTAL_TIME = re.compile(r"^(CR_OPTIONS=\(.*--total-time )\d+", re.MULTILINE)
DEPENDENCY = re.compile(r"^#SBATCH --dependency=.*\n", re.MULTILINE)


def submit(job: Job, used_seconds: float) -> tuple[str, str]:
    """Submit the same script with a new token; return the job's id, or NOT_CONFIRMED, and why there is none.

    `used_seconds` of --total-time are used up. A submission that Slurm does not confirm stays recorded:
    `clusterrun status` looks its job up.
    """
    submissions = job.run_dir / "submissions"
    try:
        old = parse_object((submissions / f"{job.token}.json").read_bytes())
        spec = parse_object((job.run_dir / "spec.json").read_bytes())
        token = base64.b32encode(os.urandom(10)).decode().lower()
        script = job.run_dir / f"script-{token[:8]}.sh"
        text = (job.run_dir / Path(str(old.get("script", "script.sh"))).name).read_text()
        text = DEPENDENCY.sub("", text).replace(job.token, token).replace(f".{job.token[:8]}", f".{token[:8]}")
        left = max(1, int(job.options.total_time - used_seconds))
        text = text.replace("/train_%A_%a.", "/train_%j.")  # the next job of an array's task is no task
        text = TOTAL_TIME.sub(rf"\g<1>{left}", text)
        new = {**old, "token": token, "script": script.name, "state": "submitting", "job_id": "", "log_start": [0, 0],
               "at": max(int(time.time()), int(old["at"]) + 1), "submitter": [os.uname().nodename, os.getpid(), 0],
               "task": None, "cancel_asked": 0, "final": None}  # fmt: skip
        write_text(script, text)
        unlist(job.run_dir)
        write_json(submissions / f"{token}.json", new)
        unlist(job.run_dir)  # once more: a command that read the run before may have added it meanwhile
    except (OSError, ValueError, KeyError, TypeError) as error:
        return "", f"the record of the new job cannot be written: {error}"
    return _send(job, script, spec, submissions / f"{token}.json", new)


def unlist(run_dir: Path) -> None:
    """Remove a run from the index of ended runs (records/ended_index.py), where it is only if its end was recorded."""
    folder = run_dir.parent.with_name("over")
    with contextlib.suppress(FileNotFoundError):
        for path in list(folder.glob(f"{run_dir.name},*")):
            path.unlink(missing_ok=True)


def _send(job: Job, script: Path, spec: dict[str, Any], record: Path, new: dict[str, Any]) -> tuple[str, str]:
    after = f"--dependency=afterany:{job.identity.job_id}"  # its ranks may still be saving
    command = ["sbatch", "--parsable", after, *map(str, spec.get("sbatch_args") or ()), "--", str(script)]
    folder = str(spec.get("workdir") or Path.cwd())
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=SUBMIT_S, env=clean(),
            cwd=folder, umask=0o027 if job.options.shared else 0o077,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return NOT_CONFIRMED, ""
    except OSError as error:
        _discard(record, script)
        return "", f"{error.filename}: {error.strerror}"
    found = JOB_ID.findall(done.stdout.decode(errors="replace"))
    if done.returncode == 0 and len(found) == 1:
        job_id, cluster = found[0]
        new |= {"state": "accepted", "job_id": job_id, "cluster": cluster or new.get("cluster", "")}
        with contextlib.suppress(OSError):  # else `clusterrun status` finds the job by its token
            write_json(record, new)
        return job_id, ""
    text = done.stderr.decode(errors="replace").strip()
    if done.returncode == 0 or "timed out" in text or "Connection" in text:
        return NOT_CONFIRMED, ""
    _discard(record, script)
    return "", text.splitlines()[-1] if text else f"sbatch exited with {done.returncode}"


def _discard(record: Path, script: Path) -> None:
    for path in (record, script):
        with contextlib.suppress(OSError):
            path.unlink()
