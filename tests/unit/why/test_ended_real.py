"""Ends of real scripts that were missed or misjudged: each named, with the step, the line or the rank that tells."""

# ruff: noqa: E501 (lines of logs stay in one piece)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.cli.why import _state_text
from clusterrun.records.store import Store
from clusterrun.why import ended
from clusterrun.why.causes import Cause, EndFacts, Failure, Line, first_cause
from tests.support.ended_runs import Slurm, over, ranks_on, write_logs
from tests.support.run_records import attempt, end, submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "logs").mkdir()
    return Store(tmp_path, tmp_path / "state")


def judge(err: str, out: str = "", **facts: object) -> Cause:
    logs = [
        [Line(f"a.{end}", n, None, line) for n, line in enumerate(text.splitlines(), 1)]
        for end, text in (("err", err), ("out", out))
    ]
    return first_cause(logs, EndFacts(**facts))  # type: ignore[arg-type]


FAILED = {"state": "FAILED", "exit_status": 1}

# -- a loss that became NaN --------------------------------------------------------------------------------------------

FIGURES = [
    ("step {n} loss {v}", "step 30"),
    ("iter {n}: loss {v}, time 130.12ms, mfu 30.1%", "iteration 30"),
    ("[2026-01-01 10:00:00] iteration {n}/ 1000 | lm loss: {v} | loss scale: 1.0 |", "iteration 30"),
    ("{{'loss': {v}, 'grad_norm': 1.0, 'step': {n}}}", "step 30"),
    ('{{"step": {n}, "loss": "{v}"}}', "step 30"),
    ("Train Epoch: {n} [0/5000 (0%)]\tLoss: {v}", "epoch 30"),
    ("  3%|3         | {n}/1000 [00:10<01:00, 1.2it/s, loss={v}]", "step 30"),
    ("global_step={n} train/loss={v}", "step 30"),
    ("step {n}: loss tensor({v}, device='cuda:0', grad_fn=<NllLossBackward0>)", "step 30"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "where"), FIGURES, ids=[where + " " + form[:12] for form, where in FIGURES])
def test_loss_that_became_nan_is_named_with_the_step_where_it_began(form: str, where: str) -> None:
    values = ["2.3", "2.1", "nan", "nan", "nan"]
    cause = judge("", "\n".join(form.format(n=10 * n, v=value) for n, value in enumerate(values, 1)))
    assert cause.kind == "nan-loss" and f"NaN at {where} " in cause.sentence
    assert cause.evidence[0].number == 3


HEALTHY = [
    "step 1 loss nan\nstep 2 loss nan\nstep 3 loss nan\nstep 4 loss 2.0",  # steps that were left out
    "step 1 loss 2.0\nstep 2 loss nan\nstep 3 loss nan",  # too few to say that it stayed so
    "step 1 loss 2 val_loss nan\nstep 2 loss 2 val_loss nan\nstep 3 loss 2 val_loss nan",
    "validation loss: nan\nvalidation loss: nan\nvalidation loss: nan",
    "step 1 loss 2 grad_norm: nan\nstep 2 loss 1.9 grad_norm: nan\nstep 3 loss 1.8 grad_norm: nan",
    "the loss is nan where a row is empty\nthe loss is nan where a row is empty\nthe loss is nan where a row is empty",
    "best loss: inf\nbest loss: inf\nbest loss: inf",
]


@pytest.mark.parametrize("text", HEALTHY)
def test_log_that_only_mentions_nan_is_healthy(text: str) -> None:
    assert judge("", text).kind == "none"


NAN = "step 10 loss 2\nstep 20 loss nan\nstep 30 loss nan\nstep 40 loss nan"


def test_nan_is_told_beside_the_time_limit_and_beside_success() -> None:
    limit = judge("", NAN, state="TIMEOUT")
    assert limit.kind == "time-limit" and "before that, the loss became NaN at step 20" in limit.sentence
    done = judge("", NAN, state="COMPLETED", exit_status=0)
    assert done.kind == "nan-loss" and "COMPLETED, but" in done.sentence


