from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clusterrun.base.errors import WorkerError
from clusterrun.run_folder import ends
from clusterrun.worker import tasks
from clusterrun.worker.entry import parse
from clusterrun.worker.rank import failures
from clusterrun.worker.tasks import lm


def test_the_users_arguments_are_not_touched() -> None:
    request = parse(["script", "--", "train.py", "--help", "--", "-x"])
    assert (request.mode, request.target, request.arguments) == ("script", "train.py", ["--help", "--", "-x"])


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["scrpt"], "unknown mode 'scrpt' (did you mean 'script'?)"),
        ([], "unknown mode ''"),
        (["script", "--"], "script: nothing to run"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(argv: list[str], word: str) -> None:
    with pytest.raises(WorkerError) as caught:
        parse(argv)
    assert word in str(caught.value) and caught.value.status == 2


def test_values_are_json_or_text() -> None:
    config = tasks.configure(lm.Config, ["steps=10", "lr=1e-4", "save_path=2024", 'data=["a.txt", "b.txt"]'])
    assert (config.steps, config.lr, config.save_path, config.data) == (10, 1e-4, "2024", ("a.txt", "b.txt"))
    assert tasks.configure(lm.Config, ["lr=1", "steps=1e2"]).lr == 1.0
    assert tasks.configure(lm.Config, ["sample_prompts=Hello"]).sample_prompts == ("Hello",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stepz=1"], "unknown key 'stepz' (did you mean 'steps'?)"),
        (["steps=ten"], "steps must be a whole number, got 'ten'"),
        (["steps=1.5"], "steps must be a whole number, got '1.5'"),
        (["steps=true"], "steps must be a whole number"),
        (["lr=fast"], "lr must be a number, got 'fast'"),
        (["steps"], "expected KEY=VALUE, got 'steps'"),
        (["compile=yes"], "compile=yes: choose one of auto, true, false"),
        (["drop_last=yes"], "drop_last must be true or false, got 'yes'"),
        (["sample_prompts=[1]"], "sample_prompts must be a string or a list of strings"),
        (["global_batch_size=7"], "cannot be split evenly over 4 ranks: use global_batch_size=4 or 8"),
        (["global_batch_size=3"], "cannot be split evenly over 4 ranks: use global_batch_size=4"),
        (["batch_size=3"], "did you mean 'base_batch_size'"),
        (["vocab=100"], "vocab must be at least 300"),
        (["precision=bf32"], "precision=bf32 (did you mean 'fp32'?): choose one of auto, bf16, fp16, fp32"),
        (["parallel=fsdb"], "parallel=fsdb (did you mean 'fsdp'?): choose one of ddp, fsdp"),
        (["parallel=fsdp", "precision=fp16"], "precision=fp16 needs parallel=ddp: set precision=bf16 instead"),
        (["parallel=fsdp", "auto_micro_batch=true"], "auto_micro_batch needs parallel=ddp: set micro_batch_size"),
        (["lr=0"], "lr must be above 0"),
        (["lr_scaling=linear"], "lr_scaling=linear needs base_batch_size"),
        (["base_batch_size=4"], "base_batch_size needs lr_scaling=linear or sqrt"),
        (["held_out=1"], "held_out must be greater than 0 and less than 1"),
    ],
)
def test_a_wrong_value_is_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(WorkerError) as caught:
        tasks.prepare("lm", words, world_size=4)
    assert said in str(caught.value) and caught.value.status == 2


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(WorkerError, match=r"unknown task 'lmm'.*did you mean 'lm'"):
        tasks.prepare("lmm", [], world_size=1)


def test_only_one_of_many_ranks_claims_the_first_failure(tmp_path: Path) -> None:
    children = []
    for rank in range(8):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if ends.claim_first_failure(tmp_path, rank, "n0", ends.Outcome(1)) else 1)
        children.append(pid)
    lost = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    winner = json.loads((tmp_path / "first_failure.json").read_text())["rank"]
    assert lost.count(0) == 1 and lost.index(0) == winner
    assert [p.name for p in tmp_path.iterdir()] == ["first_failure.json"]


def test_an_error_is_one_line_and_points_at_the_users_file() -> None:
    namespace: dict[str, object] = {}
    exec(compile("def f():\n    import json\n    json.loads('{')\n", "/home/u/train.py", "exec"), namespace)
    try:
        namespace["f"]()  # type: ignore[operator]
    except ValueError as error:
        assert failures.locate(error.__traceback__) == ("/home/u/train.py", 3)
    assert failures.describe_error(ValueError("one\ntwo")) == "ValueError: one"
    assert failures.describe_error(KeyError()) == "KeyError"
