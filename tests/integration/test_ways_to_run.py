"""Scripts, modules, commands and tasks: what each sees, and how its end is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.worker.entry import GPU_DEVICES
from tests.support.patience import HUNG


def test_a_script_sees_python_as_if_alone(step: Callable) -> None:
    done = step(1, 2, "script", "--", "worker/neighbours.py", "--steps", "3")
    expected = [
        "the user's train __main__ neighbours.py ['worker/neighbours.py', '--steps', '3'] True",
        "pickle True []",
        f"children {{{signal.SIGTERM.value}}}",
        "default 36000",
        "explicit 77",
    ]
    assert done.lines(0)[-5:] == expected and done.lines(1) == expected
    assert done.status == 1 and "that was all" in done.err  # sys.exit("text") is status 1
    assert done.json("first_failure.json")["error"] == "exited: that was all"


def test_a_module_is_found_from_the_current_folder(step: Callable) -> None:
    done = step(1, 2, "module", "--", "allreduce", "--lr", "1")
    assert done.status == 0, done.err
    assert done.lines(1) == ["rank 1 of 2: sum 3 args ['--lr', '1']"]


def test_a_command_gets_the_variables_and_keeps_its_status(step: Callable) -> None:
    script = (
        'echo $RANK/$WORLD_SIZE $LOCAL_RANK $TORCHELASTIC_USE_AGENT_STORE; [ "$RANK" = 0 ] || exec sleep 60; exit 9'
    )
    done = step(1, 2, "command", "--", "sh", "-c", script)
    assert done.status == 9 and done.json("first_failure.json")["error"] == "sh exited with 9"
    assert done.lines(0)[-1] == "0/2 0 True"


@pytest.mark.skipif(any(map(os.path.exists, GPU_DEVICES)), reason="GPUs are counted by all of torch")  # CI has none
def test_a_rank_of_a_command_loads_only_the_stores_of_torch(step: Callable) -> None:
    done = step(1, 2, "command", "--", "true", environ={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.status == 0 and "_clusterrun.worker.rank.joining" in done.err
    assert "torch.nn" not in done.err and "numpy._core" not in done.err


@pytest.mark.skipif(any(map(os.path.exists, GPU_DEVICES)), reason="GPUs are counted by all of torch")  # CI has none
def test_a_single_rank_of_a_command_loads_nothing_of_torch(step: Callable) -> None:
    done = step(1, 1, "command", "--", "true", environ={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.status == 0 and "_clusterrun.worker.rank.joining" in done.err
    assert "torch" not in done.err


def test_a_single_rank_may_open_a_process_group_on_the_runs_store(step: Callable) -> None:
    done = step(1, 1, "script", "--", "allreduce.py")
    assert done.status == 0, done.err
    assert done.lines(0)[-1] == "rank 0 of 1: sum 1 args []"


def test_a_torch_that_cannot_be_loaded_in_parts_is_imported_whole(step: Callable, tmp_path: Path) -> None:
    package = tmp_path / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"import sys\nsys.path.remove({str(package.parent)!r})\ndel sys.modules['torch']\nimport torch\n"
    )
    environ = {"PYTHONPATH": str(package.parent)}
    done = step(1, 2, "command", "--", "sh", "-c", "echo $RANK ${CLUSTERRUN_WHOLE_TORCH-unset}", environ=environ)
    assert done.status == 0, done.err
    assert done.lines(0)[-1] == "0 unset" and done.lines(1) == ["1 unset"]


def test_signals_reach_a_command(step: Callable) -> None:
    def stop(process: subprocess.Popen[str], helper: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        while "ready" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGUSR1)

    script = "trap 'echo got USR1; kill -KILL $$' USR1; echo ready; while :; do sleep 0.05; done"
    done = step(1, 1, "command", "--", "sh", "-c", script, during=stop)
    assert done.lines(0)[-1] == "got USR1"
    assert done.status == 137 and done.statuses() == {0: 137}


def test_what_cannot_run_fails_before_the_start_up(step: Callable) -> None:
    done = step(1, 2, "script", "--", "no_such.py")
    assert done.status == 2 and "no such script: no_such.py" in done.err and "Traceback" not in done.err


def test_one_process_needs_no_store(step: Callable) -> None:
    environ = {"MASTER_ADDR": "", "MASTER_PORT": ""}
    done = step(1, 1, "script", "--", "allreduce.py", environ=environ)
    assert done.status == 0, done.err
    assert done.lines(0)[0] == "Distributed environment: NO" and done.lines(0)[-1] == "rank 0 of 1: sum 1 args []"


def test_it_runs_as_a_module_too(worker_root: Path) -> None:
    command = [sys.executable, "-m", "clusterrun.worker", "task", "lm", "stepz=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG, cwd=worker_root)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "did you mean 'steps'" in done.stderr


def test_the_default_job_learns(step: Callable, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 400)
    arguments = ["vocab=320", "seq_len=32", "lr=1e-2", "steps=12", "eval_every=4", "warmup=2", f"data={text}"]
    done = step(1, 2, "task", "lm", *arguments)
    assert done.status == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "val_loss" in r] == [0, 4, 8, 12]
    assert rows[-1]["val_loss"] < rows[0]["val_loss"] - 1, rows
    assert any(line.startswith("step 12/12  loss ") for line in done.lines(0))
    assert any(line.startswith("validation loss ") for line in done.lines(0))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (tmp_path / "model").iterdir()}
