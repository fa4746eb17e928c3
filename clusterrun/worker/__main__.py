"""Run one rank: `python -u /path/to/worker/__main__.py task|script|module|command …`, or `launch …` a node's ranks.

`supervise …` is the batch script's last command. `plan-facts …` counts a task's data and parameters for
`clusterrun plan`, and `check-settings …` checks a task before its job is queued.

The worker is started by path, so Python puts this folder first on sys.path, where `train.py` would shadow the user's.
This file removes that entry and loads the folder as a package under a private name.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "_clusterrun_worker"
OTHER_MODULES = {
    "launch": "launchers",
    "supervise": "supervisor",
    "plan-facts": "plan_facts",
    "check-settings": "check_settings",
}  # what is no rank


def main() -> int:
    """Load the worker under its private name, run it, and return its exit status."""
    folder = Path(__file__).resolve().parent
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder (under -m the current one); user_code.py inserts the right entry
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    module = OTHER_MODULES.get("".join(sys.argv[1:2]))
    if module:
        finished: int = importlib.import_module(f"{PACKAGE}.{module}").main(sys.argv[2:])
        return finished
    status: int = importlib.import_module(f"{PACKAGE}.entry").main(sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
