"""Stand-ins for Slurm's commands: programs that answer as a test says, and keep what they were called with."""

from __future__ import annotations

from pathlib import Path

# Answers `scontrol show` with the file `show`, and each other command with its file: its text, and status 1 if it has
# any. `scontrol requeue` is answered once only, then accepted.
FAKE = """#!/bin/sh
here=${0%/*}; name=${0##*/}
[ -e "$here/away" ] && { echo "scontrol: error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }
[ "$name $1" = "scontrol show" ] && exec cat "$here/show"
echo "$name $*" >>"$here/calls"
[ "$name" = sbatch ] && { [ -s "$here/sbatch.no" ] && { cat "$here/sbatch.no" >&2; exit 1; }; echo 77; exit 0; }
if [ "$1" = requeue ] && [ -s "$here/refusals" ]; then
    head -n 1 "$here/refusals" >&2; sed -i 1d "$here/refusals"; exit 1
fi
"""


class Slurm:
    """The stand-ins' folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("scontrol", "sbatch", "scancel"):
            (folder / name).write_text(FAKE)
            (folder / name).chmod(0o755)
        self.show()

    def show(self, **fields: str) -> None:
        known = {"JobId": "5", "JobState": "RUNNING", "Reason": "None", "Restarts": "0", "PreemptTime": "None",
                 "Partition": "gpu", "Account": "(null)", "ExcNodeList": "(null)"} | fields  # fmt: skip
        (self.folder / "show").write_text(" ".join(f"{key}={value}" for key, value in known.items()) + "\n")

    def refuse(self, *answers: str) -> None:
        (self.folder / "refusals").write_text("".join(f"{answer}\n" for answer in answers))

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []
