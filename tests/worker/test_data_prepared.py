"""What is prepared is made once, appears whole, is believed only if whole, and reaches every rank."""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from clusterrun.base.errors import WorkerError
from clusterrun.worker.data import prepared
from clusterrun.worker.data.prepared import fingerprint, prepare
from clusterrun.worker.rank.distenv import DistEnv
from tests.support.patience import HUNG

KEY = {"name": "lm", "vocab": 300, "files": [["/a", 1, 2]]}
fork = multiprocessing.get_context("fork")  # torch is imported once


def place(rank: int = 0, world_size: int = 1) -> DistEnv:
    master = ("127.0.0.1", 1) if world_size > 1 else None
    return DistEnv(rank, rank, world_size, world_size, 0, f"n{rank}", "host", rank, "torchrun", master)


class Builder:
    """Makes a small tensor and a file beside it, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> dict[str, torch.Tensor]:
        self.calls += 1
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "vocab.txt").write_text("abc")
        return {"ids": torch.arange(1000, dtype=torch.int32)[::2], "empty": torch.zeros(0, dtype=torch.int64)}


def together(number: int, work: Callable[[int], Any]) -> list[Any]:
    """What each of these processes returns from `work(rank)`, or its WorkerError as text."""
    queue = fork.SimpleQueue()

    def one(rank: int) -> None:
        torch.set_num_threads(1)  # OpenMP's other threads are not forked, and would be waited for
        try:
            queue.put((rank, work(rank)))
        except WorkerError as error:
            queue.put((rank, str(error)))
        except BaseException:
            queue.put((rank, traceback.format_exc()))

    processes = [fork.Process(target=one, args=(rank,)) for rank in range(number)]
    for process in processes:
        process.start()
    results = dict(queue.get() for _ in processes)
    for process in processes:
        process.join()
    return [results[rank] for rank in range(number)]


def test_it_is_built_once_and_found_again(tmp_path: Path) -> None:
    build = Builder()
    folder, first = prepare(tmp_path / "cache", KEY, build, place())
    again, second = prepare(tmp_path / "cache", dict(reversed(KEY.items())), build, place())
    assert build.calls == 1 and folder == again and folder.name.startswith("lm-") and len(folder.name) == 19
    assert torch.equal(first["ids"], torch.arange(0, 1000, 2, dtype=torch.int32)) and torch.equal(*both(first, second))
    assert (folder / "tokenizer" / "vocab.txt").read_text() == "abc"
    assert json.loads((folder / "key.json").read_text())["key"] == KEY
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def both(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return first["ids"], second["ids"]


def test_another_key_is_another_folder(tmp_path: Path) -> None:
    build = Builder()
    folders = {prepare(tmp_path, key, build, place())[0] for key in (KEY, {**KEY, "vocab": 301}, {"name": "../x"})}
    assert len(folders) == build.calls == 3 and {folder.parent for folder in folders} == {tmp_path}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": lambda folder: cut(folder / "tensors.safetensors"),
    "no tensors": lambda folder: (folder / "tensors.safetensors").unlink(),
    "bad header": lambda folder: (folder / "tensors.safetensors").write_bytes(
        b"\xff" * (folder / "tensors.safetensors").stat().st_size
    ),
    "other file cut": lambda folder: cut(folder / "tokenizer" / "vocab.txt"),
    "no key": lambda folder: (folder / "key.json").unlink(),
    "key cut": lambda folder: cut(folder / "key.json"),
    "key of another": lambda folder: (folder / "key.json").write_text('{"key": {}, "files": {}}'),
    "key of another shape": lambda folder: (folder / "key.json").write_text('{"key": 1, "files": []}'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_whole_is_built_again(tmp_path: Path, damage: str) -> None:
    build = Builder()
    folder, _ = prepare(tmp_path, KEY, build, place())
    DAMAGE[damage](folder)
    again, tensors = prepare(tmp_path, KEY, build, place())
    assert build.calls == 2 and again == folder and len(tensors["ids"]) == 500
    assert prepare(tmp_path, KEY, build, place())[0] == folder and build.calls == 2
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_build_that_fails_leaves_nothing_and_its_error_as_it_was(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, torch.Tensor]:
        (folder / "half").write_text("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        prepare(tmp_path, KEY, build, place())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkerError, match=f"^cannot write to the cache folder {tmp_path}/file: (File|Not)"):
        prepare(tmp_path / "file", KEY, Builder(), place())


def test_a_disk_that_fills_is_named(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        return prepare(tmp_path, KEY, Builder(), place())

    (said,) = together(1, work)
    assert said.startswith(f"cannot write to the cache folder {tmp_path}: ") and "File too large" in said
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_builds_go_when_they_are_old(tmp_path: Path) -> None:
    folder, _ = prepare(tmp_path, KEY, Builder(), place())
    old, new = (tmp_path / f".{folder.name}.host.1.{word}.tmp" for word in ("old", "new"))
    for path in (old, new):
        path.mkdir()
        (path / "big").write_text("x")
    os.utime(old, (1, 1))
    cut(folder / "tensors.safetensors")
    prepare(tmp_path, KEY, Builder(), place())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([new.name, folder.name])


def test_of_two_jobs_that_build_at_once_both_use_one(tmp_path: Path) -> None:
    meet = fork.Barrier(2)

    def work(rank: int) -> tuple[str, int]:
        def build(folder: Path) -> dict[str, torch.Tensor]:
            meet.wait(HUNG)
            return {"ids": torch.full((100,), rank)}

        folder, tensors = prepare(tmp_path, KEY, build, place())
        return str(folder), int(tensors["ids"][0])

    first, second = together(2, work)
    assert first == second and os.listdir(tmp_path) == [Path(first[0]).name]


def test_all_ranks_map_what_rank_0_built(tmp_path: Path) -> None:
    def work(rank: int) -> tuple[str, int, int]:
        torch_dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=rank, world_size=2)
        build = Builder()
        folder, tensors = prepare(tmp_path / "cache", KEY, build, place(rank, 2))
        answer = (str(folder), int(tensors["ids"].sum()), build.calls)
        torch_dist.barrier()
        torch_dist.destroy_process_group()
        return answer

    first, second = together(2, work)
    assert first[:2] == second[:2] == (first[0], 249_500) and (first[2], second[2]) == (1, 0)


def test_a_rank_waits_until_its_node_sees_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def later(seconds: float) -> None:
        pauses.append(seconds)
        (tmp_path / "lm").mkdir(exist_ok=True)
        (tmp_path / "lm" / "a").write_text("x" * len(pauses))

    monkeypatch.setattr(prepared.time, "sleep", later)
    prepared._await(tmp_path / "lm", {"a": 7}, place(1, 2), "n0")
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_node_that_never_sees_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "VISIBLE_S", 0.0)
    with pytest.raises(WorkerError) as caught:
        prepared._await(tmp_path / "lm", {"a": 7}, place(1, 2), "n0")
    assert str(caught.value) == (
        f"{tmp_path}/lm/tensors.safetensors, written on node n0, is not visible on node n1 after 0 s:"
        " is the cache folder on a file system that all nodes share?"
    )


def test_a_fingerprint_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = fingerprint(str(path))
    assert before == fingerprint(str(path)) and before[:2] == [str(path), 3]
    path.write_text("four")
    assert fingerprint(str(path)) != before
    with pytest.raises(WorkerError, match=r"cannot read .*gone: No such file"):
        fingerprint(str(tmp_path / "gone"))
