"""The three batch sizes: any two give the third."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...base.errors import WorkerError
from ...base.units import plural


@dataclass(frozen=True)
class BatchSizes:
    """Sizes in samples: global batch = micro batch x world_size x grad_accum_steps."""

    global_batch_size: int
    micro_batch_size: int
    grad_accum_steps: int
    world_size: int

    def halved(self) -> BatchSizes | None:
        """Return sizes with half the micro batch and the same global batch, None if it is odd."""
        if self.micro_batch_size % 2:
            return None
        return BatchSizes(
            self.global_batch_size, self.micro_batch_size // 2, self.grad_accum_steps * 2, self.world_size
        )


def solve(global_batch: int, micro: int, accum: int, world_size: int, default_global: int) -> BatchSizes:
    """Return the batch sizes from those that are set (0: not set); any two give the third.

    The micro batch alone means no accumulation. If nothing is set, the global batch is `default_global`, rounded up to
    divide over the ranks. Raises WorkerError (status 2) with the nearest possible sizes.
    """
    if micro and accum:
        product = micro * accum * world_size
        if global_batch not in (0, product):
            raise WorkerError(
                f"global_batch_size={global_batch}, but micro_batch_size={micro} x grad_accum_steps={accum}"
                f" x {plural(world_size, 'rank')} = {product}: omit one of the three settings,"
                f" or set global_batch_size={product}",
                status=2,
            )
        return BatchSizes(product, micro, accum, world_size)
    if micro and not global_batch:
        return BatchSizes(micro * world_size, micro, 1, world_size)
    given = "micro_batch_size" if micro else "grad_accum_steps"
    part = (micro or accum or 1) * world_size  # the global batch is a multiple of this
    if not global_batch:
        global_batch = math.ceil(default_global / part) * part
    other, rest = divmod(global_batch, part)
    if rest or not other:
        below, above = global_batch // part * part, (global_batch // part + 1) * part
        sizes = f"{below} or {above}" if below else str(above)
        fitting = _fitting(global_batch, world_size, micro or accum)
        instead = f", or {given}={fitting}" if (micro or accum) and fitting else ""
        times = f"{given}={micro or accum} x " * bool(micro or accum) + plural(world_size, "rank")
        raise WorkerError(
            f"global_batch_size={global_batch} cannot be split evenly over {times}:"
            f" use global_batch_size={sizes}{instead}",
            status=2,
        )
    if micro:
        return BatchSizes(global_batch, micro, other, world_size)
    return BatchSizes(global_batch, other, accum or 1, world_size)


def _fitting(global_batch: int, world_size: int, near: int) -> int | None:
    """Return the size nearest to `near` that divides each rank's share of the global batch."""
    if global_batch % world_size:
        return None
    share = global_batch // world_size
    return min((n for n in range(1, share + 1) if share % n == 0), key=lambda n: (abs(n - near), n))
