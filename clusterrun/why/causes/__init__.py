"""The first cause of a job's end, from the lines of its logs, the records of the job and the facts of its end.

Evidence:
    model.py            the types: Line and EndFacts in, CauseRow and LogFinding between, Cause out
    table_*.py          the tables: pattern, meaning, advice, source
    match.py            a row and a line -> a finding
    scan.py             the lines of a log -> its findings
    tracebacks.py, frames.py, nan_series.py    Python's tracebacks, and a loss that became NaN, which span several lines
    evidence.py         all of it together: these findings with their nodes, and those of the job's records
Rules:
    rules.py            the rules in their order; the first that applies gives the answer
    completed.py        what went wrong in a job that is COMPLETED
    scheduled.py        what the scheduler did to a job, unless a rank had failed before
    first_failure.py    the finding that explains the end best
Answer:
    describe.py, context.py    a finding -> Cause, with its reason, ranks and evidence
    hang.py, flight_recorder.py    the rank that did not join a collective
    limits.py, last_lines.py    the limit (ulimit) that a job reached, what the ranks printed last

Pure: no file is opened here.
"""

from clusterrun.run_folder.ends import Failure, RankEnd
from clusterrun.why.causes.model import Cause, EndFacts, Line
from clusterrun.why.causes.rules import first_cause

__all__ = ["Cause", "EndFacts", "Failure", "Line", "RankEnd", "first_cause"]
