"""Run one rank: `python -u /path/to/worker/__main__.py task|script|module|command …`, or `launch …` a node's ranks.

`supervise …` is the batch script's last command. `plan-facts …` counts a task's data and parameters for
`clusterrun plan`, and `check-settings …` checks a task before its job is queued.

The worker is started by path, so Python puts this folder first on sys.path, where `tasks` would shadow the user's.
This file removes that entry, and makes a package with a private name of the folder above, so that the worker finds
`base` and `run_folder` there, and `import clusterrun` is still the user's own. No other room is imported in a job.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = "_clusterrun"
OTHER_MODULES = {
    "launch": "rank.launchers",
    "supervise": "job.supervisor",
    "plan-facts": "tasks.plan_facts",
    "check-settings": "tasks.check_settings",
}  # what is no rank


def main() -> int:
    """Load the worker under its private name, run it, and return its exit status."""
    folder = Path(__file__).resolve().parent
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder (under -m the current one); user_code.py inserts the right entry
    package = ModuleType(PACKAGE)
    package.__path__ = [str(folder.parent)]
    sys.modules[PACKAGE] = package
    other = OTHER_MODULES.get("".join(sys.argv[1:2]))
    module = importlib.import_module(f"{PACKAGE}.{folder.name}.{other or 'entry'}")
    status: int = module.main(sys.argv[2:] if other else sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
