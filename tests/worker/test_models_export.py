"""The finished folder is what `from_pretrained` loads, whole or not there, and never over somebody else's."""

from __future__ import annotations

import copy
import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from clusterrun.base.errors import WorkerError
from clusterrun.worker.models.export import check_target, export
from clusterrun.worker.models.load import Source, build
from tests.worker.small_models import fingerprint, make_model, make_tokenizer


@pytest.fixture
def model() -> Any:
    model = make_model().train()
    model.config.use_cache = model.generation_config.use_cache = False
    return model


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_loads_generates_and_says_whose_it_is(model: Any, tmp_path: Path) -> None:
    written = export(model, make_tokenizer(), tmp_path / "new" / "out", run_id="r1", card={"task": "lm", "steps": 3})
    assert written == tmp_path / "new" / "out" and files(written.parent) == ["out"]
    assert json.loads((written / "clusterrun.json").read_text()) == {
        "run_id": "r1",
        "card": {"task": "lm", "steps": 3},
    }
    again, words = AutoModelForCausalLM.from_pretrained(written), AutoTokenizer.from_pretrained(written)
    assert fingerprint(again) == fingerprint(model)
    tokens = words("the dog", return_tensors="pt")
    assert again.generate(**tokens, max_new_tokens=3, min_new_tokens=3).shape == (1, tokens["input_ids"].shape[1] + 3)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((written / name).read_text())["use_cache"] is True


def test_a_classifier_loads_with_its_labels_and_answers_the_same(tmp_path: Path) -> None:
    wanted = {"num_labels": 2, "id2label": {0: "no", 1: "yes"}, "vocab_size": 300, "seq_len": 16, "pad_id": 0}
    model = build(Source("preset", "tiny"), head="classify", seed=1, **wanted).eval()
    again = AutoModelForSequenceClassification.from_pretrained(
        export(model, make_tokenizer(), tmp_path / "out", run_id="r1", card={})
    )
    assert again.config.id2label == {0: "no", 1: "yes"}
    batch = make_tokenizer()(["the dog", "fox"], padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    assert torch.equal(again(**batch).logits, model(**batch).logits)


def test_the_live_model_is_left_as_it_was(model: Any, tmp_path: Path) -> None:
    before = (copy.deepcopy(model.config.__dict__), model.generation_config.to_dict(), fingerprint(model))
    parameters = [id(p) for p in model.parameters()]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    export(model, None, tmp_path / "out", run_id="r1", card={})
    assert (model.config.__dict__, model.generation_config.to_dict(), fingerprint(model)) == before
    assert [id(p) for p in model.parameters()] == parameters
    assert model.training and model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("tied", [True, False])
def test_the_file_holds_float32_and_tied_weights_once(tied: bool, tmp_path: Path) -> None:
    model = make_model(tie_word_embeddings=tied).to(torch.bfloat16)
    written = export(model, None, tmp_path / "out", run_id="r1", card={})
    stored = load_file(written / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    assert ("lm_head.weight" in stored) is not tied
    assert json.loads((written / "config.json").read_text())["dtype"] == "float32"


class Wrapper(torch.nn.Module):
    """What DDP does to a model's names."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize(
    "wrap",
    [Wrapper, torch.compile, lambda m: torch.compile(Wrapper(m)), lambda m: Wrapper(torch.compile(m))],
    ids=["ddp", "compiled", "compiled ddp", "ddp of compiled"],
)
def test_wrappers_leave_no_trace(wrap: Any, model: Any, tmp_path: Path) -> None:
    written = export(wrap(model), None, tmp_path / "out", run_id="r1", card={})
    assert fingerprint(AutoModelForCausalLM.from_pretrained(written)) == fingerprint(model)


def test_the_same_run_replaces_its_folder_and_another_does_not(model: Any, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(model, make_tokenizer(), target, run_id="r1", card={})
    other = make_model(seed=2)
    with pytest.raises(WorkerError, match="already exists and does not belong to this run") as refused:
        export(other, None, target, run_id="r2", card={})
    assert refused.value.status == 2
    assert fingerprint(AutoModelForCausalLM.from_pretrained(target)) == fingerprint(model)
    export(other, None, target, run_id="r1", card={})
    assert fingerprint(AutoModelForCausalLM.from_pretrained(target)) == fingerprint(other)
    assert files(tmp_path) == ["out"] and "tokenizer.json" not in files(target)


def test_outside_a_run_no_folder_is_ones_own(model: Any, tmp_path: Path) -> None:
    export(model, None, tmp_path / "out", run_id="none", card={})
    with pytest.raises(WorkerError, match="already exists"):
        check_target(tmp_path / "out", "none")


def test_targets_are_checked_before_training(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert check_target(tmp_path / "empty", "r1") == tmp_path / "empty"
    assert check_target(tmp_path / "a" / "b", "r1") == tmp_path / "a" / "b" and files(tmp_path) == ["empty"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkerError, match="is a file"):
        check_target(tmp_path / "file", "r1")
    with pytest.raises(WorkerError, match="cannot write to"):
        check_target(tmp_path / "file" / "out", "r1")
    (tmp_path / "theirs").mkdir()
    for card in ("", "[1]", "null", '{"run_id": 3}', "{"):
        (tmp_path / "theirs" / "clusterrun.json").write_text(card)
        with pytest.raises(WorkerError, match="does not belong to this run"):
            check_target(tmp_path / "theirs", "r1")


def test_what_a_killed_attempt_left_is_cleared_away(model: Any, tmp_path: Path) -> None:
    left = tmp_path / ".out.r1.tmp"
    left.mkdir()
    (left / "half").write_text("x")
    assert "half" not in files(export(model, None, tmp_path / "out", run_id="r1", card={}))
    assert files(tmp_path) == ["out"]


def test_a_full_disk_is_one_line_and_keeps_the_former_model(model: Any, tmp_path: Path) -> None:
    target = export(model, None, tmp_path / "out", run_id="r1", card={})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # no file may grow past this: writing fails half-way
    try:
        with pytest.raises(WorkerError, match="cannot write the model to") as refused:
            export(make_model(seed=2), None, target, run_id="r1", card={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.status == 1
    assert fingerprint(AutoModelForCausalLM.from_pretrained(target)) == fingerprint(model)
    assert files(tmp_path) == ["out"]
