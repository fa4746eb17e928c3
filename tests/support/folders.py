"""Where things lie: the project's folder, the package, and the tests' data."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clusterrun"
DATA = ROOT / "tests" / "data"
