"""The training loop, from top to bottom."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import os
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

from ...base.gpus import peak_flops
from ...base.units import plural
from ..rank.distenv import DistEnv, RunEnv
from ..rank.progress import here
from . import compiling, ddp, layers, memory, schedule
from .checkpointing import Checkpointer
from .consensus import Consensus
from .ddp import (
    ModelWithLoss,
    accumulating,
    clip_gradients,
    fit_memory,
    make_optimizer,
    settle_buckets,
    try_step,
    wrap_ddp,
)
from .epoch_file import EpochFiles
from .evaluation import evaluate
from .facts import add_facts, write_facts
from .feed import Feed, MicroBatch
from .finite import FiniteCheck, StepResult
from .precision import Precision, choose
from .report import Report, model_flops_per_token
from .sampler import Sampler, reseed, seed_of
from .settings import batch_sizes
from .sizes import BatchSizes
from .stopping import StopRequest, stop_reason
from .throughput import BusyTimes, Throughput
from .work import Work


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
    if device.type == "cpu":
        memory.keep_freed_memory()
    consensus = Consensus(dist, run)
    stop = StopRequest(dist, run, config.time_margin)
    stop.install()
    checkpointer = _checkpointer(config)(config, dist, run, consensus)
    finite_check = FiniteCheck(
        device.type != "cpu" if check_late is None else check_late, config.on_nan, consensus, dist
    )
    done = True
    try:
        done = Loop(work, config, dist, run, device, consensus, stop, checkpointer, finite_check).run()
    finally:
        try:
            checkpointer.close()  # also after an error: the checkpoint being written is the last good state
        finally:
            stop.release(stopped=not done)
    consensus.close()
    return done


def _checkpointer(config: Any) -> type[Checkpointer]:
    if config.parallel == "ddp":
        return Checkpointer
    from .shards import ShardCheckpointer  # takes a while to import

    return ShardCheckpointer


class Loop:
    """The steps of a training on one rank, and what they share. `step` is the last one taken."""

    def __init__(
        self,
        work: Work,
        config: Any,
        dist: DistEnv,
        run: RunEnv,
        device: torch.device,
        consensus: Consensus,
        stop: StopRequest,
        checkpointer: Checkpointer,
        finite_check: FiniteCheck,
    ) -> None:
        """Make the model, its optimizer and the samples ready for the first step, or for the one after a checkpoint."""
        self._work, self._config, self._dist, self._run, self._device = work, config, dist, run, device
        self._consensus, self._stop = consensus, stop
        self._checkpointer, self._finite_check = checkpointer, finite_check
        self._best = checkpointer.best
        self._precision = choose(config.precision, device)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)

        # the model, its optimizer, the batch sizes and the number of steps
        sizes = checkpointer.sizes(batch_sizes(config, dist.world_size))
        self._bare = self._place()
        self._optimizer = make_optimizer(work.model, config)
        self._scaler = self._precision.scaler()
        self._model = self._bare
        in_parts = config.parallel == "fsdp"
        self._ddp_model = self._model if in_parts else wrap_ddp(self._model, dist.world_size, device)

        def attempt(rows: int) -> None:
            try_step(self._ddp_model, work, rows, self._precision, device, self._optimizer)

        compiles, how = compiling.is_wanted(config, work, device), ""
        if compiles:
            rows = sizes.micro_batch_size
            how = compiling.compile_model(self._model, work, lambda: attempt(rows), consensus)
        if config.auto_micro_batch:
            sizes = fit_memory(sizes, attempt, consensus, device, self._precision)
        self._sizes = sizes
        rows = sizes.micro_batch_size if compiles and work.one_shape else 0
        self._sampler = Sampler(len(work.train), sizes, config.seed, config.drop_last)
        self._feed = Feed(work, self._sampler, config.seed, dist.rank, device, rows)
        self._steps = steps = config.steps or math.ceil(config.epochs * self._sampler.steps_per_epoch)
        self._top_lr = schedule.scaled(config.lr, config.lr_scaling, sizes.global_batch_size, config.base_batch_size)

        # load the checkpoint: from here on a resumed run is in the same state as an uninterrupted one
        self._settings = settings = settings_of(config, sizes, work, steps)
        per_epoch = self._sampler.steps_per_epoch
        checkpointer.restore(work.model, self._optimizer, self._scaler, settings, per_epoch)
        self.step = self._start = checkpointer.start
        settle_buckets(self._ddp_model, work, device, self._optimizer, rows)

        name = self._precision.name
        self._eval_every = schedule.in_steps(config.eval_every, per_epoch)
        self._save_every = schedule.in_steps(config.save_every, per_epoch)
        self._epoch_files = EpochFiles(config, dist, run, per_epoch, steps)
        write_facts(self._sampler, consensus, dist, run, precision=name, requested=config.precision, steps=steps)
        self._report = Report(dist.rank, run, config, self._start, settings)
        lines = banner(work, config, self._sampler, steps, self._precision, self._top_lr)
        for line in [*lines, how, ddp.warn_of_batch_norm(work.model, sizes), *checkpointer.announce()]:
            self._report.say(line)
        self._logged = self._start  # the step of the last row
        self._val_loss = math.nan  # of the last evaluation

    def _place(self) -> ModelWithLoss:
        """Put the model, or this rank's part of it, on this rank's device; return it with its loss."""
        if self._config.recompute:
            layers.recompute(self._work.model)
        if self._config.parallel == "fsdp":
            from . import fsdp  # takes a while to import

            parts, self._precision = fsdp.shard(self._work, self._precision, self._device)
            return parts
        self._work.model.to(self._device)
        return ModelWithLoss(self._work)

    def run(self) -> bool:
        """Train to the last step. Return False if the run saved and stopped before it."""
        self._begin()
        began, stopped = time.monotonic(), ""
        while self.step < self._steps and not self._best.ends_training:
            micro_batches, wait_for_sums = self._load_step()
            lr = self._set_learning_rate()
            local_loss, tokens, stopped = self._add_gradients(micro_batches, wait_for_sums)
            if stopped:
                break
            self._take_step(micro_batches, local_loss, tokens, lr)
        here.enter("saving")  # a checkpoint may still be being written
        for line in [self._save_and_stop(stopped)] if stopped else self._finish(time.monotonic() - began):
            self._report.say(line)
        self._report.close()
        return not stopped

    def _begin(self) -> None:
        """Evaluate a new model, and begin to measure and to show progress."""
        config, start, report = self._config, self._start, self._report
        self._flops = model_flops_per_token(self._work.model, getattr(config, "seq_len", 0))
        is_gpu = self._device.type == "cuda"
        self._peak = peak_flops(torch.cuda.get_device_name(self._device)) if is_gpu else None
        if start == 0:
            row = self._evaluate()
            self._checkpointer.first_val(row["val_loss"])
            report.row(0, self._steps, {**row})
        report.start(start, self._steps)
        self._busy = BusyTimes(self._ddp_model, self._device, self._sizes.grad_accum_steps)
        self._throughput = Throughput(self._device, self._busy, self._checkpointer.trained_s)
        here.step, here.steps, here.first_step, here.times = start, self._steps, start + 1, self._busy.medians
        here.enter("training")

    def _evaluate(self) -> dict[str, float]:
        """Evaluate on all ranks, and generate samples on rank 0."""
        work, config, rank = self._work, self._config, self._dist.rank
        with here.during("evaluating"), self._memory_explained():
            measures = evaluate(
                self._model, work, self._sizes, config, self._precision, self._device, self._consensus, rank
            )
            if work.sample is not None and config.sample_prompts:
                with self._bare.gathered():
                    for prompt in config.sample_prompts if rank == 0 else ():
                        self._report.sample(self.step, prompt, work.sample(prompt))
            self._bare.free()
        self._val_loss = measures["val_loss"]
        return measures

    def _load_step(self) -> tuple[list[MicroBatch], Callable[[], list[float]]]:
        """Load this rank's part of the next step, and start to sum its weight, tokens and stop flags over the ranks."""
        self._throughput.begin_step()
        micro_batches = self._feed.step(self.step + 1, self._steps)
        self._throughput.data_ready()
        filled = [batch for _, samples, batch in micro_batches if samples]
        flags = self._stop.flags(self._checkpointer.saving_s + self._throughput.step_s)
        # overlaps with the first micro batch's forward pass
        sums = self._consensus.begin([sum(b.weight for b in filled), sum(b.tokens for b in filled), *flags])
        return micro_batches, sums

    def _set_learning_rate(self) -> float:
        """Set the learning rate of the next step, and return it."""
        config = self._config
        lr = schedule.learning_rate(self.step + 1, self._steps, self._top_lr, config.warmup, config.schedule)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _add_gradients(
        self, micro_batches: list[MicroBatch], wait_for_sums: Callable[[], list[float]]
    ) -> tuple[torch.Tensor, int, str]:
        """Run the forward and backward passes of a step.

        Return this rank's part of the step's mean loss, the number of tokens of all ranks, and "". If a rank is to
        stop, the step is given up: the text is the reason.
        """
        ranks = self._dist.world_size
        local_loss = torch.zeros((), device=self._device)
        with self._memory_explained():
            for i, (slot, samples, batch) in enumerate(micro_batches):
                reseed(seed_of(self._config.seed, "step", self.step + 1, slot), self._device)
                tensors = self._feed.tensors(batch)
                with self._averaging(is_last=i == len(micro_batches) - 1):
                    with self._precision.autocast(), self._busy.forward():
                        loss = self._ddp_model(tensors)
                    if i == 0:
                        weight, tokens, *flags = wait_for_sums()
                        if reason := stop_reason(flags):
                            return local_loss, 0, reason
                    # DDP averages over ranks: multiply by their number for the sum, divide by the global batch's weight
                    factor = ranks / weight if samples and weight else 0.0
                    self._scaler.scale(loss * factor).backward()
                local_loss += loss.detach() * (factor / ranks)
        return local_loss, int(tokens), ""

    def _averaging(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return the context for a micro batch: gradients are averaged over the ranks after the last one of a step.

        A measuring run no longer does so after its first `measure` steps.
        """
        measures_alone = self._config.measure and self.step >= self._config.measure
        return contextlib.nullcontext() if is_last and not measures_alone else accumulating(self._ddp_model)

    def _take_step(self, micro_batches: list[MicroBatch], local_loss: torch.Tensor, tokens: int, lr: float) -> None:
        """Let the optimizer take a step by gradients that are finite, and write what is due after it."""
        config = self._config
        self.step += 1
        eval_due = self._is_due(self._eval_every)
        save_due = not config.measure and self._is_due(self._save_every)
        log_due = eval_due or save_due or self.step % config.log_every == 0 or self.step == self._start + 1
        log_due = log_due or self._epoch_files.are_due(self.step, is_last=False)
        self._scaler.unscale_(self._optimizer)
        norm = clip_gradients(self._work.model, config.clip)
        samples = [i for _, samples, _ in micro_batches for i in samples]
        result = StepResult(self.step, norm, local_loss, samples, lr)
        self._optimize(result, tokens, check_now=log_due)
        self._throughput.end_step()
        self._report.advance(self.step)
        here.finish_step(self.step)
        if log_due:
            self._log(result, eval_due, save_due)

    def _is_due(self, every: Fraction) -> bool:
        """Return whether what is done every so many steps (0: only at the end) is due after this one."""
        return self.step == self._steps or (every > 0 and self.step // every > (self.step - 1) // every)

    def _optimize(self, result: StepResult, tokens: int, check_now: bool) -> None:
        """Update the weights, but not by gradients that are known to be not finite."""
        # in fp16 an overflow is normal: the scaler skips such a step
        finite = self._scaler.is_enabled() or self._finite_check.passes(result, now=check_now)
        self._throughput.add_step(result.loss if finite else None, tokens)
        if finite:
            with self._memory_explained():  # the first step allocates the optimizer's states
                self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._report.say(f"step {self.step}: the gradient is not finite; skipping this step")
        self._optimizer.zero_grad(set_to_none=True)

    def _log(self, result: StepResult, eval_due: bool, save_due: bool) -> None:
        """Write a row of metrics; evaluate and save before it if that is due."""
        step, checkpointer = self.step, self._checkpointer
        row: dict[str, float | None] = {"epoch": step / self._sampler.steps_per_epoch, "lr": result.lr}
        row |= {"grad_norm": result.norm.item()} | self._throughput.take(self._consensus, self._flops, self._peak)
        checkpointer.trained_s = self._throughput.trained_s
        if self._dist.rank == 0:  # the sum over all ranks: one rank reports it
            here.tokens_per_second = row["tokens_per_second"]
        if not math.isfinite(row["loss"] or 0.0):
            raise self._finite_check.error(result, since=self._logged + 1)
        self._logged = step
        if eval_due or save_due or self._epoch_files.are_due(step, is_last=False):
            self._finite_check.weights(self._work.model, step, result.lr)
        if eval_due:
            measures = self._evaluate()
            row |= measures
            self._best.note(step, measures, self._work.model, step == self._steps)
        if save_due or self._best.ends_training:
            with here.during("saving"):
                row["save_stall_s"] = checkpointer.copy(
                    step, self._work.model, self._optimizer, self._scaler, row.get("val_loss")
                )
        self._export()
        self._report.row(step, self._steps, row)
        checkpointer.write()  # after the row: a run that resumes from this step does not write it again

    def _export(self) -> None:
        """Write the file that `export` asks for, if one is due after this step."""
        if self._epoch_files.are_due(self.step, self.step == self._steps or self._best.ends_training):
            with here.during("saving"):
                self._epoch_files.write(self.step, self._work.model, self._optimizer, self._scaler, self._settings)

    def _save_and_stop(self, reason: str) -> str:
        """Save the last step; return the line to print."""
        self._bare.free()
        self._finite_check.settle()
        self._finite_check.weights(self._work.model, self.step, self._top_lr)
        self._checkpointer.trained_s = self._throughput.trained_s
        return self._checkpointer.stop(self.step, self._work.model, self._optimizer, self._scaler, reason)

    def _finish(self, seconds: float) -> list[str]:
        """Give the model its final weights, record which they are, and return the lines to print after the end."""
        best, step = self._best, self.step
        best.put_back(self._work.model, step)
        ended_early = best.reason() if step < self._steps else ""
        self._work.card.update(best.kept(step) | ({"ended_early": ended_early} if ended_early else {}))
        if self._dist.rank == 0:
            add_facts(self._run, self._work.card)
        first = self._checkpointer.first_val(None) or math.nan
        before = f"{first:.3f} -> " if math.isfinite(first) else ""
        lines = [f"validation loss {before}{self._val_loss:.3f} in {plural(step, 'step')}, {seconds:.0f} s"]
        if step == self._start:
            lines = [f"already trained to step {step}: nothing to do"]
        if ended_early:
            lines.append(f"ended early at step {step} of {self._steps}: {ended_early}")
        if "model_val_loss" in self._work.card:
            where = f"step {best.step}" + (", the last" if best.step == step else f" of {step}")
            lines.append(f"the model is that of {where}, with the lowest held-out loss: {best.val_loss:.3f}")
        return lines

    def _memory_explained(self) -> contextlib.AbstractContextManager[None]:
        return memory.explained(self._device, self._sizes, self._precision.name)


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
        "torch": str(torch.__version__),  # a class of torch's own, which a file of weights may not hold
    }


def banner(work: Work, config: Any, sampler: Sampler, steps: int, precision: Precision, lr: float) -> list[str]:
    """Return the lines of the start banner: settings, model size, batch sizes, steps, precision."""
    sizes = sampler.sizes
    parameters = sum(p.numel() for p in work.model.parameters())
    trained = sum(p.numel() for p in work.model.parameters() if p.requires_grad)
    share = f" ({trained / 1e6:.2f} M of them trained)" if trained < parameters else ""
    vocabulary = f", vocabulary {len(work.tokenizer):,}" if work.tokenizer is not None else ""
    chosen = [f"{f.name}={v}" for f in dataclasses.fields(config) if (v := getattr(config, f.name)) != f.default]
    scaled = "" if lr == config.lr else f" ({config.lr_scaling} scaling from {config.lr:g})"
    return [
        f"{config.task}: {' '.join(chosen) or 'default settings'}",
        (
            f"model {getattr(config, 'model', '')}: {parameters / 1e6:.2f} M parameters{share}{vocabulary},"
            f" {precision.name}; {len(work.train):,} training and {len(work.held_out):,} held-out samples"
        ),
        (
            f"global batch {sizes.global_batch_size} = micro batch {sizes.micro_batch_size}"
            f" x {plural(sizes.world_size, 'rank')} x {plural(sizes.grad_accum_steps, 'accumulation step')};"
            f" {plural(sampler.steps_per_epoch, 'step')} per epoch;"
            f" {plural(steps, 'step')} = {steps / sampler.steps_per_epoch:.2f} epochs; lr {lr:g}{scaled}"
        ),
    ]
