"""The first cause of a job's end, from the lines of its logs and the facts of its end.

    model.py            the types: Line and EndFacts in, CauseRow and LogFinding between, Cause out
    table_*.py          the tables: pattern, meaning, advice, source
    match.py            lines -> findings
    tracebacks.py, frames.py, summaries.py    Python's tracebacks and torchrun's summaries, which span several lines
    aborts.py, native.py, nan_series.py, memory_units.py, context.py    what other lines or numbers add to a finding
    select.py           findings and facts -> the first cause
    behind.py           what is behind a finding: the root of a time-out, a later exception
    describe.py         a finding -> Cause, with its reason, ranks and evidence
    fallback.py         the cause if no line names one
    nodes.py            the node of a finding
    attempts.py, limits.py    what a library tried before it gave up; the limit (ulimit) that a job reached
    last_lines.py       what the ranks printed last
    hang.py, flight_recorder.py    the rank that did not join a collective

Pure: no file is opened here.
"""

from clusterrun.records.rank_records import Failure, RankEnd
from clusterrun.why.causes.model import Cause, EndFacts, Line
from clusterrun.why.causes.select import first_cause

__all__ = ["Cause", "EndFacts", "Failure", "Line", "RankEnd", "first_cause"]
