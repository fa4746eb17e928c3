"""The training loop: read it from top to bottom, it is all there is."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import time
from typing import Any

import torch

from .distenv import DistEnv, RunEnv
from .progress import here
from .training import memory, schedule
from .training.checkpointing import Keeper
from .training.consensus import Agreement
from .training.ddp import (
    WithLoss,
    accumulating,
    averaged,
    compiled,
    fit_memory,
    make_optimizer,
    settle_buckets,
    to_device,
)
from .training.evaluation import evaluate
from .training.judging import Judge, Taken
from .training.precision import Precision, choose
from .training.report import Report, flops_per_token, peak_flops
from .training.sampler import Order, reseed, seed_of
from .training.sizes import BatchSizes, solve
from .training.stopping import StopRequest, stop_reason
from .training.throughput import Window
from .work import Batch, Work

Mine = list[tuple[int, list[int], Batch]]  # this rank's part of a step: slot, sample indices, micro batch


def train(
    work: Work, config: Any, dist: DistEnv, run: RunEnv, device: torch.device, judge_late: bool | None = None
) -> bool:
    """Train `work.model` on all ranks; tells whether it got to the end (False: it was asked to stop, and saved).

    `config` has the keys of `settings.Training`. Rank 0 prints, and writes metrics, checkpoints and samples. A GPU's
    gradients are judged one step late; `judge_late` sets that for any device. Raises WorkerError for what the user can
    mend: batches that cannot be, a foreign checkpoint, NaN, memory that ran out.
    """
    gc.freeze()  # what stands by now stays: no need to look through it while training
    gc.enable()
    agreement = Agreement(dist, run)
    stop = StopRequest(dist, run, config.time_margin)
    stop.install()
    keeper = Keeper(config, dist, run, agreement)
    judge = Judge(device.type != "cpu" if judge_late is None else judge_late, config.on_nan, agreement, dist)
    try:
        done = _train(work, config, dist, run, device, agreement, stop, keeper, judge)
    finally:
        try:
            keeper.close()  # also on the way out of an error: what is being written is the last good state
        finally:
            stop.release()
    agreement.close()
    return done


def _train(
    work: Work,
    config: Any,
    dist: DistEnv,
    run: RunEnv,
    device: torch.device,
    agreement: Agreement,
    stop: StopRequest,
    keeper: Keeper,
    judge: Judge,
) -> bool:
    precision = choose(config.precision, device)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)

    # what to train, and how much of it
    asked = (config.global_batch_size, config.micro_batch_size, config.grad_accum_steps)
    sizes = keeper.sizes(solve(*asked, dist.world_size, config.default_global_batch))
    optimizer = make_optimizer(work.model.to(device), config)
    scaler = precision.scaler()
    whole: torch.nn.Module = WithLoss(work)
    if config.compile:
        whole = compiled(whole)
    net = averaged(whole, dist.world_size, device)
    if config.auto_micro_batch:
        sizes = fit_memory(net, work, sizes, precision, device, optimizer, agreement)
    order = Order(len(work.train), sizes, config.seed, config.drop_last)
    steps = config.steps or math.ceil(config.epochs * order.steps_per_epoch)
    top_lr = schedule.scaled(config.lr, config.lr_scaling, sizes.global_batch_size, config.base_batch_size)

    # where to go on: after this, a resumed run is in the state that the uninterrupted one was in
    settings = settings_of(config, sizes, work, steps)
    keeper.restore(work.model, optimizer, scaler, settings)
    start = keeper.start
    settle_buckets(net, work, device, optimizer)

    report = Report(dist.rank, run, config, start, settings)
    for line in [*banner(work, config, order, steps, precision, top_lr), *keeper.announce()]:
        report.say(line)
    flops = flops_per_token(work.model, getattr(config, "seq_len", 0))
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None

    def look(step: int) -> dict[str, float]:
        """Evaluate on all ranks, generate on rank 0."""
        with here.during("evaluating"):
            found = evaluate(whole, work, sizes, config, precision, device, agreement, dist.rank)
            if dist.rank == 0 and work.sample is not None:
                for prompt in config.sample_prompts:
                    report.sampled(step, prompt, work.sample(prompt))
        return found

    row: dict[str, float | None] = {}
    if start == 0:
        row = {**look(0)}
        keeper.first_val(row["val_loss"])
        report.row(0, steps, row)
    report.start(start, steps)
    window = Window(device)
    began = time.monotonic()
    step, stopped = start, ""
    here.step, here.steps = start, steps
    here.enter("training")
    shown = start  # the step of the last row

    while step < steps:
        window.resume()
        mine: Mine = [(slot, s, work.train.batch(s or [0])) for slot, s in order.mine(step + 1, dist.rank)]
        window.data_is_here()
        agreed = agreement.begin(  # on its way while the first micro batch goes forward
            [
                sum(batch.weight for _, samples, batch in mine if samples),
                sum(batch.tokens for _, samples, batch in mine if samples),
                *stop.wishes(keeper.saving_s + window.step_s),
            ]
        )
        lr = schedule.learning_rate(step + 1, steps, top_lr, config.warmup, config.schedule)
        for group in optimizer.param_groups:
            group["lr"] = lr

        local = torch.zeros((), device=device)  # this rank's part of the step's mean loss
        try:
            for i, (slot, samples, batch) in enumerate(mine):
                reseed(seed_of(config.seed, "step", step + 1, slot), device)
                with accumulating(net) if i < len(mine) - 1 else contextlib.nullcontext():
                    with precision.autocast():
                        loss = net(to_device(batch.tensors, device))
                    if i == 0:
                        weight, tokens, *wishes = agreed()
                        if stopped := stop_reason(wishes):
                            break
                    # DDP takes the mean over ranks; times their number it is the sum, over the global batch's weight
                    factor = dist.world_size / weight if samples and weight else 0.0
                    scaler.scale(loss * factor).backward()
                local += loss.detach() * (factor / dist.world_size)
        except (RuntimeError, MemoryError) as error:
            if memory.is_oom(error):
                raise memory.explain(device, sizes, precision.name) from None
            raise
        if stopped:
            break
        step += 1
        ends = step == steps
        looks = ends or (config.eval_every and step % config.eval_every == 0)
        saves = ends or (config.save_every and step % config.save_every == 0)
        shows = looks or saves or step % config.log_every == 0 or step == start + 1
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(work.model.parameters(), config.clip or math.inf)
        taken = Taken(step, norm, local, [sample for _, chosen, _ in mine for sample in chosen], lr)
        # in fp16 an overflow is normal, and the scaler skips the step itself
        finite = scaler.is_enabled() or judge.passes(taken, now=bool(shows))
        window.add(local if finite else None, int(tokens))
        if finite:
            scaler.step(optimizer)
            scaler.update()
        else:
            report.say(f"step {step}: the gradient is not finite, this step changes nothing")
        optimizer.zero_grad(set_to_none=True)
        report.advance(step)
        here.step = step

        if not shows:
            continue
        row = {"epoch": step / order.steps_per_epoch, "lr": lr, "grad_norm": norm.item()}
        row |= window.close(agreement, flops, peak)
        if dist.rank == 0:  # the figure is that of all ranks together
            here.tokens_per_second = row["tokens_per_second"]
        if not math.isfinite(row["loss"] or 0.0):
            raise judge.error(taken, since=shown + 1)
        shown = step
        if looks or saves:
            judge.weights(work.model, step, lr)
        if looks:
            row |= look(step)
        if saves:
            with here.during("saving"):
                row["save_stall_s"] = keeper.save(step, work.model, optimizer, scaler, row.get("val_loss"))
        report.row(step, steps, row)

    here.enter("saving")  # a checkpoint may still be on its way
    if stopped:
        judge.settle()
        judge.weights(work.model, step, top_lr)
        report.say(keeper.stop(step, work.model, optimizer, scaler, stopped))
    elif step > start:
        first, last = keeper.first_val(None), row["val_loss"]
        report.say(
            f"validation loss {first or math.nan:.3f} -> {last:.3f} in {steps} steps, {time.monotonic() - began:.0f} s"
        )
    else:
        report.say(f"trained to step {steps} already")
    report.close()
    return not stopped


def settings_of(config: Any, sizes: BatchSizes, work: Work, steps: int) -> dict[str, Any]:
    """What a checkpoint says of the run it belongs to."""
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


def banner(work: Work, config: Any, order: Order, steps: int, precision: Precision, lr: float) -> list[str]:
    """What is about to happen, in figures that hold."""
    sizes = order.sizes
    parameters = sum(p.numel() for p in work.model.parameters())
    vocabulary = f", vocabulary {len(work.tokenizer):,}" if work.tokenizer is not None else ""
    chosen = [f"{f.name}={v}" for f in dataclasses.fields(config) if (v := getattr(config, f.name)) != f.default]
    scaled = "" if lr == config.lr else f" ({config.lr_scaling} scaling of {config.lr:g})"
    return [
        f"{config.task}: {' '.join(chosen) or 'as it is'}",
        f"model {getattr(config, 'model', '')} {parameters / 1e6:.2f} M parameters{vocabulary}, {precision.name};"
        f" {len(work.train):,} training and {len(work.held_out):,} held-out samples",
        f"global batch {sizes.global_batch_size} = micro batch {sizes.micro_batch_size} x {sizes.world_size} ranks"
        f" x {sizes.grad_accum_steps} accumulation; {order.steps_per_epoch} steps per epoch;"
        f" {steps} steps = {steps / order.steps_per_epoch:.2f} epochs; lr {lr:g}{scaled}",
    ]
