"""What `model=` may name, and the model that comes of it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, GPT2Config

from clusterrun.base.errors import WorkerError
from clusterrun.worker import hub
from clusterrun.worker.models import presets
from clusterrun.worker.models.load import Source, build, positions, refuse_own_code, resolve, tokenizer
from tests.worker.small_models import fingerprint, make_config, make_model, make_tokenizer

TINY = Source("preset", "tiny")


def make(source: Source = TINY, **changes: Any) -> Any:
    wanted: dict[str, Any] = {"head": "causal", "vocab_size": 300, "seq_len": 16, "pad_id": 0, "seed": 1}
    return build(source, **{**wanted, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model with its tokenizer."""
    path = tmp_path_factory.mktemp("pretrained")
    make_model(seed=7).save_pretrained(path)
    make_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copied"))


# --- resolve -----------------------------------------------------------------------------------------------------


def test_each_kind_of_model_is_told_by_its_name(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    assert resolve("tiny") == TINY
    assert resolve(str(folder)) == Source("folder", str(folder))
    assert resolve(str(file)) == resolve(f"gguf:{file}") == Source("gguf", str(file))
    assert resolve("org/name") == resolve("hf:org/name") == Source("hub", "org/name")
    assert resolve("hf:gpt2") == Source("hub", "gpt2")


def test_a_local_folder_comes_before_a_hub_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").kind == "folder"


def test_a_gguf_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "carries_one"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "m.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("gguf:carries-one") == Source("gguf", str(package / "m.gguf"))
    assert "carries_one" not in sys.modules
    (package / "n.gguf").touch()
    with pytest.raises(WorkerError, match=r"several .gguf files: set model to one of .*m.gguf, .*n.gguf"):
        resolve("gguf:carries_one")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("smolm2-135m", "did you mean 'smollm2-135m'.*use a preset .tiny, smollm2-135m.*hf:NAME"),
        ("SmolLM2-360M", "did you mean 'smollm2-360m'"),
        ("", "unknown model ''.*use a preset"),
        ("./nowhere", "no such folder"),
        ("nowhere.gguf", "no such GGUF file"),
        ("gguf:no_such_package_here", "neither a file nor an installed package"),
        ("gguf:json", "the package has no .gguf file"),
        ("gguf:os.path", "neither a file nor an installed package"),
    ],
)
def test_what_cannot_be_a_model_is_refused_with_a_hint(model: str, says: str) -> None:
    with pytest.raises(WorkerError, match=says) as refused:
        resolve(model)
    assert refused.value.status == 2


def test_a_folder_without_a_configuration_and_a_plain_file_say_so(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"no config\.json"):
        resolve(str(tmp_path))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(WorkerError, match=r"is a file, but not a \.gguf file: give a folder"):
        resolve(str(tmp_path / "notes.txt"))


@given(st.one_of(st.text(), st.text(min_size=300), st.text().map("gguf:".__add__), st.text().map("~".__add__)))
def test_whatever_is_typed_gives_a_source_or_one_line(model: str) -> None:
    try:
        source = resolve(model)
    except WorkerError as error:
        assert error.status == 2 and "\n" not in str(error)
    else:
        assert source.kind in ("preset", "folder", "hub", "gguf")


# --- tokenizer ---------------------------------------------------------------------------------------------------


def test_the_tokenizer_is_the_models_own_or_none(folder: Path, copied: Path) -> None:
    own = tokenizer(Source("folder", str(folder)))
    assert own is not None and own("the dog")["input_ids"] == make_tokenizer()("the dog")["input_ids"]
    for path in copied.glob("tokenizer*"):
        path.unlink()
    assert tokenizer(Source("folder", str(copied))) is None
    assert tokenizer(TINY) is None


# --- from nothing ------------------------------------------------------------------------------------------------


def test_a_preset_is_built_for_training_on_the_cpu() -> None:
    model = make(eos_id=5, bos_id=4, pad_id=3)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert model.training and not model.config.use_cache
    assert model.config._attn_implementation == "sdpa"
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (4, 5, 3)
    assert model.get_input_embeddings().num_embeddings == 300


