"""Format the output of ``free`` as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from clusterrun.base.units import clause, format_duration, format_time, format_when, plural
from clusterrun.free.estimate import ShapeEstimate, StartEstimates, refusals
from clusterrun.free.limits import UserLimit
from clusterrun.free.snapshot import ClusterSnapshot
from clusterrun.free.summary import NodeRow, PartitionSum, node_rows, partition_sums
from clusterrun.run_folder.node_failures import ENOUGH, NodeFailure, describe
from clusterrun.scheduler.slurm.nodes import OPEN, OUT
from clusterrun.terminal.safe_text import safe_line

#: Rows of nodes of each kind that are shown; the other nodes are counted.
MOST_ROWS = 24
#: Characters of a list of node names; a longer one is cut and its nodes counted.
MOST_NAMES = 44


def format_summary(cluster: ClusterSnapshot, now: float) -> list[str]:
    """Return what is free by partition and node, what is out of service, and the user's limits."""
    names = {partition.name for partition in cluster.partitions}
    if not names:
        return ["no partitions found", *_limits(cluster)]
    rows = node_rows(node for node in cluster.nodes if not names.isdisjoint(node.partitions))
    free_cells = partial(_free_cells, one_partition=len(names) == 1)
    powered_down = "powered down (Slurm starts these nodes on demand)"
    return [
        *_partition_lines(cluster),
        *_rows("free now, per node", filter(_is_free, rows), free_cells),
        *_rows("out of service", filter(_is_out, rows), partial(_out_cells, now=now)),
        *_rows(powered_down, filter(_is_powered_down, rows), free_cells),
        *_limits(cluster),
    ]


def _partition_lines(cluster: ClusterSnapshot) -> list[str]:
    rows = [["PARTITION", "FREE", "OF", "", "NODES"]]
    for partition in partition_sums(cluster):
        rows += _partition_rows(partition)
    return align(rows, right={1, 2})


def _is_free(row: NodeRow) -> bool:
    """Return whether these nodes have free resources that a job can get."""
    # Slurm calls a node without free CPUs allocated, though its GPUs may be idle
    in_use = ("allocated",) if row.unit == "GPUs" else ()
    return row.idle > 0 and row.standing in (*OPEN, *in_use)


def _is_out(row: NodeRow) -> bool:
    """Return whether these nodes are out of service, or are going to be for a reason."""
    return row.standing in OUT or (row.reason != "" and row.standing not in OPEN)


def _is_powered_down(row: NodeRow) -> bool:
    return row.standing == "powered down"


def _partition_rows(row: PartitionSum) -> list[list[str]]:
    """Return the partition's row, and one for each named GPU type."""
    notes = ", ".join(f"{number} {standing}" for standing, number in row.standings) or "no nodes"
    if row.untold:
        notes += f" (usage of {plural(row.untold, 'node')} unknown)"
    if row.closed:
        notes = f"closed to you: {row.closed}; {notes}"
    elif row.preemption:
        notes += f"; {row.preemption.sentence}"
    name = row.partition.name + "*" * row.partition.default
    types = [["", str(free), str(total), kind, ""] for kind, free, total in row.types]
    if len(types) == 1:
        return [[name, str(row.free), str(row.total), f"{row.unit} {row.types[0][0]}", notes]]
    return [[name, str(row.free), str(row.total), row.unit, notes], *types]


def _free_cells(row: NodeRow, one_partition: bool) -> list[str]:
    what = f"{row.free} of {row.total} {row.unit}"
    if len(row.types) == 1:
        what += f" {row.types[0][0]}"
    elif row.types:
        what += f" ({', '.join(f'{kind} {number}' for kind, number in row.types)})"
    partitions = "" if one_partition else ",".join(row.partitions)
    return [_names(row.names, row.folded), what, partitions, _free_note(row)]


def _free_note(row: NodeRow) -> str:
    if row.standing == "planned":
        return "planned for a pending job"
    standing = row.standing.removeprefix("idle")
    return ", ".join(filter(None, (standing, clause(row.full, f"{row.idle} idle, but no {{}} left"))))


def _out_cells(row: NodeRow, now: float) -> list[str]:
    since = f"since {format_time(row.since, now)}" if row.since else ""
    who = ", ".join(filter(None, [row.by, since]))
    reason = row.reason or "no reason given"
    return [_names(row.names, row.folded), row.standing, f"{reason}{clause(who, ' ({})')}"]


