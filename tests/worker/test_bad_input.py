"""What a hostile or clumsy user gives a task: refused in one line before the first step, or taken as it is meant."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from clusterrun.base.errors import WorkerError
from clusterrun.worker import entry, hub, tasks
from clusterrun.worker.models import export
from clusterrun.worker.rank import distenv
from clusterrun.worker.rank.distenv import RunEnv
from clusterrun.worker.training import stopping

TOKEN = "hf_notARealTokenButSecret"


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No network, and the signals that the loop takes are given back."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2)}
    stopping._received.clear()
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def make_model(folder: Path, width: int = 16) -> Path:
    """A folder with the configuration of a model, trained from nothing."""
    shape = {"hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 300}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    LlamaConfig(**shape, **heads).save_pretrained(folder)
    return folder


@pytest.fixture
def lm(tmp_path: Path) -> Callable[..., Path]:
    """Train on a little text for two steps: `lm(run, key=value …)` gives the run's folder."""
    model = make_model(tmp_path / "model16")
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i} is {i * i} and {i % 7}\n" for i in range(100)))

    def train(run: str = "run", **settings: object) -> Path:
        folder = tmp_path / "project" / "runs" / run
        (folder / "attempt").mkdir(parents=True, exist_ok=True)
        chosen = {"data": text, "model": model, "vocab": 300, "seq_len": 16, "steps": 2, "global_batch_size": 8}
        words = [f"{key}={value}" for key, value in ({**chosen, "eval_every": 0} | settings).items()]
        task = tasks.prepare("lm", words, 1)
        task(distenv.resolve({}), RunEnv(run, folder, folder / "attempt"), torch.device("cpu"))
        return folder

    return train


def refused(act: Callable[[], object]) -> tuple[str, int]:
    with pytest.raises(WorkerError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value), caught.value.status


@pytest.mark.parametrize(
    "word", ["steps=1e400", "steps=NaN", "lr=Infinity", f"lr=1{'0' * 400}", "seed=18446744073709551616"]
)
def test_a_number_that_nothing_can_hold_is_refused(word: str) -> None:
    key = word.partition("=")[0]
    assert refused(lambda: tasks.prepare("lm", [word], 1)) == (f"{key}={word[len(key) + 1 :]:.40} is out of range", 2)


def test_brackets_without_end_are_a_text_and_no_traceback() -> None:
    assert refused(lambda: tasks.prepare("lm", ["steps=" + "[" * 100_000], 1))[1] == 2


@pytest.mark.parametrize("word", ["sample_prompts=\udcff\udcfe", 'sample_prompts=["fine", "\\ud800"]'])
def test_a_prompt_that_is_no_text_is_refused_before_the_training(word: str) -> None:
    line, status = refused(lambda: tasks.prepare("sft", [word], 1))
    assert "is not UTF-8 text" in line and line.isascii() and status == 2


def test_prompts_of_every_kind_are_answered_in_a_line_each(lm: Callable[..., Path]) -> None:
    prompts = ["line 1\nis", "\N{PARTY POPPER}\N{ZERO WIDTH JOINER}\u0000", "", "long " * 3000]
    rows = (lm(sample_prompts=json.dumps(prompts), sample_tokens=4) / "samples.jsonl").read_text("utf-8").split("\n")
    assert [json.loads(row)["prompt"] for row in rows if row] == prompts * 2


def test_half_an_epoch_is_half_its_steps(lm: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = lm(steps=0, epochs=0.5)
    per_epoch = int(capsys.readouterr().out.partition(" steps per epoch")[0].rpartition(" ")[2])
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == (per_epoch + 1) // 2 > 2


def test_the_rows_skipped_are_said_also_when_the_data_come_from_the_cache(
    lm: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [json.dumps({"text": f"row {i} says {i * i}"}) for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join([*good[:30], "{broken", *good[30:], "[]"]))
    for run in ("first", "again"):
        lm(run, data=tmp_path / "rows.jsonl", on_bad_row="skip")
        assert "clusterrun: skipped 2 rows that could not be parsed\n" in capsys.readouterr().out


def test_a_checkpoint_of_another_model_names_the_tensor_and_both_shapes(
    lm: Callable[..., Path], tmp_path: Path
) -> None:
    first = lm("first")
    wider = make_model(tmp_path / "model32", 32)
    line, _ = refused(lambda: lm("second", model=wider, resume=first / "checkpoints"))
    assert line.endswith(
        "belongs to a different model: model.embed_tokens.weight"
        " has shape (300, 16) in the checkpoint, but (300, 32) in the model"
    )


def test_resume_left_empty_is_resume_not_given(lm: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    lm(resume="")
    lm(resume="", steps=3)
    assert "(step 2)" in capsys.readouterr().out


@pytest.mark.parametrize(("place", "why"), [("text.txt", "it is a file"), ("text.txt/kept", "Not a directory")])
def test_a_folder_that_takes_no_checkpoint_is_refused_before_the_first_step(
    lm: Callable[..., Path], tmp_path: Path, place: str, why: str
) -> None:
    folder = tmp_path / place
    line, status = refused(lambda: lm(checkpoint_dir=folder))
    assert (line, status) == (f"checkpoint_dir={folder}: not writable ({why})", 2)
    assert not (tmp_path / "project" / "runs" / "run" / "metrics.jsonl").exists()


def test_a_disk_that_is_full_may_have_space_at_the_next_launch(
    lm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(dir: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    line, status = refused(lambda: lm(checkpoint_dir=tmp_path / "kept"))
    assert line.endswith("kept: not writable (No space left on device)") and status == 1


def test_a_folder_that_takes_no_model_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, status = refused(lambda: export.check_target(Path("/proc/none"), "r1"))
    assert line.startswith("save_path=/proc/none: cannot write to /proc (") and status == 2
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "volume")  # a real one takes root
    line, status = refused(lambda: export.check_target(tmp_path / "volume", "r1"))
    assert line.endswith(f"is a mount point: give a folder in it, such as {tmp_path / 'volume' / 'model'}")


def test_a_push_without_network_succeeds_and_the_token_is_in_no_file(
    lm: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = lm(push_to_hub="org/name")
    said = "".join(capfd.readouterr())
    assert "not pushed to org/name" in said and (folder / "model" / "config.json").exists()
    written = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert TOKEN not in said and not any(TOKEN.encode() in content for content in written)


def test_the_name_of_a_variable_is_no_token() -> None:
    assert hub.scrub("unset the HF_HUB_OFFLINE variable", {}) == "unset the HF_HUB_OFFLINE variable"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("No module named 'torch'", "No module named 'torch'"),
        ("\n\nIMPORTANT: PLEASE READ THIS\n\nOriginal error was: x.so: failed to map segment\n", "x.so: failed to map"),
        ("", "ImportError"),
    ],
)
def test_a_failed_import_has_its_reason_on_one_line(message: str, reason: str) -> None:
    found = entry._reason(ImportError(message))
    assert found.startswith(reason) and "\n" not in found
