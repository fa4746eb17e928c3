"""``plan``: show steps, learning rates, memory and predicted speed for several numbers of GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD
from clusterrun.base.gpus import GIB, Device, find_device
from clusterrun.cli.common import complete
from clusterrun.cli.common.options import F, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import run_to_end
from clusterrun.cluster import Cluster
from clusterrun.jobspec.fields import check_value, gres_gpus
from clusterrun.sizing import text
from clusterrun.sizing.answer import Answer, Question, answer
from clusterrun.sizing.batches import Training
from clusterrun.sizing.job_facts import count_job
from clusterrun.sizing.measure import measure
from clusterrun.sizing.memory import guess_shape
from clusterrun.sizing.scaling import QUARTERS, scaling_notes, scaling_rows
from clusterrun.sizing.speed import DEFAULT_LINK, DEFAULT_NETWORK, UTILIZATION, Machine
from clusterrun.submit.request import Request, SubmitArgs
from clusterrun.terminal.plot import INSTALL, can_plot
from clusterrun.terminal.ui import Ui

_UNKNOWN_DEVICE = Device("device", memory_gib=0, tflops=0, link_gbs=DEFAULT_LINK)
MOST_COUNTS, MOST_GPUS, _MOST = 32, 1_000_000, 10**12
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_EXAMPLE = "--parameters 135M --seq-len 2048"
_JOB_OPTIONS = (
    "scheduler", "gpus-per-node", "tasks-per-node", "cpus-per-task", "time", "partition", "account", "qos", "python",
    "set",
)  # fmt: skip
#: options that a JOB takes as settings of its task
_SETTINGS = {
    "micro_batch": "micro_batch_size", "global_batch": "global_batch_size", "grad_accum": "grad_accum_steps",
    "epochs": "epochs", "steps": "steps", "lr": "lr", "warmup": "warmup", "seq_len": "seq_len",
    "precision": "precision",
}  # fmt: skip


def _number(
    name: str, metavar: str, text: str, *, least: int = 1, most: float = _MOST, default: int | None = None
) -> Callable[[F], F]:
    """Return an option for a number: a whole one of at least ``least``, or with ``least`` 0 any above 0."""

    def check(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
        if value is not None and not (value > 0 and least <= value <= most):
            bound = f"between {least} and {most:g}" if least else f"above 0 and at most {most:g}"
            raise RequestError(f"--{name} must be {bound}, not {value:g}")
        return value

    kind = click.INT if least else click.FLOAT
    return click.option(f"--{name}", type=kind, metavar=metavar, help=text, default=default, callback=check)


def _job_options(command: F) -> F:
    return spec_options(command, _JOB_OPTIONS)


@click.command()
@click.argument("job", required=False, shell_complete=complete.job_files)
@click.option("--gpus", default="1,2,4,8", metavar="LIST", help="GPU counts to compare; default 1,2,4,8.")
@_number("samples", "N", "Number of training samples; default: counted from the job's data.")
@_number("micro-batch", "N", "Samples per GPU in one forward pass.")
@_number("global-batch", "N", "Samples per optimizer step, across all GPUs.")
@_number("grad-accum", "N", "Forward passes per optimizer step (gradient accumulation).")
@_number("epochs", "N", "Passes over the data; default: the job's setting, else 1.", least=0)
@_number("steps", "N", "Optimizer steps, instead of --epochs.")
@_number("lr", "RATE", "Learning rate to scale.", least=0)
@_number("base-batch", "N", "Global batch size that --lr was tuned for; default: the global batch size on one GPU.")
@_number("warmup", "STEPS", "Warm-up in optimizer steps; default: the job's setting, else 3 % of all steps.")
@click.option("--parameters", metavar="N", help="Number of model parameters (135M, 8B), if no JOB is given.")
@_number("seq-len", "N", "Tokens per sample.")
@click.option(
    "--precision",
    type=click.Choice(["bf16", "fp16", "fp32"]),
    help="Training precision; default: the job's setting, else bf16.",
)
@click.option("--device", metavar="GPU", help="GPU model to predict for, such as H100 or A100-80GB.")
@_number("device-memory", "GIB", "Memory per GPU; default: the memory of --device.", least=0)
@_number("tflops", "N", "Peak TFLOP/s per GPU; default: the peak of --device.", least=0)
@_number("utilization", "SHARE", "Expected share of peak TFLOP/s (MFU); default 0.4.", least=0, most=1)
@_number("link", "GB/S", "All-reduce bandwidth within a node.", least=0)
@_number("network", "GBIT/S", "Network bandwidth per node; default 100.", least=0)
@click.option("--measure", "measured", is_flag=True, help="Measure the job in short runs, one per GPU count.")
@_number("measure-steps", "N", "Steps to measure; default 20.", least=8, default=20)
@_job_options
@json_option
@click.pass_context
def plan(ctx: click.Context, /, job: str | None, as_json: bool, **options: Any) -> None:
    """Show batches, steps and learning rates for several numbers of GPUs, with memory and predicted speed.

    \b
      clusterrun plan --samples 29500 --micro-batch 4 --lr 1.25e-6
      clusterrun plan sft --device H100                    with the data and model of jobs/sft.toml
      clusterrun plan --samples 1000000 --micro-batch 1 --parameters 8B --seq-len 2048 --device A100-80GB
      clusterrun plan lm --measure --gpus 1,2,4

    Only --measure submits jobs. If neither JOB nor --samples is given, the plan is for the default job.
    """
    ui = Ui("plan", as_json=as_json)
    counts = parse_gpu_counts(options["gpus"])
    _device(options)  # raises RequestError
    if not job and _has_size(options):
        _show(ui, answer(_question(options, counts, options["gpus_per_node"] or 8, None)))
        return
    session: Session = ctx.obj
    cluster = session.planner(ui.note, submits=options["measured"])
    args = _job_args(job, options)
    request = cluster.request(args)
    of_job = count_job(request, cluster.cwd, cluster.environ, samples=options["samples"] or 0)
    question = _question(options, counts, _ranks_per_node(request), of_job)
    if options["measured"]:
        _measure(ui, cluster, args, options, question)
    else:
        _show(ui, answer(question))


def _has_size(options: dict[str, Any]) -> bool:
    """Return whether the work is given by its size, without a job. Raises RequestError for what only a job has."""
    if options["parameters"] and not options["samples"]:
        hint = f"clusterrun plan --samples 29500 --micro-batch 4 {_EXAMPLE}"
        raise RequestError("--parameters needs --samples", hint=hint)
    if options["samples"] and options["measured"]:
        raise RequestError("--measure needs a JOB", hint="clusterrun plan lm --measure")
    if options["samples"] and options["set"]:
        raise RequestError("--set needs a JOB", hint="clusterrun plan lm --set KEY=VALUE")
    return bool(options["samples"])


def _measure(
    ui: Ui, cluster: Cluster, args: SubmitArgs, options: dict[str, Any], question: Question
) -> None:  # fmt: skip
    """Measure the job in short runs, and print the plan with what was measured."""
    steps = -(-options["measure_steps"] // QUARTERS) * QUARTERS
    first = answer(replace(question, gpu_counts=question.gpu_counts[:1])).plans[0]
    same = replace(
        question.training, global_batch_size=0, micro_batch_size=first.micro_batch, grad_accum_steps=first.grad_accum,
        default_global_batch=0,
    )  # fmt: skip
    found = answer(replace(question, training=same))
    runs = measure(
        args, found.plans, lambda one: run_to_end(ui, cluster, one, "measures"), steps=steps,
        gpus_per_node=question.gpus_per_node, on_gpus=cluster.plan(args).spec.gpus_per_node != 0,
    )  # fmt: skip
    machine = question.machine or _machine(options, question.gpus_per_node, 1.0)
    assert question.model is not None
    rows = scaling_rows(runs, found.plans, question.model.parameters, question.tokens_per_sample, machine)
    found.notes.extend(scaling_notes(runs, rows, steps))
    _show(ui, found, measured=[row._asdict() for row in rows])
    ui.say("", text.scaling_line(first, machine, steps))
    ui.table(*text.scaling_table(rows))
    if len(rows) > 1 and can_plot():
        ui.say("", *text.terminal_plot(rows))
    elif len(rows) > 1:
        ui.note(f"for a plot: {INSTALL}")


def parse_gpu_counts(text: str) -> list[int]:
    """Parse ``1,2,4,8`` into increasing numbers. Raises RequestError."""
    hint = "for example --gpus 1,2,4,8"
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not re.fullmatch(r"[0-9]{1,7}", part):
            raise RequestError(f"--gpus: {part[:40]!r} is not a valid number of GPUs", hint=hint)
    counts = sorted(set(map(int, parts)))
    if not 1 <= counts[0] <= counts[-1] <= MOST_GPUS:
        raise RequestError(f"--gpus {text[:40]}: each number must be between 1 and {MOST_GPUS:,}", hint=hint)
    if len(counts) > MOST_COUNTS:
        raise RequestError(f"--gpus has {len(counts)} numbers; at most {MOST_COUNTS} are allowed", hint=hint)
    return counts


def parse_parameters(text: str) -> int:
    """Parse a number of parameters such as ``135M``, ``1.7B`` or ``134515008``. Raises RequestError."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMBT]?)", text.strip().upper())
    number = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 1 <= number <= 10**15:
        raise RequestError(
            f"--parameters: {text[:40]!r} is not a valid number of parameters", hint="for example 135M or 1.7B"
        )
    return number


