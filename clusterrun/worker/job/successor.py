"""Submit the next job of a run from its last one, where Slurm does not let a job be requeued. Standard library only.

It is a submission of its own, with a new token: `clusterrun/submit/resume.py` does the same from the command line.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.decode import parse_object
from ...run_folder import submissions
from ...run_folder.files import write_text
from ...run_folder.submissions import SubmissionRecord
from ..node.batch_host import clean
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
    try:
        last = submissions.read(job.run_dir, job.token)
        spec = parse_object((job.run_dir / "spec.json").read_bytes())
        new = submissions.next_after(last, (os.uname().nodename, os.getpid(), 0), job.options.resume_args)
        new = replace(new, cluster=last.cluster)
        text = (job.run_dir / last.script).read_text()
        left = max(1, int(job.options.total_time - used_seconds))
        write_text(job.run_dir / new.script, _next_script(text, job.token, new.token, left))
        submissions.unlist(job.run_dir)
        submissions.write(job.run_dir, new)
        submissions.unlist(job.run_dir)
    except (OSError, ValueError) as error:
        return "", f"the record of the new job cannot be written: {error}"
    return _send(job, spec, new)


def _next_script(text: str, old: str, new: str, seconds: int) -> str:
    """Return a job's script for its successor, which has the ``new`` token and so many seconds of --total-time."""
    text = DEPENDENCY.sub("", text).replace(old, new).replace(f".{old[:8]}", f".{new[:8]}")
    text = text.replace("/train_%A_%a.", "/train_%j.")  # the next job of an array's task is no task
    return TOTAL_TIME.sub(rf"\g<1>{seconds}", text)


def _send(job: Job, spec: dict[str, Any], new: SubmissionRecord) -> tuple[str, str]:
    after = f"--dependency=afterany:{job.identity.job_id}"  # its ranks may still be saving
    script = str(job.run_dir / new.script)
    command = ["sbatch", "--parsable", after, *map(str, spec.get("sbatch_args") or ()), "--", script]
    folder = str(spec.get("workdir") or Path.cwd())
    try:
        done = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, capture_output=True, timeout=SUBMIT_S, env=clean(),
            cwd=folder, umask=0o027 if job.options.shared else 0o077,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return NOT_CONFIRMED, ""
    except OSError as error:
        _discard(job.run_dir, new)
        return "", f"{error.filename}: {error.strerror}"
    return _read_answer(job, new, done)


def _read_answer(job: Job, new: SubmissionRecord, done: subprocess.CompletedProcess[bytes]) -> tuple[str, str]:
    """Return what `submit` does, by what sbatch printed."""
    answers, text = JOB_ID.findall(done.stdout.decode(errors="replace")), done.stderr.decode(errors="replace").strip()
    if done.returncode == 0 and len(answers) == 1:
        job_id, cluster = answers[0]
        with contextlib.suppress(OSError):  # else `clusterrun status` finds the job by its token
            accepted = replace(new, state=submissions.ACCEPTED, job_id=job_id, cluster=cluster or new.cluster)
            submissions.write(job.run_dir, accepted)
        return job_id, ""
    if done.returncode == 0 or "timed out" in text or "Connection" in text:
        return NOT_CONFIRMED, ""
    _discard(job.run_dir, new)
    return "", (text or f"sbatch exited with {done.returncode}").splitlines()[-1]


def _discard(run_dir: Path, new: SubmissionRecord) -> None:
    for path in (submissions.path_of(run_dir, new.token), run_dir / new.script):
        with contextlib.suppress(OSError):
            path.unlink()
