"""The script of an array whose tasks are runs: the #SBATCH lines of a run, and one line that starts a run's script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clusterrun.base.job import format_tasks
from clusterrun.jobspec.render import code, directive, sh

_TEXT = """\
#!/bin/bash
# clusterrun: an array of runs. Each task starts the script of its own run, which does the rest.

# Resources per task, copied from a run's script.
{directives}
#SBATCH --array={tasks}

# The run id of each task, by task index.
# shellcheck disable=SC1003,SC1112,SC2016 # the path is in single quotes: data, never expanded
CR_RUNS={runs}
CR_RUN_IDS=(
{run_ids}
)
exec /bin/bash -l "$CR_RUNS/${{CR_RUN_IDS[$SLURM_ARRAY_TASK_ID]}}/script.sh"
"""


def array_script(script: str, runs: Path, run_ids: Mapping[int, str], at_once: int | None = None) -> str:
    """Return the script for runs with the same resources, by their index; ``script`` is that of one of them.

    ``runs`` is the folder of the runs' folders, ``at_once`` the maximum number of tasks that run at the same time.
    """
    tasks = format_tasks(run_ids) + (f"%{at_once}" if at_once else "")
    return _TEXT.format(
        directives="\n".join(sbatch_lines(script)),
        tasks=directive(tasks),
        runs=sh(runs),
        run_ids="\n".join(f"    [{index}]={code(run_id)}" for index, run_id in sorted(run_ids.items())),
    )


def sbatch_lines(script: str) -> list[str]:
    """Return the #SBATCH lines that sbatch reads: those before the first command."""
    directives = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            directives.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return directives