def _job_args(job: str | None, options: dict[str, Any]) -> SubmitArgs:
    """Return the arguments of a submit of the job, with the plan's options as settings."""
    if options["parameters"]:
        hint = "set the job's model instead: --set model=smollm2-135m"
        raise RequestError("--parameters and a JOB cannot be combined", hint=hint)
    settings = {key: options[name] for name, key in _SETTINGS.items() if options[name] is not None}
    if options["epochs"] and not options["steps"]:
        settings["steps"] = 0
    typed = (*options["set"], *(f"{key}={value}" for key, value in settings.items()))
    return submit_args(job, (), options["profile"], {**options, "set": typed})


def _ranks_per_node(request: Request) -> int:
    for name in ("gpus-per-node", "gres", "tasks-per-node"):
        if name in request.values:
            check_value(FIELD[name], request.values[name])
            value = request.values[name].value
            if ranks := gres_gpus(value) if name == "gres" else value:
                return int(ranks)
    return 8


def _device(options: dict[str, Any]) -> Device:
    """Return the GPU to predict for, with what was given of its data. Raises RequestError for an unknown name."""
    known = find_device(options["device"]) if options["device"] else _UNKNOWN_DEVICE
    memory, tflops = options["device_memory"] or known.memory_gib, options["tflops"] or known.tflops
    return known._replace(memory_gib=memory, tflops=tflops, link_gbs=options["link"] or known.link_gbs)


