"""Stand-ins for Slurm's commands: programs that answer as a test says, and keep what they were called with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clusterrun.worker.node import batch_host

# Answers squeue with the file `show`, or `excluded` if the excluded nodes are requested, and each other command with
# its file: its text, and status 1 if it has any. `scontrol requeue` is answered once only, then accepted.
FAKE = """#!/bin/sh
here=${0%/*}; name=${0##*/}
[ -e "$here/away" ] && { echo "scontrol: error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
case "$name $*" in squeue*=%x) exec cat "$here/excluded";; squeue*) exec cat "$here/show";; esac
echo "$name $*" >>"$here/calls"
[ "$name" = sbatch ] && { [ -s "$here/sbatch.no" ] && { cat "$here/sbatch.no" >&2; exit 1; }; echo 77; exit 0; }
if [ "$1" = requeue ] && [ -s "$here/refusals" ]; then
    head -n 1 "$here/refusals" >&2; sed -i 1d "$here/refusals"; exit 1
fi
"""


def squeue_line(fields: Mapping[str, str]) -> str:
    """Return squeue's answer to `batch_host.show_job`."""
    return "".join(f"{fields.get(name, '')}{batch_host.SEPARATOR}" for name in batch_host.FIELDS) + "\n"


class Slurm:
    """The stand-ins' folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("scontrol", "sbatch", "scancel", "squeue"):
            (folder / name).write_text(FAKE)
            (folder / name).chmod(0o755)
        self.show()

    def show(self, excluded: str = "(null)", **fields: str) -> None:
        known = {"JobState": "RUNNING", "Reason": "None", "Restarts": "0", "EndTime": "N/A", "PreemptTime": "N/A",
                 "Partition": "gpu", "Account": "(null)", "QOS": "normal"} | fields  # fmt: skip
        (self.folder / "show").write_text(squeue_line(known))
        (self.folder / "excluded").write_text(excluded + "\n")

    def refuse(self, *answers: str) -> None:
        (self.folder / "refusals").write_text("".join(f"{answer}\n" for answer in answers))

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []
