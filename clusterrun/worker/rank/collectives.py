"""How many collectives each process group of this process has started, for scripts that report no steps.

torch counts them by itself. Reading a count takes less than a microsecond and no collective; only the thread that
writes the progress record reads it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

MOST_GROUPS = 16


def of_group(group: Any) -> int:
    """Return the number of collectives that a process group has started; raises if its backend does not count."""
    count: int = group._get_sequence_number_for_group()
    return count


def count() -> dict[str, int]:
    """Return the number of collectives of each open process group by its name, which is the same on all ranks.

    Empty without torch.distributed, or if its private interface is another. Send and receive are not counted.
    """
    found: dict[str, int] = {}
    with suppress(Exception):  # a private interface; the module may also be half imported, or the groups just changing
        world = sys.modules["torch.distributed.distributed_c10d"]._world
        for group in [*world.pg_map][:MOST_GROUPS]:
            with suppress(Exception):  # some backends do not count
                found[str(world.pg_names[group])] = of_group(group)
    return found
