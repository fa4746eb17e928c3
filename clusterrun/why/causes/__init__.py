"""The first cause of a job's end, from the lines of its logs and the facts of its end.

    model.py            the input (Line, EndFacts), the rows of the tables, LogFinding, the output (Cause)
    table_*.py          the tables: what to look for, what it means, what to do, where it was seen
    match.py            lines -> findings
    tracebacks.py, frames.py    Python's tracebacks and torchrun's summaries, which take several lines
    aborts.py, nan_series.py, memory_units.py, context.py    what other lines or figures add to a finding
    select.py           findings and facts -> the one that came first
    describe.py         a finding -> Cause, with its reason, its ranks, its evidence
    fallback.py         ... if no line names a cause
    hang.py, flight_recorder.py    which rank did not join a collective

Pure: no file is opened here.
"""

from clusterrun.records.rank_records import RankEnd, RankFailure
from clusterrun.why.causes.model import Cause, EndFacts, Evidence, Line
from clusterrun.why.causes.select import first_cause

__all__ = ["Cause", "EndFacts", "Evidence", "Line", "RankEnd", "RankFailure", "first_cause"]
