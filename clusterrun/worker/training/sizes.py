"""The three batch sizes: any two give the third."""

from __future__ import annotations

from dataclasses import dataclass

from ...base import batches
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
    """Return the batch sizes from those that are set (`batches.solve`).

    Raises WorkerError (status 2) with the nearest possible sizes.
    """
    try:
        return BatchSizes(*batches.solve(global_batch, micro, accum, world_size, default_global), world_size)
    except batches.NoSolution as error:
        ranks = plural(world_size, "rank")
        if not error.nearest:
            product = micro * accum * world_size
            text = (
                f"global_batch_size={global_batch}, but micro_batch_size={micro} x grad_accum_steps={accum}"
                f" x {ranks} = {product}: omit one of the three settings, or set global_batch_size={product}"
            )
        else:
            name, size = ("micro_batch_size", micro) if micro else ("grad_accum_steps", accum)
            fitting = _fitting(global_batch, world_size, size) if size else None
            text = (
                f"global_batch_size={global_batch} cannot be split evenly over {f'{name}={size} x ' if size else ''}"
                f"{ranks}: use global_batch_size={' or '.join(map(str, error.nearest))}"
                f"{f', or {name}={fitting}' if fitting else ''}"
            )
        raise WorkerError(text, status=2) from None


def _fitting(global_batch: int, world_size: int, near: int) -> int | None:
    """Return the size nearest to `near` that divides each rank's share of the global batch."""
    if global_batch % world_size:
        return None
    share = global_batch // world_size
    return min((n for n in range(1, share + 1) if share % n == 0), key=lambda n: (abs(n - near), n))
