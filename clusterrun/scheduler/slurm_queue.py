"""The whole queue as one squeue tells it, for who else waits and who holds what: argv out, text in.

squeue asks slurmctld for all jobs whatever it is to show, so the whole queue costs no more than one job.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterrun.scheduler.slurm_text import SEP, duration

# The long format has what the short one lacks: the resources allocated. The widths are limits, so they are generous;
# all but the id of an array (its tasks may be thousands) fit.
_COLUMNS = (("JobArrayID", 48), ("JobID", 20), ("State", 24), ("Reason", 100), ("UserName", 64), ("Account", 100),
            ("QOS", 64), ("Partition", 200), ("PriorityLong", 20), ("NumNodes", 12), ("TimeLeft", 20),
            ("StartTime", 20), ("tres-alloc", 300), ("Licenses", 100))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A job of the queue; ``tres`` is what it holds, or asks for while it waits. Memory is in MB.

    ``id`` is the task's or the array's, ``raw`` the number that orders jobs of one priority. ``left`` is seconds to
    its time limit.
    """

    id: str
    raw: int
    state: str
    reason: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partitions: tuple[str, ...] = ()
    priority: int = 0
    nodes: int = 0
    left: int | None = None
    start: int | None = None
    tres: tuple[tuple[str, float], ...] = ()
    licenses: tuple[tuple[str, int], ...] = ()

    def holds(self, name: str) -> float:
        """How much of a resource it holds or asks for: ``cpu``, ``gres/gpu``."""
        return dict(self.tres).get(name, 0)


def queue_argv() -> list[str]:
    """Every job that may be seen, those included that have just ended."""
    columns = ",".join(f"{name}:{width}{SEP}" for name, width in _COLUMNS)
    return ["squeue", "--noheader", "--states=all", "--all", f"--Format={columns}"]


def parse_queue(text: str) -> list[Queued]:
    """The jobs of the answer; a line that does not read is left out."""
    jobs = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split(SEP)]
        if len(cells) != len(_COLUMNS) + 1 or not cells[1].isascii() or not cells[1].isdigit():
            continue
        row = dict(zip((name for name, _ in _COLUMNS), cells, strict=False))
        jobs.append(
            Queued(
                id=row["JobArrayID"].partition("[")[0].rstrip("_"),
                raw=int(row["JobID"]),
                state=row["State"],
                reason="" if row["Reason"] == "None" else row["Reason"],
                user=row["UserName"],
                account=_plain(row["Account"]),
                qos=_plain(row["QOS"]),
                partitions=tuple(row["Partition"].split(",")),
                priority=_number(row["PriorityLong"]) or 0,
                nodes=_number(row["NumNodes"]) or 0,
                left=duration(row["TimeLeft"]),
                start=_number(row["StartTime"]),
                tres=parse_tres(row["tres-alloc"]),
                licenses=parse_licenses(row["Licenses"]),
            )
        )
    return jobs


_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


def parse_tres(text: str) -> tuple[tuple[str, float], ...]:
    """A TRES list, ``cpu=8,mem=2000M,gres/gpu=4``; memory in MB, what is no number left out."""
    found = []
    for part in text.split(","):
        name, _, amount = part.partition("=")
        value = _amount(amount, name.startswith(("mem", "bb/")))
        if name and value is not None:
            found.append((name, value))
    return tuple(found)


def parse_licenses(text: str) -> tuple[tuple[str, int], ...]:
    """``matlab:2,ansys`` as pairs; one without a number counts as one."""
    pairs = []
    for part in "" if text in ("(null)", "N/A") else text.replace("|", ",").replace(";", ",").split(","):
        name, _, count = part.partition(":")
        if name:
            pairs.append((name, _number(count) or 1))
    return tuple(pairs)


def _amount(text: str, sized: bool) -> float | None:
    unit = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    if unit not in _UNITS or not number.isascii() or not number.replace(".", "", 1).isdigit() or len(number) > 30:
        return None
    return float(number) * (_UNITS[unit] if sized else {"K": 1e3, "M": 1e6, "G": 1e9}.get(unit, 1.0))


def _plain(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