def test_the_seed_alone_decides_the_first_weights() -> None:
    first = fingerprint(make(seed=3))
    torch.rand(10)
    assert fingerprint(make(seed=3)) == first != fingerprint(make(seed=4))


def test_a_folder_without_weights_is_trained_from_nothing_and_takes_a_larger_vocabulary(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    source = Source("folder", str(copied))
    assert fingerprint(make(source, seed=7)) == fingerprint(make(source, seed=7)) != fingerprint(make(source))
    assert make(source, vocab_size=200).config.vocab_size == 300
    assert make(source, vocab_size=400).config.vocab_size == 400


def test_a_folders_own_dropout_stays_and_its_dtype_does_not(tmp_path: Path) -> None:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 300, "n_positions": 64}
    GPT2Config(**shape, attn_pdrop=0.3, dtype="bfloat16").save_pretrained(tmp_path)
    model = make(Source("folder", str(tmp_path)))
    assert model.config.attn_pdrop == 0.3
    assert model.dtype == torch.float32


@pytest.mark.parametrize("name", ["tiny", "gpt2-124m"])
def test_a_sequence_longer_than_the_positions_is_refused(name: str) -> None:
    with pytest.raises(WorkerError, match=rf"seq_len=4096 .* (2048|1024) positions of {name}") as refused:
        make(Source("preset", name), seq_len=4096)
    assert refused.value.status == 2


# --- pretrained --------------------------------------------------------------------------------------------------


def test_pretrained_weights_arrive_unchanged_and_ready_to_train(folder: Path) -> None:
    model = make(Source("folder", str(folder)))
    assert fingerprint(model) == fingerprint(make_model(seed=7))
    assert model.training and not model.config.use_cache and model.dtype == torch.float32


def test_more_tokens_than_embeddings_add_rows_and_fewer_take_none(folder: Path) -> None:
    source = Source("folder", str(folder))
    before = make_model(seed=7).get_input_embeddings().weight
    larger = make(source, vocab_size=310)
    assert larger.config.vocab_size == 310 and larger.lm_head.weight is larger.get_input_embeddings().weight
    assert torch.equal(larger.get_input_embeddings().weight[:300], before)
    assert fingerprint(larger) == fingerprint(make(source, vocab_size=310))
    assert make(source, vocab_size=10).get_input_embeddings().num_embeddings == 300


def test_a_language_model_becomes_a_classifier_with_named_labels(folder: Path) -> None:
    source = Source("folder", str(folder))
    names = {0: "bad", 1: "good", 2: "new"}
    model = make(source, head="classify", num_labels=3, id2label=names)
    assert model.config.id2label == names and model.config.label2id["new"] == 2
    assert torch.equal(model.model.embed_tokens.weight, make_model(seed=7).get_input_embeddings().weight)
    assert fingerprint(model) == fingerprint(make(source, head="classify", num_labels=3, id2label=names))
    tokens = torch.tensor([[5, 6, 0], [7, 8, 9]])
    assert model(input_ids=tokens).logits.shape == (2, 3)


def test_a_classifier_takes_another_number_of_labels(tmp_path: Path) -> None:
    make(TINY, head="classify", num_labels=3).save_pretrained(tmp_path)
    model = make(Source("folder", str(tmp_path)), head="classify", num_labels=5)
    assert model.score.out_features == model.config.num_labels == len(model.config.id2label) == 5
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(model.model.embed_tokens.weight, again.model.embed_tokens.weight)


# --- what cannot be loaded ---------------------------------------------------------------------------------------


