"""When a training compiles, what it does if it cannot, and that compiled code sees one shape."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.base.settings import Lm
from clusterrun.worker.data.texts import Chunks
from clusterrun.worker.models.token_loss import TokenLoss
from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.progress import here
from clusterrun.worker.training import compiling
from clusterrun.worker.training.loop import train
from clusterrun.worker.training.work import Work
from tests.worker.small_models import make_model
from tests.worker.small_training import run_env

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def make_work(samples: int = 13) -> Work:
    model = make_model()
    loss = TokenLoss(model)
    tokens = torch.randint(0, 300, (samples * 8 + 1,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    rows = Chunks(tokens, 8)
    return Work(model, rows, rows, loss, prepare=loss.prepare, one_shape=True, fingerprint="tokens")


def go(folder: Path, work: Work, **settings: Any) -> torch.Tensor:
    """Train two epochs of 13 samples in batches of 4; return the weights of the head."""
    config = Lm(steps=8, micro_batch_size=4, eval_every=0, log_every=1, **settings)
    assert train(work, config, distenv.resolve({}), run_env(folder), CPU)
    return next(work.model.parameters()).detach().clone()


def test_auto_compiles_on_a_gpu_where_batches_have_one_shape_and_bits_may_differ() -> None:
    fixed, varying = make_work(), Work(make_model(), None, None, None)  # type: ignore[arg-type]
    asked: list[tuple[dict[str, Any], Work, torch.device, bool]] = [
        ({}, fixed, GPU, True),
        ({}, fixed, CPU, False),
        ({}, varying, GPU, False),
        ({"deterministic": True}, fixed, GPU, False),
        ({"compile": "false"}, fixed, GPU, False),
        ({"compile": "true"}, varying, CPU, True),
    ]
    for settings, work, device, wanted in asked:
        assert compiling.is_wanted(Lm(**settings), work, device) is wanted


@pytest.mark.usefixtures("signals_as_before")
def test_compiled_code_sees_one_shape_and_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    phases: list[str] = []
    shapes: set[torch.Size] = set()

    def compile_in_place(module: Any, dynamic: bool | None) -> None:
        assert dynamic is False

        def call(tensors: Any) -> torch.Tensor:
            shapes.add(tensors["input_ids"].shape)
            phases.append(here.entered[0])
            return module._call_impl(tensors)

        module._compiled_call_impl = call

    wanted = go(tmp_path / "plain", make_work())
    monkeypatch.setattr(torch.nn.Module, "compile", compile_in_place)
    found = go(tmp_path / "compiled", make_work(), compile="true")
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert shapes == {(4, 8)}
    assert (phases[0], set(phases[1:])) == ("compiling", {"training"})
    assert re.search(r"^compiled in \d+ s$", capsys.readouterr().out, re.M)


@pytest.mark.usefixtures("signals_as_before")
def test_if_the_compiler_fails_one_line_says_so_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(module: Any, **settings: Any) -> None:
        def call(tensors: Any) -> torch.Tensor:
            raise RuntimeError("backend='inductor' raised:\nInvalidCxxCompiler: No working C++ compiler found")

        module._compiled_call_impl = call

    wanted = go(tmp_path / "plain", make_work())
    capsys.readouterr()
    monkeypatch.setattr(torch.nn.Module, "compile", broken)
    assert torch.equal(go(tmp_path / "broken", make_work(), compile="true"), wanted)
    lines = [line for line in capsys.readouterr().out.splitlines() if "compile" in line and "lm:" not in line]
    assert lines == [
        "cannot compile the model (RuntimeError: InvalidCxxCompiler: No working C++ compiler found):"
        " training goes on without that"
    ]