def _rows(title: str, rows: Iterable[NodeRow], cells: Callable[[NodeRow], list[str]]) -> list[str]:
    rows = list(rows)
    if not rows:
        return []
    lines = ["", title, *_indented(map(cells, rows[:MOST_ROWS]))]
    left_out = sum(len(row.names) for row in rows[MOST_ROWS:])
    if left_out:
        how = "use --partition to show one partition, or --json to show all nodes"
        lines.append(f"  and {plural(left_out, 'more node')}; {how}")
    return lines


def _names(names: Sequence[str], folded: str) -> str:
    if len(folded) <= MOST_NAMES:
        return folded
    return f"{folded[: MOST_NAMES - 14].rstrip(',-')}… ({len(names)} nodes)"


def _limits(cluster: ClusterSnapshot) -> list[str]:
    if cluster.limits:
        return ["", "your limits", *_indented(map(_limit_cells, cluster.limits))]
    if cluster.limits is None or cluster.notes:
        return []
    return ["", "no limits apply to you, your accounts or your QOS"]


def format_failures(by_node: Mapping[str, Sequence[NodeFailure]], now: float) -> list[str]:
    """Return the nodes that failed, or were slow, under the user's runs."""
    if not by_node:
        return []
    title = f"failed or slow in your runs of the last 24 h (submit leaves out a node with {ENOUGH} hardware failures)"
    return ["", title, *_indented([node, describe(failures, now)] for node, failures in by_node.items())]


def _limit_cells(limit: UserLimit) -> list[str]:
    name = f"{limit.label} ({limit.name})"
    most = format_duration(int(limit.limit * 60)) if limit.name == "MaxWallPJ" else f"{limit.limit:.0f}"
    if limit.left is None:
        return [limit.by, name, most, ""]
    return [limit.by, name, f"{limit.used:.0f} of {most} used", f"{limit.left:.0f} left"]


def format_estimates(estimates: StartEstimates, now: float) -> list[str]:
    """Return the estimates with the command for each, then what is not possible, with the reason."""
    total = plural(estimates.shape.nodes * estimates.shape.each, estimates.shape.unit)
    if estimates.starts:
        title = f"{total}: start times estimated by Slurm (sbatch --test-only; nothing is submitted)"
        lines = [title, *_start_lines(estimates.starts, now), *_exceeded_lines(estimates)]
        impossible = ["", "not possible"]
    else:
        lines, impossible = [], [f"{total}: no partition accepts this job"]
    refused = refusals(estimates)
    if refused:
        lines += [*impossible, *_indented(refused)]
    return lines


def _start_lines(starts: Sequence[ShapeEstimate], now: float) -> list[str]:
    lines = []
    for start, cells in zip(starts, _indented(_start_cells(start, now) for start in starts), strict=True):
        lines += ["", cells, f"    {start.command}"]
    return lines


def _exceeded_lines(estimates: StartEstimates) -> list[str]:
    if not estimates.exceeded_limits:
        return []
    title = "limits that block the job (Slurm's estimate ignores them)"
    return ["", title, *_indented([line] for line in estimates.exceeded_limits)]


def _start_cells(estimate: ShapeEstimate, now: float) -> list[str]:
    start = estimate.start
    notes = []
    if estimate.given_time:
        notes.append(f"time limit {format_duration(estimate.given_time)}")
    if start.preempts:
        notes.append(f"preempts job{'s' * (len(start.preempts) > 1)} {', '.join(start.preempts)}")
    if estimate.preemption:
        notes.append(estimate.preemption.sentence)
    return [format_when(start.at, now), str(estimate.shape), estimate.partition, start.nodes, ", ".join(notes)]


def _indented(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in align(rows)]


def align(rows: Iterable[Sequence[str]], right: frozenset[int] | set[int] = frozenset()) -> list[str]:
    """Return rows of cells as aligned lines, columns ``right`` right-aligned; cells are sanitized."""
    safe = [[safe_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    lines = []
    for row in safe:
        line = ""
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            if width:
                line += f"{cell:>{width}}  " if number in right else f"{cell:<{width}}  "
        lines.append(line.rstrip())
    return lines