def test_exception_that_complains_of_nan_is_explained_by_the_loss_and_others_are_not() -> None:
    raised = 'Traceback (most recent call last):\n  File "/u/t.py", line 4, in f\n{}\n'
    assert (
        judge(raised.format("RuntimeError: probability tensor contains either `inf`, `nan`"), NAN, **FAILED).kind
        == "nan-loss"
    )
    assert judge(raised.format("KeyError: 'x'"), NAN, **FAILED).kind == "exception"


def test_step_of_the_nan_is_read_from_the_figures_of_the_run(store: Store) -> None:
    run = submitted(store)
    attempt(run, start=ranks_on("n1"), end=end(1))
    write_logs(run, "")
    rows = [{"step": step, "loss": 2.0 if step < 30 else "nan"} for step in range(10, 70, 10)]
    (run.run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cause = ended.explain(Slurm(), over(run))
    assert cause.kind == "nan-loss" and "at step 30" in cause.sentence
    assert cause.evidence[0].file.endswith("metrics.jsonl") and cause.evidence[0].number == 3


# -- exceptions --------------------------------------------------------------------------------------------------------


def test_exception_at_the_end_of_a_log_is_named_without_a_traceback_and_without_a_state() -> None:
    assert judge("loading\nValueError: no such split: train\n").sentence == "ValueError: no such split: train"


def test_exception_that_is_not_at_the_end_or_beside_a_good_end_is_not_blamed() -> None:
    error = "ValueError: no such split: train\n"
    assert judge(error + "step 1 loss 2\nstep 2 loss 2\n").kind == "none"
    assert judge(error, "step 9 loss 2\nTraining finished\n").kind == "none"


def test_bare_assertion_has_its_source_line() -> None:
    text = 'Traceback (most recent call last):\n  File "/u/t.py", line 4, in f\n    assert n > 0\n           ^^^^^\nAssertionError\n'
    cause = judge(text, **FAILED)
    assert (cause.sentence, cause.place) == ("AssertionError: assert n > 0", "/u/t.py:4")


def test_traceback_whose_beginning_is_cut_off_has_its_place() -> None:
    text = '  File "/u/t.py", line 4, in f\n    assert n > 0\nAssertionError\n'
    cause = judge(text)
    assert (cause.sentence, cause.place) == ("AssertionError: assert n > 0", "/u/t.py:4")


@pytest.mark.parametrize(
    "prefix",
    ["2026-01-01T10:00:0{n}.1Z ", "(Worker pid=4{n}, ip=10.0.0.1) ", "[kubeflow][worker-2] ", "[1,2]<stderr>:"],
)
def test_traceback_behind_a_label_has_its_place(prefix: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "/u/t.py", line 4, in f', "    g()", "KeyError: 'x'"]
    cause = judge("\n".join(prefix.format(n=n) + line for n, line in enumerate(lines)), **FAILED)
    assert (cause.sentence, cause.place) == ("KeyError: 'x'", "/u/t.py:4")


def test_traceback_in_a_box_has_its_place() -> None:
    text = "╭──── Traceback (most recent call last) ────╮\n│ /u/run.py:41 in main      │\n│ ❱ 41     assert n > 0     │\n╰───────╯\nAssertionError\n"
    cause = judge(text, **FAILED)
    assert (cause.sentence, cause.place) == ("AssertionError: assert n > 0", "/u/run.py:41")


def test_exception_says_what_it_was_raised_from() -> None:
    one = 'Traceback (most recent call last):\n  File "/u/t.py", line {}, in f\n    g()\n{}\n'
    middle = "\nThe above exception was the direct cause of the following exception:\n\n"
    cause = judge(
        one.format(4, "JSONDecodeError: bad row") + middle + one.format(9, "DatasetError: cannot be read"), **FAILED
    )
    assert (
        cause.sentence == "DatasetError: cannot be read; from JSONDecodeError: bad row" and cause.place == "/u/t.py:9"
    )


def test_message_that_begins_on_the_next_line_is_told() -> None:
    text = 'Traceback (most recent call last):\n  File "/u/t.py", line 4, in f\nRuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a".\n'
    assert "Missing key(s)" in judge(text, **FAILED).sentence


def test_what_stands_after_an_exception_is_not_its_message() -> None:
    text = "Traceback (most recent call last):\n  File \"/u/t.py\", line 4, in f\nValueError: odd size\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal memory access was encountered\nAborted (core dumped)\n"
    assert judge(text, **FAILED).sentence == "ValueError: odd size"


LIBRARY = """0: Traceback (most recent call last):
0:   File "/e/lib/python3.11/site-packages/lm_eval/__main__.py", line 3, in <module>
0:     main()
0:   File "/e/lib/python3.11/site-packages/lm_eval/models/hf.py", line 88, in forward
0:     return self.model(x)
0:   File "/e/lib/python3.11/site-packages/torch/nn/functional.py", line 2200, in embedding
0:     return torch.embedding(weight, input)
0: IndexError: index out of range in self
"""


def test_failure_inside_a_module_of_a_library_names_the_module_and_its_own_frame(store: Store) -> None:
    run = submitted(store, what="lm_eval --tasks x")
    (run.run_dir / "spec.json").write_text(json.dumps({"work": {"kind": "module", "name": "lm_eval"}}))
    torch = "/e/lib/python3.11/site-packages/torch/nn/functional.py"
    failure = {
        "rank": 0,
        "node": "n1",
        "status": 1,
        "error": "IndexError: index out of range in self",
        "file": torch,
        "line": 2200,
    }
    attempt(run, start=ranks_on("n1"), end=end(1), first_failure=failure)
    write_logs(run, LIBRARY)
    cause = ended.explain(Slurm(), over(run))
    assert cause.sentence == "IndexError: index out of range in self, in module lm_eval (-m)"
    assert cause.place == "/e/lib/python3.11/site-packages/lm_eval/models/hf.py:88"


# -- exit statuses -----------------------------------------------------------------------------------------------------


def test_status_is_that_of_the_rank_that_failed_first_not_the_highest(store: Store) -> None:
    run = submitted(store)
    attempt(
        run,
        start=ranks_on("n1", "n2"),
        end=end(143),
        first_failure={"rank": 1, "node": "n2", "status": 1, "error": "x.sh exited with 1", "kind": "command-exited"},
    )
    write_logs(run, "")
    state = over(run, status=143)
    answer = ended.explain(Slurm(), state)
    assert answer.json()["exit_status"] == 1
    assert _state_text(state, answer.status).startswith("FAILED, exit status 1 (")
    assert (
        "explains exit status 1;"
        in judge(
            "hm",
            failure=Failure(rank=1, status=1, error="RuntimeError: Connection reset by peer", kind="collective-error"),
            state="FAILED",
            exit_status=143,
        ).sentence
    )


@pytest.mark.parametrize("line", ["bash: ./run.sh: No such file or directory", "/spool/slurm_script: line 8: /e/bin/python: No such file or directory",
                                  "bash: torchrun: command not found", "x.sh: line 3: ./a: /e/bin/python: bad interpreter: No such file or directory"])  # fmt: skip
def test_command_that_a_shell_did_not_find_is_named_not_its_status(line: str) -> None:
    failure = Failure(rank=0, status=127, error="bash exited with 127", kind="command-exited")
    cause = judge(line, failure=failure, state="FAILED", exit_status=127)
    assert cause.kind == "command-missing" and cause.evidence[0].text == line


def test_line_of_a_shell_that_went_on_is_not_blamed() -> None:
    assert judge("bash: ./run.sh: No such file or directory", "step 1 loss 2\n").kind == "none"
