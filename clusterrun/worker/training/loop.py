"""The training loop, from top to bottom."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import time
from typing import Any

import torch

from ...base.gpus import peak_flops
from ...base.units import plural
from ..rank.distenv import DistEnv, RunEnv
from ..rank.progress import here
from . import memory, schedule
from .checkpointing import Checkpointer
from .consensus import Consensus
from .ddp import ModelWithLoss, accumulating, compiled, fit_memory, make_optimizer, settle_buckets, to_device, wrap_ddp
from .evaluation import evaluate
from .facts import write_facts
from .finite import FiniteCheck, StepResult
from .precision import Precision, choose
from .report import Report, model_flops_per_token
from .sampler import Sampler, reseed, seed_of
from .settings import batch_sizes
from .sizes import BatchSizes
from .stopping import StopRequest, stop_reason
from .throughput import BusyTimes, Throughput
from .work import Batch, Work

MicroBatches = list[tuple[int, list[int], Batch]]  # of this rank in one step: slot, sample indices, batch


def train(
    work: Work, config: Any, dist: DistEnv, run: RunEnv, device: torch.device, check_late: bool | None = None
) -> bool:
    """Train `work.model` on all ranks. Return True at the end of training, False if the run saved and stopped early.

    `config` has the keys of `settings.Training`. Rank 0 prints, and writes metrics, checkpoints and samples. On a GPU
    a step's gradient is checked one step late; `check_late` forces that on any device. Raises WorkerError for what the
    user can fix: impossible batch sizes, a checkpoint of another model, NaN, out of memory.
    """
    gc.freeze()  # objects that exist now stay until the end: keep the garbage collector from scanning them
    gc.enable()
    consensus = Consensus(dist, run)
    stop = StopRequest(dist, run, config.time_margin)
    stop.install()
    checkpointer = Checkpointer(config, dist, run, consensus)
    finite_check = FiniteCheck(
        device.type != "cpu" if check_late is None else check_late, config.on_nan, consensus, dist
    )
    done = True
    try:
        done = _train(work, config, dist, run, device, consensus, stop, checkpointer, finite_check)
    finally:
        try:
            checkpointer.close()  # also after an error: the checkpoint being written is the last good state
        finally:
            stop.release(stopped=not done)
    consensus.close()
    return done


def _train(
    work: Work,
    config: Any,
    dist: DistEnv,
    run: RunEnv,
    device: torch.device,
    consensus: Consensus,
    stop: StopRequest,
    checkpointer: Checkpointer,
    finite_check: FiniteCheck,
) -> bool:
    precision = choose(config.precision, device)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)

    # the model, its optimizer, the batch sizes and the number of steps
    sizes = checkpointer.sizes(batch_sizes(config, dist.world_size))
    optimizer = make_optimizer(work.model.to(device), config)
    scaler = precision.scaler()
    model: torch.nn.Module = ModelWithLoss(work)
    if config.compile:
        model = compiled(model)
    ddp_model = wrap_ddp(model, dist.world_size, device)
    if config.auto_micro_batch:
        sizes = fit_memory(ddp_model, work, sizes, precision, device, optimizer, consensus)
    sampler = Sampler(len(work.train), sizes, config.seed, config.drop_last)
    steps = config.steps or math.ceil(config.epochs * sampler.steps_per_epoch)
    top_lr = schedule.scaled(config.lr, config.lr_scaling, sizes.global_batch_size, config.base_batch_size)

    # load the checkpoint: from here on a resumed run is in the same state as an uninterrupted one
    settings = settings_of(config, sizes, work, steps)
    checkpointer.restore(work.model, optimizer, scaler, settings)
    start = checkpointer.start
    settle_buckets(ddp_model, work, device, optimizer)

    write_facts(sampler, consensus, dist, run, precision=precision.name, requested=config.precision, steps=steps)
    report = Report(dist.rank, run, config, start, settings)
    for line in [*banner(work, config, sampler, steps, precision, top_lr), *checkpointer.announce()]:
        report.say(line)
    flops = model_flops_per_token(work.model, getattr(config, "seq_len", 0))
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None

    def evaluate_now(step: int) -> dict[str, float]:
        """Evaluate on all ranks, and generate samples on rank 0."""
        with here.during("evaluating"), memory.explained(device, sizes, precision.name):
            measures = evaluate(model, work, sizes, config, precision, device, consensus, dist.rank)
            if dist.rank == 0 and work.sample is not None:
                for prompt in config.sample_prompts:
                    report.sample(step, prompt, work.sample(prompt))
        return measures

    row: dict[str, float | None] = {}
    if start == 0:
        row = {**evaluate_now(0)}
        checkpointer.first_val(row["val_loss"])
        report.row(0, steps, row)
    report.start(start, steps)
    busy = BusyTimes(ddp_model, device, sizes.grad_accum_steps)
    throughput = Throughput(device, busy, checkpointer.trained_s)
    began = time.monotonic()
    step, stopped = start, ""
    here.step, here.steps, here.first_step, here.times = start, steps, start + 1, busy.medians
    here.enter("training")
    logged = start  # the step of the last row

    while step < steps:
        throughput.begin_step()
        slots = sampler.rank_slots(step + 1, dist.rank)
        micro_batches: MicroBatches = [(slot, samples, work.train.batch(samples or [0])) for slot, samples in slots]
        throughput.data_ready()
        wait_for_sums = consensus.begin(  # overlaps with the first micro batch's forward pass
            [
                sum(batch.weight for _, samples, batch in micro_batches if samples),
                sum(batch.tokens for _, samples, batch in micro_batches if samples),
                *stop.flags(checkpointer.saving_s + throughput.step_s),
            ]
        )
        lr = schedule.learning_rate(step + 1, steps, top_lr, config.warmup, config.schedule)
        for group in optimizer.param_groups:
            group["lr"] = lr

        local_loss = torch.zeros((), device=device)  # this rank's part of the step's mean loss
        with memory.explained(device, sizes, precision.name):
            for i, (slot, samples, batch) in enumerate(micro_batches):
                reseed(seed_of(config.seed, "step", step + 1, slot), device)
                unsynced = i < len(micro_batches) - 1 or (config.measure and step >= config.measure)
                with accumulating(ddp_model) if unsynced else contextlib.nullcontext():
                    with precision.autocast(), busy.forward():
                        loss = ddp_model(to_device(batch.tensors, device))
                    if i == 0:
                        weight, tokens, *flags = wait_for_sums()
                        if stopped := stop_reason(flags):
                            break
                    # DDP averages over ranks: multiply by their number for the sum, divide by the global batch's weight
                    factor = dist.world_size / weight if samples and weight else 0.0
                    scaler.scale(loss * factor).backward()
                local_loss += loss.detach() * (factor / dist.world_size)
        if stopped:
            break
        step += 1
        last_step = step == steps
        eval_due = last_step or (config.eval_every and step % config.eval_every == 0)
        save_due = not config.measure and (last_step or (config.save_every and step % config.save_every == 0))
        log_due = eval_due or save_due or step % config.log_every == 0 or step == start + 1
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(work.model.parameters(), config.clip or math.inf)
        result = StepResult(step, norm, local_loss, [i for _, samples, _ in micro_batches for i in samples], lr)
        # in fp16 an overflow is normal: the scaler skips such a step
        finite = scaler.is_enabled() or finite_check.passes(result, now=bool(log_due))
        throughput.add_step(local_loss if finite else None, int(tokens))
        if finite:
            with memory.explained(device, sizes, precision.name):  # the first step allocates the optimizer's states
                scaler.step(optimizer)
            scaler.update()
        else:
            report.say(f"step {step}: the gradient is not finite; skipping this step")
        optimizer.zero_grad(set_to_none=True)
        throughput.end_step()
        report.advance(step)
        here.finish_step(step)

        if not log_due:
            continue
        row = {"epoch": step / sampler.steps_per_epoch, "lr": lr, "grad_norm": norm.item()}
        row |= throughput.take(consensus, flops, peak)
        checkpointer.trained_s = throughput.trained_s
        if dist.rank == 0:  # the sum over all ranks: one rank reports it
            here.tokens_per_second = row["tokens_per_second"]
        if not math.isfinite(row["loss"] or 0.0):
            raise finite_check.error(result, since=logged + 1)
        logged = step
        if eval_due or save_due:
            finite_check.weights(work.model, step, lr)
        if eval_due:
            row |= evaluate_now(step)
        if save_due:
            with here.during("saving"):
                row["save_stall_s"] = checkpointer.copy(step, work.model, optimizer, scaler, row.get("val_loss"))
        report.row(step, steps, row)
        checkpointer.write()  # after the row: a run that resumes from this step does not write it again

    here.enter("saving")  # a checkpoint may still be being written
    if stopped:
        finite_check.settle()
        finite_check.weights(work.model, step, top_lr)
        checkpointer.trained_s = throughput.trained_s
        report.say(checkpointer.stop(step, work.model, optimizer, scaler, stopped))
    elif step > start:
        first, last = checkpointer.first_val(None), row["val_loss"]
        report.say(
            f"validation loss {first or math.nan:.3f} -> {last:.3f} in {plural(steps, 'step')},"
            f" {time.monotonic() - began:.0f} s"
        )
    else:
        report.say(f"already trained to step {steps}: nothing to do")
    report.close()
    return not stopped


def settings_of(config: Any, sizes: BatchSizes, work: Work, steps: int) -> dict[str, Any]:
    """Return the settings that a checkpoint stores, to compare with those of a run that resumes from it."""
    return {
        "data": work.fingerprint,
        "seed": config.seed,
        "global_batch_size": sizes.global_batch_size,
        "micro_batch_size": sizes.micro_batch_size,
        "grad_accum_steps": sizes.grad_accum_steps,
        "drop_last": config.drop_last,
        "seq_len": getattr(config, "seq_len", None),
        "steps": steps,
        "lr": config.lr,
        "precision": config.precision,
        "torch": torch.__version__,
    }


def banner(work: Work, config: Any, sampler: Sampler, steps: int, precision: Precision, lr: float) -> list[str]:
    """Return the lines of the start banner: settings, model size, batch sizes, steps, precision."""
    sizes = sampler.sizes
    parameters = sum(p.numel() for p in work.model.parameters())
    vocabulary = f", vocabulary {len(work.tokenizer):,}" if work.tokenizer is not None else ""
    chosen = [f"{f.name}={v}" for f in dataclasses.fields(config) if (v := getattr(config, f.name)) != f.default]
    scaled = "" if lr == config.lr else f" ({config.lr_scaling} scaling from {config.lr:g})"
    return [
        f"{config.task}: {' '.join(chosen) or 'default settings'}",
        (
            f"model {getattr(config, 'model', '')}: {parameters / 1e6:.2f} M parameters{vocabulary}, {precision.name};"
            f" {len(work.train):,} training and {len(work.held_out):,} held-out samples"
        ),
        (
            f"global batch {sizes.global_batch_size} = micro batch {sizes.micro_batch_size}"
            f" x {plural(sizes.world_size, 'rank')} x {plural(sizes.grad_accum_steps, 'accumulation step')};"
            f" {plural(sampler.steps_per_epoch, 'step')} per epoch;"
            f" {plural(steps, 'step')} = {steps / sampler.steps_per_epoch:.2f} epochs; lr {lr:g}{scaled}"
        ),
    ]
