"""A real Slurm cluster on one Linux machine, for tests and for trying things.

`Lab(name="test").up()` gives nodes that are hosts of their own (network namespace, host name, address on a bridge)
with GPUs that Slurm allocates, and with every daemon and link ready to be broken on purpose: `python -m lab --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.cluster import Lab
    from lab.errors import LabError
    from lab.install import available

__all__ = ["Lab", "LabError", "available"]


def __getattr__(name: str) -> Any:
    # Late, so that `python -m lab.install` is not imported a first time on the way to its being run.
    if name not in __all__:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    from lab import cluster, errors, install

    return {"Lab": cluster.Lab, "LabError": errors.LabError, "available": install.available}[name]
