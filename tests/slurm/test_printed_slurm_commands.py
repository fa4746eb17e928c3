"""Slurm commands that clusterrun prints or documents are commands of Slurm: each is typed on the lab."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile

from clusterrun.scheduler.slurm.reasons import words
from clusterrun.why.causes.match import TABLE
from lab.cluster import Lab
from tests.slurm.test_list import sbatch
from tests.support.printed_commands import SLURM, in_code, in_documents

#: What stands for a value, and one that the lab has.
VALUES = {
    "QOS=NAME": "QOS=normal", "Account=NAME": "Account=root", "Partition=NAME": "Partition=low",
    "ReservationName=NAME": "ReservationName=",
    "ArrayTaskThrottle=N": "ArrayTaskThrottle=2", "NumNodes=N-N": "NumNodes=1-1",
    "{job}": "JOB", "JOBID": "JOB", "{}": "JOB", "$USER": "root", "…": "Priority=1",
}  # fmt: skip
#: How Slurm says that it does not know what was typed (22.05), not that it cannot be done to this job.
NOT_KNOWN = re.compile(
    r"invalid option|unrecognized option|requires an argument|Invalid input|Update of this parameter|invalid keyword"
    r"|too (?:few|many) arguments|Unknown condition|Invalid entity|Try .* --help|Unable to recognize|Invalid job"
    r"|syntax error",
    re.IGNORECASE,
)


def printed() -> set[str]:
    found = {command for _, command in [*in_code(), *in_documents()]}
    found |= {row.command for row in TABLE}
    found |= {command for row in words.ROWS for command in re.findall(r"`([^`]+)`", row.action)}
    return {one for one in found if one.split(" ")[0] in SLURM}


def test_slurm_knows_each_command(lab: Lab) -> None:
    job = sbatch(lab, "--hold", "--job-name=printed", "--wrap", "true")
    typed = 0
    try:
        for command in sorted(printed()):
            line = re.sub(r"\[[^]]*\]", "", command)
            for placeholder, value in VALUES.items():
                line = line.replace(placeholder, value)
            line = re.sub(r"JobId=\d+|\bJOB\b", lambda m: f"JobId={job}" if "=" in m[0] else job, line)
            argv = shlex.split(line)
            if argv[0] in ("sbatch", "srun"):  # a mention of an option
                own = takewhile(lambda word: word not in ("torchrun", "python"), argv[1:])  # then the program's options
                # pyxis, a plugin that no Debian package has, adds srun's --container-…
                options = [word for word in own if word.startswith("--") and not word.startswith("--container-")]
                done = lab.run([argv[0], *options, "--usage"])
                assert not NOT_KNOWN.search(done.stdout + done.stderr), (line, done)
                continue
            if argv[0] == "scontrol" and len(argv) == 2 and argv[1] != "ping":  # a mention of a verb
                assert argv[1] in lab.run(["scontrol", "--help"]).stdout, line
                continue
            done = lab.run(argv)
            assert not NOT_KNOWN.search(done.stdout + done.stderr), (line, done)
            typed += 1
    finally:
        lab.run(["scancel", job])
    assert typed >= 25
    wrong = lab.run(["scontrol", "update", f"JobId={job}", "Depndency="])
    assert NOT_KNOWN.search(wrong.stdout + wrong.stderr), wrong