def _machine(options: dict[str, Any], gpus_per_node: int, tflops: float) -> Machine:
    return Machine(
        peak=tflops * 1e12,
        utilization=options["utilization"] or UTILIZATION,
        link=_device(options).link_gbs * 1e9,
        network=(options["network"] or DEFAULT_NETWORK) / 8 * 1e9,
        gpus_per_node=gpus_per_node,
    )


def _question(options: dict[str, Any], counts: list[int], gpus_per_node: int, of_job: Question | None) -> Question:
    """Return what is to be planned: of the job that was counted, else of the work that the options describe."""
    device = _device(options)
    if counts[-1] > 1:
        _check_link(options, device)
    question = of_job or _of_options(options, needs_size=bool(device.memory_gib or device.tflops))
    training = question.training
    return replace(
        question, training=replace(training, base_batch_size=options["base_batch"] or training.base_batch_size),
        precision="bf16" if question.precision == "auto" else question.precision, gpu_counts=counts, device=device.name,
        memory_bytes=device.memory_gib * GIB or None, gpus_per_node=gpus_per_node,
        machine=_machine(options, gpus_per_node, device.tflops) if device.tflops else None,
    )  # fmt: skip


def _check_link(options: dict[str, Any], device: Device) -> None:
    """Raise RequestError if the speed of several GPUs is to be predicted without the bandwidth between them."""
    if device.tflops and not (options["device"] or options["link"]):
        hint = "for example --link 20 for PCIe, --link 370 for NVLink 4 (GB/s)"
        raise RequestError("--tflops needs --link, the bandwidth within a node", hint=hint)


def _of_options(options: dict[str, Any], *, needs_size: bool) -> Question:
    """Return the question about work that the options describe. Raises RequestError if the model's size is missing."""
    seq_len, size, model = options["seq_len"] or 0, 0, None
    if options["parameters"]:
        size = parse_parameters(options["parameters"])
        model = guess_shape(size)
    if bool(size) != bool(seq_len):
        missing = "--seq-len" if size else "--parameters"
        raise RequestError(f"the memory and speed estimates also need {missing}", hint=_EXAMPLE)
    if not size and needs_size:
        raise RequestError("the memory and speed estimates need the model size", hint=_EXAMPLE)
    precision = options["precision"] or "auto"
    return Question(_typed_training(options), (), model, seq_len, float(seq_len), precision, gradient_copies=2)


def _typed_training(options: dict[str, Any]) -> Training:
    return Training(
        samples=options["samples"],
        global_batch_size=options["global_batch"] or 0,
        micro_batch_size=options["micro_batch"] or 0,
        grad_accum_steps=options["grad_accum"] or 0,
        epochs=options["epochs"] or 1.0,
        steps=options["steps"] or 0,
        lr=options["lr"],
        warmup=options["warmup"],
    )


def _show(ui: Ui, found: Answer, **more: object) -> None:
    ui.data(found.json() | more)
    ui.say(text.title(found), "")
    ui.table(*text.batch_table(found))
    if found.memory:
        ui.say("", text.memory_line(found))
        ui.table(*text.memory_table(found))
    if found.predictions and found.question.machine:
        ui.say("", text.speed_line(found.question.machine))
        ui.table(*text.speed_table(found))
    for note in found.notes:
        ui.note(note)
    if found.question.lr_scaling == "none" and found.question.training.lr is not None:
        ui.note("the job uses the same learning rate for every number of GPUs (lr_scaling=none)")
