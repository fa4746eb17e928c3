"""Format the output of ``free`` as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from clusterrun.base.units import format_duration, format_time, format_when, plural
from clusterrun.free.estimate import ShapeEstimate, StartEstimates, refusals
from clusterrun.free.limits import UserLimit
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.free.summary import NodeRow, PartitionSum, node_rows, partition_sums
from clusterrun.scheduler.slurm.nodes import OPEN, OUT
from clusterrun.scheduler.slurm.sbatch import Start
from clusterrun.terminal.safe_text import safe_line

#: Rows of nodes of each kind that are shown; the other nodes are counted.
MOST_ROWS = 24
#: Characters of a list of node names; a longer one is cut and its nodes counted.
MOST_NAMES = 44


def format_summary(seen: ClusterSnapshot, now: float) -> list[str]:
    """Return what is free by partition and node, what is out of service, and the user's limits."""
    lines = align(
        [["PARTITION", "FREE", "OF", "", "NODES"], *(r for row in partition_sums(seen) for r in _partition_rows(row))],
        right={1, 2},
    )
    names = {partition.name for partition in seen.partitions}
    if not names:
        return ["no partitions found", *_limits(seen)]
    rows = node_rows(node for node in seen.nodes if names & set(node.partitions))
    one_partition = len(names) == 1
    # Slurm calls a node without free CPUs allocated, though its GPUs may be idle
    open_rows = [r for r in rows if r.idle and (r.standing in OPEN or (r.standing == "allocated" and r.unit == "GPUs"))]
    lines += _rows("free now, per node", open_rows, [_free_cells(row, one_partition) for row in open_rows])
    out = [row for row in rows if row.standing in OUT or (row.reason and row.standing not in OPEN)]
    lines += _rows("out of service", out, [_out_cells(row, now) for row in out])
    later = [row for row in rows if row.standing == "powered down"]
    down = "powered down (Slurm starts these nodes on demand)"
    lines += _rows(down, later, [_free_cells(row, one_partition) for row in later])
    return lines + _limits(seen)


def _partition_rows(row: PartitionSum) -> list[list[str]]:
    """Return the partition's row, and one for each named GPU type."""
    notes = ", ".join(f"{number} {standing}" for standing, number in row.standings) or "no nodes"
    if row.untold:
        notes += f" (usage of {plural(row.untold, 'node')} unknown)"
    if row.preemption and not row.closed:
        notes += f"; {row.preemption.sentence}"
    if row.closed:
        notes = f"closed to you: {row.closed}; {notes}"
    mark = "*" if row.partition.default else ""
    types = [["", str(free), str(total), kind, ""] for kind, free, total in row.types]
    unit = row.unit
    if len(types) == 1:
        unit, types = f"{unit} {row.types[0][0]}", []
    return [[row.partition.name + mark, str(row.free), str(row.total), unit, notes], *types]


def _free_cells(row: NodeRow, one_partition: bool) -> list[str]:
    what = f"{row.free} of {row.total} {row.unit}"
    if len(row.types) == 1:
        what += f" {row.types[0][0]}"
    elif row.types:
        what += f" ({', '.join(f'{kind} {number}' for kind, number in row.types)})"
    notes = [row.standing] if row.standing != "idle" else []
    if row.full:
        notes.append(f"{row.idle} idle, but no {row.full} left")
    if row.standing == "planned":
        notes = ["planned for a pending job"]
    return [_names(row.names, row.folded), what, "" if one_partition else ",".join(row.partitions), ", ".join(notes)]


def _out_cells(row: NodeRow, now: float) -> list[str]:
    who = ", ".join(filter(None, [row.by, f"since {format_time(row.since, now)}" if row.since else ""]))
    reason = (row.reason or "no reason given") + (f" ({who})" if who else "")
    return [_names(row.names, row.folded), row.standing, reason]


def _rows(title: str, rows: Sequence[NodeRow], cells: list[list[str]]) -> list[str]:
    if not rows:
        return []
    lines = ["", title, *(f"  {line}" for line in align(cells[:MOST_ROWS]))]
    if more := sum(len(row.names) for row in rows[MOST_ROWS:]):
        how = "use --partition to show one partition, or --json to show all nodes"
        lines.append(f"  and {plural(more, 'more node')}; {how}")
    return lines


def _names(names: Sequence[str], folded: str) -> str:
    if len(folded) <= MOST_NAMES:
        return folded
    return f"{folded[: MOST_NAMES - 14].rstrip(',-')}… ({len(names)} nodes)"


def _limits(seen: ClusterSnapshot) -> list[str]:
    if seen.limits is None:
        return []
    if not seen.limits:
        return [] if seen.notes else ["", "no limits apply to you, your accounts or your QOS"]
    return ["", "your limits", *(f"  {line}" for line in align([_limit_cells(limit) for limit in seen.limits]))]


def _limit_cells(limit: UserLimit) -> list[str]:
    name, most = f"{limit.label} ({limit.name})", _amount(limit, limit.limit)
    if limit.used is None or limit.left is None:
        return [limit.by, name, most, ""]
    return [limit.by, name, f"{_amount(limit, limit.used)} of {most} used", f"{_amount(limit, limit.left)} left"]


def _amount(limit: UserLimit, number: float) -> str:
    return format_duration(int(number * 60)) if limit.name == "MaxWallPJ" else f"{number:.0f}"


def format_estimates(found: StartEstimates, now: float) -> list[str]:
    """Return the estimates with the command for each, then what is not possible, with the reason."""
    shape, unit = found.shape, found.need.unit
    total = plural(shape.nodes * shape.each, unit)
    lines = []
    if found.starts:
        lines = [f"{total}: start times estimated by Slurm (sbatch --test-only; nothing is submitted)"]
        cells = align([_start_cells(tried, now) for tried in found.starts])
        for tried, line in zip(found.starts, cells, strict=True):
            lines += ["", f"  {line}", f"    {tried.command}"]
    if lines and found.exceeded_limits:
        lines += ["", "limits that block the job (Slurm's estimate ignores them)"]
        lines += [safe_line(f"  {line}") for line in found.exceeded_limits]
    refused = refusals(found)
    if refused:
        lines += ["", "not possible"] if lines else [f"{total}: no partition accepts this job"]
        lines += [f"  {line}" for line in align([[where, why] for where, why in refused])]
    return lines


def _start_cells(tried: ShapeEstimate, now: float) -> list[str]:
    start = tried.estimate
    assert isinstance(start, Start)
    notes = [f"time limit {format_duration(tried.given_time)}"] if tried.given_time else []
    notes += [f"preempts job{'s' * (len(start.preempts) > 1)} {', '.join(start.preempts)}"] if start.preempts else []
    notes += [tried.preemption.sentence] if tried.preemption else []
    return [format_when(start.at, now), str(tried.shape), tried.partition, start.nodes, ", ".join(notes)]


def align(rows: Iterable[Sequence[str]], right: frozenset[int] | set[int] = frozenset()) -> list[str]:
    """Return rows of cells as aligned lines, columns ``right`` right-aligned; cells are sanitized."""
    safe = [[safe_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    lines = []
    for row in safe:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
