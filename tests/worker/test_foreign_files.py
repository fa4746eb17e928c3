"""Checkpoints, models and caches of another user are read as data or not at all; what a task writes is its user's."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data.prepared import prepare
from clusterrun.worker.models import gguf, load
from clusterrun.worker.rank.distenv import DistEnv
from clusterrun.worker.training import checkpoint, compiling, resume
from clusterrun.worker.training.checkpoint import Snapshot
from tests.worker.small_gguf import write_gguf
from tests.worker.small_models import make_model, make_tokenizer
from tests.worker.small_training import go

ONE = DistEnv(0, 0, 1, 1, 0, "n0", "host", 0, "single")
KEY = {"name": "text", "files": [["/a", 1, 2]]}
STRANGER = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")


class Trap:
    """Makes a folder where it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


def give_away(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, STRANGER, STRANGER)


def written(folder: Path, step: int = 4, trap: Trap | None = None) -> Path:
    trainer = {"optimizer": trap or {}, "scaler": None}
    return checkpoint.write(folder, Snapshot(step, {"w": torch.ones(3)}, trainer, {"run_id": "b"}, "{}"))


def test_a_checkpoint_whose_trainer_would_run_code_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "kept", trap=Trap(tmp_path / "victim"))
    assert resume.find(str(path), tmp_path / "own") == (path, [])  # its sha256 is right
    with pytest.raises(WorkerError, match=f"^checkpoint {path} cannot be read: "):
        resume.load(path)
    assert not (tmp_path / "victim").exists()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "trainer.pt", "model.safetensors"])
@pytest.mark.parametrize("trick", [fifo, zeros, huge])
def test_a_checkpoint_of_pipes_devices_and_endless_files_hangs_nothing(
    tmp_path: Path, name: str, trick: Callable[[Path], None]
) -> None:
    path = written(tmp_path / "kept")
    (path / name).unlink()
    trick(path / name)
    with pytest.raises(WorkerError, match=f"checkpoint {path} is not valid: {name} "):
        resume.find(str(path), tmp_path / "own")


@needs_root
def test_a_checkpoint_of_another_user_is_used_and_said_to_be_theirs(
    tmp_path: Path, signals_as_before: None, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path / "b", steps=4)
    theirs = tmp_path / "b" / "checkpoints" / "step-00000004"
    give_away(theirs)
    capsys.readouterr()
    done, _ = go(tmp_path / "a", steps=6, resume=str(theirs))
    lines = capsys.readouterr().out.splitlines()
    assert done and f"{theirs} belongs to user {STRANGER}: only tensors and numbers are read from it" in lines
    go(tmp_path / "a", steps=8)
    assert "belongs to user" not in capsys.readouterr().out


def built(source: load.Source) -> Any:
    return load.build(source, head="causal", vocab_size=None, seq_len=16, pad_id=0, seed=1)


def test_a_model_folder_runs_no_code_and_prefers_safetensors(tmp_path: Path) -> None:
    folder, victim = tmp_path / "m", tmp_path / "victim"
    make_model().save_pretrained(folder)
    torch.save({"lm_head.weight": Trap(victim)}, folder / "pytorch_model.bin")
    assert built(load.Source("folder", str(folder))).config.vocab_size == 300
    (folder / "model.safetensors").unlink()
    with pytest.raises(WorkerError, match="cannot load"):
        built(load.Source("folder", str(folder)))
    assert not victim.exists()


@pytest.mark.parametrize("part", ["AutoModelForCausalLM", "AutoConfig", "AutoTokenizer"])
def test_a_model_folder_with_code_of_its_own_runs_none_of_it(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers asks on a terminal, unless it is told
    folder, victim = tmp_path / "m", tmp_path / "victim"
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(victim)!r})\nclass Evil: pass\n")
    name = "tokenizer_config.json" if part == "AutoTokenizer" else "config.json"
    document = json.loads((folder / name).read_text())
    value: Any = ["evil.Evil", "evil.Evil"] if part == "AutoTokenizer" else "evil.Evil"
    (folder / name).write_text(json.dumps(document | {"auto_map": {part: value}, "model_type": "evil"}))
    for attempt in (load.tokenizer, built):
        with contextlib.suppress(WorkerError):  # refused, or loaded by the library's own code
            attempt(load.Source("folder", str(folder)))
    assert not victim.exists()


def test_a_gguf_file_beside_code_runs_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    victim = tmp_path / "victim"
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(victim)!r})\nclass Evil: pass\n")
    words = make_tokenizer()
    write_gguf(tmp_path / "model.gguf", make_model(hidden_size=64, vocab_size=len(words)), words)
    for name in ("config.json", "tokenizer_config.json"):
        auto_map = {"AutoTokenizer": ["evil.Evil", "evil.Evil"], "AutoConfig": "evil.Evil"}
        (tmp_path / name).write_text(json.dumps({"auto_map": auto_map}))
    with contextlib.suppress(ValueError):  # transformers' own refusal
        gguf.tokenizer(tmp_path / "model.gguf")
    assert not victim.exists()


def build(folder: Path) -> dict[str, torch.Tensor]:
    (folder / "notes.json").write_text("{}")
    return {"ids": torch.arange(3)}


