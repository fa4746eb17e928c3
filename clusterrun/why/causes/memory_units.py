"""The numbers in Slurm's message on a memory limit: KiB or bytes, depending on the release."""

from __future__ import annotations

from clusterrun.base.units import format_bytes

_MIB = 1024 * 1024
_PAGE = 4096


def format_excess(used: int, limit: int) -> str:
    """Return ``305.9 MiB > 300.0 MiB``; without a unit if it is ambiguous.

    Older releases (``Step 7.0``) count in KiB, newer ones (``StepId=7.0``) in bytes: then ``used`` is a number of whole
    pages and ``limit`` of whole MiB. Otherwise, if one is not even whole KiB or whole MiB, the unit is KiB.
    """
    if used % _PAGE == 0 and limit % _MIB == 0:
        unit = 1
    elif used % 1024 or limit % _MIB:
        unit = 1024
    else:
        return f"{used} > {limit}"
    more, less = format_bytes(used * unit), format_bytes(limit * unit)
    return f"{more} > {less}" if more != less else f"{used} > {limit} {'KiB' if unit > 1 else 'bytes'}"
