"""Why a job ended: from the lines of its logs and what is known of its end to the first cause.

    model.py        what goes in (Line, Facts) and what comes out (Cause)
    rows.py         one Row of the tables: what to look for, what it means, what to do, where it was seen
    gpu.py, peers.py, slurm.py, python.py, files.py, launch.py      the tables
    tracebacks.py   Python's tracebacks and torchrun's summaries, which take several lines
    sizes.py        the figures of a memory limit, whose unit the line does not say
    scan.py         lines -> findings
    choose.py       findings and facts -> the one that came first
    telling.py      a finding -> Cause, with its reason, its ranks, its proof
    weak.py         ... where nothing names a cause by itself
    hang.py         which rank did not come to a collective
    recorder.py     PyTorch's flight recorder dumps, read without running anything in them

Pure: no file is opened here.
"""

from clusterrun.records.rank_records import RankEnd, RankFailure
from clusterrun.why.causes.model import Cause, EndFacts, Evidence, Line
from clusterrun.why.causes.select import first_cause

__all__ = ["Cause", "EndFacts", "Evidence", "Line", "RankEnd", "RankFailure", "first_cause"]
