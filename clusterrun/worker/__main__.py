"""Run one rank: `python -u /path/to/worker/__main__.py task|script|module|command …`.

The worker is started by path, so its folder stands first on sys.path and `train.py` here would shadow the user's.
This file therefore drops that entry and loads the folder as a package under a private name.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "_clusterrun_worker"


def main() -> int:
    """Load the worker under its private name and run it; returns the exit status."""
    folder = Path(__file__).resolve().parent
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder (or, under -m, the current one): the modes put the right entry there
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    entry = importlib.import_module(f"{PACKAGE}.entry")
    return entry.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
