"""A store of ended runs, each with the files that a real run leaves, for `benchmarks.list`.

One real job is run; the others are copies of its folder with their own ids, tokens, names and times.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

SCRIPT = "import os\nprint('step 1 loss 3.0', os.environ['RANK'], flush=True)\n"
NAMES = [f"train{number}" for number in range(40)]  # each name is many runs'
ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
APART = 300  # seconds between two runs
WITH_CHECKPOINTS = 50  # one run of so many
FIGURES = {"step": 199, "loss": 3.0, "tokens_per_second": 1e5}


class Model(NamedTuple):
    """A real run's files by their paths in its folder, its log, its token and its run id."""

    files: Mapping[str, bytes]
    log: bytes
    token: str
    run_id: str


class Place(NamedTuple):
    """Where runs go: the folder with their ``.clusterrun`` and logs, and the user's index, None for a stranger's."""

    base: Path
    users_index: Path | None


def load_model(folder: Path, env: Mapping[str, str]) -> Model:
    """Run a job on this machine in ``folder`` and return what it left."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "clusterrun", "submit", "--scheduler", "local", "--gpus-per-node", "0",
            "--tasks-per-node", "2", "--wait", "--", "train.py"]  # fmt: skip
    local = {**env, "CLUSTERRUN_STATE": str(folder / "state")}
    subprocess.run(argv, env=local, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (run,) = (folder / ".clusterrun" / "runs").iterdir()
    (submission,) = (run / "submissions").glob("*.json")
    files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    log = (folder / "logs" / "train_L1.out").read_bytes()
    shutil.rmtree(folder)
    return Model(files, log, submission.stem, run.name)


def job_id_of(number: int) -> str:
    """Return the id of the job of a run."""
    return str(100_000 + number)


def add_runs(model: Model, place: Place, cluster: str, numbers: range, first_at: int, owner: int | None = None) -> None:
    """Write ended runs, one for each number; ``owner`` is the uid of a stranger."""
    for folder in ("runs", "jobs", f"jobs/{cluster}"):
        (place.base / ".clusterrun" / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    (place.base / "logs").mkdir(mode=0o700, exist_ok=True)
    lines = []
    for number in numbers:
        run = _add_run(model, place.base, cluster, number, first_at + (number - numbers.start) * APART)
        lines.append(json.dumps([cluster, job_id_of(number), str(run)]) + "\n")
        if owner is not None:
            for path in (run, *run.rglob("*")):
                os.chown(path, owner, -1)
    if place.users_index is not None:
        place.users_index.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with place.users_index.open("a") as file:
            file.writelines(lines)


def _add_run(model: Model, base: Path, cluster: str, number: int, at: int) -> Path:
    token = "".join(_letters(number)) + model.token[6:]
    run_id = f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{token[:6]}"
    run, job = base / ".clusterrun" / "runs" / run_id, job_id_of(number)
    for path, original in model.files.items():
        data = original.replace(model.run_id.encode(), run_id.encode()).replace(model.token.encode(), token.encode())
        if path == "record.json" or (path.startswith("submissions/") and path.endswith(".json")):
            data = _changed(data, number, cluster, at)
        target = run / path.replace(model.token, token)
        if not target.parent.is_dir():
            target.parent.mkdir(mode=0o700, parents=True)
        target.write_bytes(data)
        if path.startswith("attempts/"):
            os.utime(target, (at + 900, at + 900))
    if number % WITH_CHECKPOINTS == 0:
        step = run / "checkpoints" / "step-00000100"
        step.mkdir(mode=0o700, parents=True)
        (step / "model.safetensors").write_bytes(bytes(65_536))
        (run / "checkpoints" / "latest").write_text(step.name)
    for suffix in ("out", "err"):
        (base / "logs" / f"train_{job}.{suffix}").write_bytes(model.log if suffix == "out" else b"")
    (base / ".clusterrun" / "jobs" / cluster / job).write_text(f"{run_id}\n")
    return run


def _changed(data: bytes, number: int, cluster: str, at: int) -> bytes:
    """Return a record or a submission with the values of another run, which ended on Slurm."""
    record: dict[str, Any] = json.loads(data)
    record |= {"at": at, "cluster": cluster}
    if "token" not in record:
        record |= {"name": NAMES[number % len(NAMES)], "scheduler": "slurm"}
        record["sources"] = {f"option{one}": [one, "jobs/lm.toml"] for one in range(25)}
        return json.dumps(record, indent=1).encode()
    state, status = (("COMPLETED", 0), ("FAILED", 1), ("CANCELLED", None))[number % 3]
    record |= {"job_id": job_id_of(number), "final": {
        "state": state, "reason": "", "exit_status": status, "ended": at + 900, "nodes": "n[1-2]", "elapsed": 800,
        "restarts": 0, "source": "queue", "started": at + 100, "time_limit": 3600, "figures": FIGURES,
    }}  # fmt: skip
    return json.dumps(record, indent=1).encode()


def _letters(number: int) -> Iterator[str]:
    for _ in range(6):
        number, rest = divmod(number, len(ALPHABET))
        yield ALPHABET[rest]


def month_ago(runs: int) -> int:
    """Return the time of the first of so many runs whose last one ended a month ago."""
    return int(time.time()) - 30 * 86_400 - runs * APART