def refused(source: Source, **changes: Any) -> str:
    with pytest.raises(WorkerError) as caught:
        make(source, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_of_another_shape_name_the_key_and_both_shapes(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    said = refused(Source("folder", str(copied)))
    assert "mlp.down_proj.weight has shape [16, 32] in the weights, but [16, 48] according to config.json" in said


def test_weights_that_are_not_there_are_never_made_up(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    for head in ("causal", "classify"):
        said = refused(Source("folder", str(copied)), head=head, num_labels=2)
        assert "the weights lack model.layers.1." in said and "and 8 more" in said


def test_a_broken_file_is_one_line(copied: Path) -> None:
    with open(copied / "model.safetensors", "r+b") as file:
        file.truncate(100)
    assert f"cannot load {copied}: " in refused(Source("folder", str(copied)))


def test_code_from_a_model_folder_is_never_run(copied: Path, tmp_path: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (copied / "config.json").write_text(json.dumps({**config, **own}))
    (copied / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "needs code of its own (mine.C, named in config.json)" in refused(Source("folder", str(copied)))
    assert not (tmp_path / "ran").exists()


CODE = {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}
TOKENIZER = {"AutoTokenizer": ["mine.T", None]}


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "said"),
    [
        ({"auto_map": CODE}, {}, None),  # transformers has a class for its model type
        ({"auto_map": CODE, "model_type": "mine"}, {}, "needs code of its own (mine.C, named in config.json)"),
        ({"auto_map": CODE, "model_type": None}, {}, "needs code of its own (mine.C, named in config.json)"),
        ({"model_type": "mine"}, {}, "is of type 'mine', which the installed transformers package does not know"),
        ({}, {"auto_map": TOKENIZER, "tokenizer_class": "T"}, "(mine.T, named in tokenizer_config.json)"),
        ({}, {"auto_map": TOKENIZER, "tokenizer_class": None}, "(mine.T, named in tokenizer_config.json)"),
        ({}, {"auto_map": TOKENIZER, "tokenizer_class": "LlamaTokenizerFast"}, None),
        ({}, {"auto_map": TOKENIZER, "tokenizer_class": "PreTrainedTokenizerFast"}, None),
        ({}, {"tokenizer_class": "T"}, None),
        ({"model_type": "phi3"}, {"auto_map": TOKENIZER, "tokenizer_class": "T"}, None),
    ],
)
def test_the_files_of_a_folder_tell_what_transformers_will_refuse(
    copied: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], tokenizer_config: dict[str, Any], said: str
) -> None:
    for name, changes in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        known = {**json.loads((copied / name).read_text()), **changes}
        (copied / name).write_text(json.dumps({key: value for key, value in known.items() if value is not None}))
    source = Source("folder", str(copied))
    if said:
        with pytest.raises(WorkerError) as caught:
            refuse_own_code(source)
        assert said in str(caught.value)
    else:
        refuse_own_code(source)
    monkeypatch.setattr("clusterrun.worker.models.folder.refuse_own_code", lambda folder: None)
    loads = [lambda: tokenizer(source), lambda: transformers.AutoConfig.from_pretrained(copied)]
    assert any(map(fails, loads)) == bool(said), "what transformers itself does"


def fails(load: Callable[[], object]) -> bool:
    try:
        load()
    except (WorkerError, ValueError):
        return True
    return False


def test_without_transformers_no_folder_is_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied / "config.json").write_text('{"auto_map": {"AutoConfig": "mine.C"}, "max_position_embeddings": 32}')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuse_own_code(Source("folder", str(copied)))
    assert positions(Source("folder", str(copied))) == 32


@pytest.mark.parametrize("document", ["{", "[]", '{"max_position_embeddings": "many"}', '{"model_type": ["x"]}', "\0"])
def test_a_configuration_that_is_none_has_no_positions(copied: Path, document: str) -> None:
    (copied / "config.json").write_text(document)
    assert positions(Source("folder", str(copied))) is None


def test_the_positions_are_those_of_the_configuration(tmp_path: Path) -> None:
    for config, expected in ((make_config(max_position_embeddings=48), 48), (GPT2Config(n_positions=40), 40)):
        config.save_pretrained(tmp_path)
        assert positions(Source("folder", str(tmp_path))) == expected
    for name in presets.PRESETS:
        assert positions(Source("preset", name)) == presets.config(name, None).max_position_embeddings


def test_a_hub_name_without_network_is_one_line_with_what_works_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "answers", lambda: False)
    said = refused(Source("hub", "org/name"))
    assert said.startswith("cannot get org/name from the Hugging Face Hub") and "tiny, smollm2-135m" in said
    with pytest.raises(WorkerError, match="cannot get the tokenizer of org/name"):
        tokenizer(Source("hub", "org/name"))
