"""Count a job's samples, tokens and parameters by running ``worker/tasks/plan_facts.py`` with the job's Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from clusterrun.base.decode import Damaged, as_int, build, parse_object
from clusterrun.base.errors import CommandError, RequestError
from clusterrun.jobspec.spec import Task
from clusterrun.sizing.answer import Question
from clusterrun.sizing.batches import Training
from clusterrun.sizing.memory import ModelSize, guess_shape
from clusterrun.submit.job_python import ask_worker
from clusterrun.submit.request import Request

TIMEOUT = 600.0
"""Time limit for the count, in seconds: a large dataset has to be read and tokenized."""
_SKIP = "use --samples N to skip reading the data"


def count_job(request: Request, cwd: Path, environ: Mapping[str, str], *, samples: int = 0) -> Question:
    """Return what to plan for a job that runs a shipped task; ``samples`` above 0 replaces reading the data.

    Raises RequestError for a job with a script, for invalid settings, and if counting fails or takes too long.
    """
    work = request.work
    if not isinstance(work, Task):
        raise RequestError(
            "the job runs your own script, so the data and the model are unknown",
            hint="clusterrun plan --samples 29500 --micro-batch 4 --lr 1e-5 --parameters 135M --seq-len 2048",
        )
    name = work.name
    settings = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in work.settings]
    python, words = request.python, ["--samples", str(samples)] if samples else []
    given = request.values["env"].value if "env" in request.values else {}
    env = {**given, "CUDA_VISIBLE_DEVICES": ""}  # counting needs no GPU
    try:
        done = ask_worker(
            python, ["plan-facts", name, *words, *settings], env=env, environ=environ, cwd=cwd, timeout=TIMEOUT
        )
    except CommandError as error:
        if not error.timed_out:
            raise RequestError(f"--python: cannot run {python.path}", detail=error.detail) from error
        raise RequestError(f"counting the samples of {name} took longer than {TIMEOUT:g} s", hint=_SKIP) from None
    if done.status:
        raise _refusal(name, done.status, done.stderr)
    return parse_facts(done.stdout)


def _refusal(task: str, status: int, stderr: str) -> RequestError:
    """Return the error of a count that ended with this status."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    reason = lines[-1].removeprefix("clusterrun: ") if lines else f"exit {status}"
    if status == 2:  # an invalid setting, or data that is not there
        return RequestError(f"{task}: {reason}", hint=f"see docs/settings.md; {_SKIP}")
    hint = f"use --python PATH if the job uses another Python; {_SKIP}"
    return RequestError(f"cannot count the samples and parameters of {task}: {reason}", hint=hint)


def parse_facts(document: str) -> Question:
    """Parse the document that ``plan_facts.py`` prints. Raises RequestError if it is none."""
    try:
        read = parse_object(document.strip().rpartition("\n")[2])
        settings, sizes = read.get("settings"), read.get("model")
        if not isinstance(settings, dict) or not isinstance(sizes, dict):
            raise Damaged("no settings")
        training, model = build(Training, settings | read), build(ModelSize, sizes)
        tokens = as_int(read.get("tokens"))
        if not training.samples or tokens is None:
            raise Damaged("no samples")
        if not model.layers or not model.width:  # an architecture that names them otherwise
            model = replace(guess_shape(model.parameters), vocabulary=model.vocabulary)
        job = {name: (settings | read).get(name) for name in ("task", "precision", "seq_len", "lr_scaling", "parallel")}
        tokens_per_sample = tokens / training.samples
        return build(
            Question,
            job,
            training=training,
            model=model,
            tokens_per_sample=tokens_per_sample,
            gradient_copies=1,  # the shipped tasks use gradient_as_bucket_view,
            whole_logits=False,  # and compute the loss in pieces
        )
    except Damaged as error:
        shown = repr(document.splitlines()[0][:80]) if document else "nothing"
        message = f"the job's Python printed {shown} instead of the sizes of the data and the model"
        raise RequestError(message) from error
