"""The text of a new job file, for `clusterrun init NAME`: of a script of one's own, or of a shipped task."""

from __future__ import annotations

import re

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import NAME_BYTES
from clusterrun.base.job import is_reserved
from clusterrun.config.profiles import shipped_job

SCRIPT = "script"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_BYTES - 1}}}", re.ASCII)
_COPY = re.compile(r"^# To customize it, copy it to .*\n", re.MULTILINE)
_KEYS = "# Each key is the name of an option (docs/job-files.md); options given to submit win.\n"
_SCRIPT = (
    "# A job that runs your own script once per GPU. `clusterrun submit {name}` runs it, under the name {name}.\n"
    + _KEYS
    + """
# What runs: a script, by its path from the folder of clusterrun.toml. Instead of a script it may be
# module = "package.train", or command = "bin/program" for what is not Python.
script = "train.py"

# The script's arguments, one word each.
args = []
#args = ["--lr", "1e-4", "--data", "data/train.csv"]

# The lines below are optional: remove the # to set them. Unset values come from clusterrun.toml and the defaults.
# Number of nodes; GPUs per node, one rank each (0 for a CPU job); time limit.
#nodes = 2
#gpus-per-node = 4
#time = "12:00:00"

# Python of the job: a virtual environment or a conda environment; default: the active one.
#venv = ".venv"

# Environment variables of the job, and shell lines to run once before the ranks start.
#env.OMP_NUM_THREADS = "8"
#setup = ["module load cuda"]

# Restart the ranks after a failure, and continue after the time limit until 2 days are used. The script gets these
# arguments when it starts again, and should then load its newest checkpoint.
#max-restarts = 3
#total-time = "2d"
#resume-args = "--resume auto"

# `clusterrun sweep {name}` runs the script once for each value, which it gets with args = ["--lr", "{lr}"].
#sweep.grid.lr = ["1e-4", "3e-4"]
"""
)


def check_job_name(name: str) -> str:
    """Return the name of a job file without its suffix. Raises RequestError."""
    plain = name.removesuffix(".toml")
    if not _NAME.fullmatch(plain) or is_reserved(plain):
        hint = f"use up to {NAME_BYTES} letters, digits, -, _ and ., for example finetune"
        raise RequestError(f"{name[:NAME_BYTES]!r} cannot be the name of a job file", hint=hint)
    return plain


def job_text(name: str, origin: str) -> str:
    """Return the commented text of a job file, made from the shipped job ``origin`` or for a script."""
    if origin == SCRIPT:
        return _SCRIPT.replace("{name}", name)
    text = _COPY.sub(_KEYS, shipped_job(origin))
    return text.replace(f"`clusterrun submit {origin}`", f"`clusterrun submit {name}`")
