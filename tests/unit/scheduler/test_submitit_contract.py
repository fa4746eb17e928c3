"""The names of submitit that are overridden or relied on, pinned against the installed release."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from submitit.core import core, utils
from submitit.slurm import slurm

from clusterrun.base.job import JobId
from clusterrun.scheduler import Submission
from clusterrun.scheduler.slurm import executor as ours

BASES = {ours.TrainExecutor: slurm.SlurmExecutor, ours.TrainJob: slurm.SlurmJob, ours.TrainPaths: utils.JobPaths}
#: ours alone: not an override
OWN = {"submit_script", "logs"}


def own_names(kind: type) -> list[str]:
    return [name for name, value in vars(kind).items() if not name.startswith("__") and callable_or_property(value)]


def callable_or_property(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def parameters(value: Any) -> list[tuple[str, Any]]:
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]


def in_mro(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in BASES for name in own_names(kind) if name not in OWN],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)  # fmt: skip
def test_each_override_overrides_something(kind: type, name: str) -> None:
    theirs = in_mro(BASES[kind], name)
    assert theirs is not None, f"submitit has no {BASES[kind].__name__}.{name} any more"
    mine = vars(kind)[name]
    assert type(mine) is type(theirs), "a property, a static or class method, or a plain one"
    assert parameters(mine) == parameters(theirs)


def test_what_is_overridden_is_what_the_design_says() -> None:
    assert {
        "_make_submission_file_text", "_make_submission_command", "_get_job_id_from_submission_command",
        "_submit_command", "affinity", "_internal_process_submissions",
    } <= set(own_names(ours.TrainExecutor))  # fmt: skip
    assert {"stdout", "stderr"} <= set(own_names(ours.TrainPaths)) and "paths" in own_names(ours.TrainJob)


def test_what_is_called_is_there() -> None:
    assert [p.name for p in inspect.signature(slurm.SlurmExecutor.__init__).parameters.values()][:2] == [
        "self",
        "folder",
    ]
    assert {"folder", "job_id", "tasks"} <= set(inspect.signature(core.Job.__init__).parameters)
    assert {"folder", "job_id", "task_id"} <= set(inspect.signature(utils.JobPaths.__init__).parameters)
    assert in_mro(slurm.SlurmExecutor, "_num_tasks") and in_mro(slurm.SlurmExecutor, "job_class")
    assert issubclass(ours.TrainExecutor, core.PicklingExecutor)


def test_importing_it_says_nothing_and_sets_up_no_logging() -> None:
    code = (
        "import clusterrun.scheduler.slurm.executor, logging, sys\n"
        "logger = logging.getLogger('submitit')\n"
        "logger.warning('x')\n"
        "handlers = [h for name in (None, 'submitit') for h in logging.getLogger(name).handlers]\n"
        "assert not any(getattr(h, 'stream', None) is sys.stdout for h in handlers)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def submission(tmp_path: Path, **more: Any) -> Submission:
    script = tmp_path / "script.sh"
    script.write_bytes(b"#!/bin/bash\n# \xff\n")
    places = {"run_dir": tmp_path, "workdir": tmp_path, "logs": tmp_path / "logs"}
    return Submission(run_id="r", token="t" * 16, script=script, env={}, **places, **more)


def test_a_submission_goes_through_it_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # there is no srun: a login node need not have it
    sent: list[list[str]] = []

    def send(argv: Any) -> str:
        sent.append(list(argv))
        return "123;lab"

    order = submission(tmp_path, argv=("--switches=1",), nodes=2, tasks_per_node=4, time_limit=3600)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    executor = ours.TrainExecutor(order, send)
    job = executor.submit_script()
    assert sent == [["sbatch", "--parsable", "--switches=1", "--", str(order.script)]]
    assert job.job_id == "123" and JobId.parse(job.job_id)
    assert (
        job.paths.stdout == tmp_path / "logs" / "train_123.out"
        and job.paths.stderr == tmp_path / "logs" / "train_123.err"
    )
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert executor._num_tasks() == 8
    assert executor._make_submission_file_text("x", "y") == "#!/bin/bash\n# \udcff\n"
    assert executor._get_job_id_from_submission_command(b"7") == "7"
