"""The tables of srun's and sbatch's options have every name that this Slurm takes."""

from __future__ import annotations

import re
import string

from clusterrun.submit.launcher_table import SBATCH, SRUN
from lab.cluster import Lab


def names(lab: Lab, program: str) -> set[str]:
    """The long options of a program: it lists them where a beginning is ambiguous. Nothing is submitted."""
    found: set[str] = set()
    for letter in string.ascii_lowercase:
        said = lab.run([program, f"--{letter}", "--no-such-option", "/nowhere"]).stderr
        if match := re.search(r"is ambiguous; possibilities:(.*)", said):
            found |= set(re.findall(r"'--([\w-]+)'", match[1]))
    return found


def test_each_option_of_slurm_is_known(lab: Lab) -> None:
    for program, launcher in (("sbatch", SBATCH), ("srun", SRUN)):
        found = names(lab, program)
        assert len(found) > 90
        assert sorted(name for name in found if name.replace("_", "-") not in launcher.options) == [], program