def planted(folder: Path) -> None:
    """What another user who once could write here left: the right key, other tensors."""
    from safetensors.torch import save_file

    save_file({"ids": torch.tensor([6, 6, 6])}, folder / "tensors.safetensors")


@needs_root
@pytest.mark.parametrize("whose", ["folder", "tensors.safetensors", "notes.json"])
def test_a_cache_with_a_part_of_another_user_is_made_again(
    tmp_path: Path, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = prepare(tmp_path, KEY, build, ONE)
    planted(folder)
    theirs = folder if whose == "folder" else folder / whose
    os.chown(theirs, STRANGER, STRANGER)
    again, tensors = prepare(tmp_path, KEY, build, ONE)
    assert again == folder and tensors["ids"].tolist() == [0, 1, 2]
    assert capsys.readouterr().out == f"clusterrun: preparing the data again: {theirs} belongs to another user\n"
    prepare(tmp_path, KEY, build, ONE)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_cache_that_others_could_change_is_made_again(tmp_path: Path, mode: int) -> None:
    folder, _ = prepare(tmp_path, KEY, build, ONE)
    planted(folder)
    os.chmod(folder, mode)
    assert prepare(tmp_path, KEY, build, ONE)[1]["ids"].tolist() == [0, 1, 2]
    assert stat.S_IMODE(folder.stat().st_mode) & 0o022 == 0


def test_a_link_in_the_cache_is_not_followed(tmp_path: Path) -> None:
    folder, _ = prepare(tmp_path / "cache", KEY, build, ONE)
    shutil.move(folder, tmp_path / "elsewhere")
    planted(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert prepare(tmp_path / "cache", KEY, build, ONE)[1]["ids"].tolist() == [0, 1, 2]
    assert not folder.is_symlink()


def test_a_cache_folder_in_which_others_can_put_things_is_refused_with_the_command(tmp_path: Path) -> None:
    root = tmp_path / "the cache"
    root.mkdir()
    root.chmod(0o2775)
    with pytest.raises(WorkerError, match=rf"other users can change {root} \(run: chmod go-w '{root}'\)"):
        prepare(root, KEY, build, ONE)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("theirs", [False, pytest.param(True, marks=needs_root)])
def test_a_folder_of_compiled_code_that_another_user_prepared_is_not_used(
    tmp_path: Path, theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # as if not set; put back when the test ends
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    usual = tmp_path / f"clusterrun-compiled-{os.geteuid()}"
    if theirs:
        usual.mkdir()
        os.chown(usual, STRANGER, STRANGER)
    compiling.use_own_cache()
    used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert (used == usual) is not theirs
    assert stat.S_IMODE(used.stat().st_mode) == 0o700 and used.stat().st_uid == os.geteuid()


#: Collectives of objects unpickle what another rank sends.
UNPICKLES = re.compile(r"(?:gather|broadcast|scatter|send|recv)_object(?:_list)?$|pickle\.loads?$")


def test_nothing_in_the_worker_unpickles_or_runs_what_it_reads(worker: Path) -> None:
    for path in sorted(
        set(worker.rglob("*.py")) - {worker / "rank" / "callable.py"}
    ):  # which checks the pickle's owner first
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name, keywords = ast.unparse(call.func), {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert not UNPICKLES.search(name), f"{path.name}: {name}"
            assert name != "torch.load" or keywords.get("weights_only") == "True", path.name
            assert name != "load_dataset" or keywords.get("trust_remote_code") == "False", path.name
            assert keywords.get("trust_remote_code", "False") == "False", path.name
            assert keywords.get("allow_pickle", "False") == "False", path.name


def test_what_a_task_writes_is_writable_for_its_user_alone(tmp_path: Path, worker: Path) -> None:
    run = tmp_path / ".clusterrun" / "runs" / "r"
    (run / "attempts" / "1").mkdir(parents=True)
    variables = {"CLUSTERRUN_RUN_DIR": run, "CLUSTERRUN_RUN_ID": "r", "CLUSTERRUN_ATTEMPT_DIR": run / "attempts" / "1"}
    words = ["steps=4", "save_every=2", "tensorboard=true", 'sample_prompts=["a"]', "vocab=300", "seq_len=16"]
    (tmp_path / "text.txt").write_text("".join(f"line {i} is {i * i}\n" for i in range(200)))
    done = subprocess.run(
        [sys.executable, str(worker / "__main__.py"), "task", "lm", f"data={tmp_path / 'text.txt'}", *words],
        env=os.environ | {name: str(value) for name, value in variables.items()},
        capture_output=True,
        text=True,
        umask=0,
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    made = {str(p.relative_to(run.parents[1])): p.stat().st_mode for p in run.parents[1].rglob("*")}
    lasting = {name: mode for name, mode in made.items() if not name.startswith("runs/r/attempts")}
    for part in ("cache/", "latest", "best.json", "owner.json", "metrics.", "samples.", "tensorboard/", "model/"):
        assert any(part in name for name in lasting), part
    del lasting["runs"], lasting["runs/r"]  # made by this test
    assert [name for name, mode in lasting.items() if mode & 0o022] == []
