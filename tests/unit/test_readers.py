"""Every reader of a file and of an answer, on whatever it may get: a result or one error of ours, within seconds.

`make faults` tries 5,000 examples of each, other runs a few. A reader that no case here calls makes a test fail.
"""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.base.decode import Damaged
from clusterrun.base.errors import ClusterrunError
from clusterrun.records import run_record
from clusterrun.records.store import Store
from tests.support import damage, other_readers, run_readers, slurm_readers
from tests.support.folders import PACKAGE
from tests.support.syntax import dotted, tree_of

#: Seconds of a processor that an example may take; a reader that waits for something ends with the test's time limit.
LIMIT = 10.0
FEW = max(2, settings().max_examples // 20)
COUNTS = (FEW, pytest.param(5000, marks=[pytest.mark.faults, pytest.mark.timeout(3600)]))


class Case(NamedTuple):
    """Something that is read: what it holds when it is right, and a reader, which raises for an error of another kind.

    `document` is the JSON document in it, None for another text.
    """

    right: bytes
    read: Callable[[bytes], None]
    document: Any = None

    @property
    def examples(self) -> st.SearchStrategy[bytes]:
        if self.document is not None:
            return damage.documents(self.document)
        return damage.texts(self.right.decode("utf-8", "surrogateescape"))


def drain(found: Iterator[object]) -> None:
    """Read all; an error of ours is an answer too."""
    try:
        for _ in found:
            pass
    except (ClusterrunError, Damaged):
        pass


# -- the folder of a run -----------------------------------------------------------------------------------------------


class RunFolder:
    """A run with all its files, and which of its readers open which."""

    def __init__(self, folder: Path) -> None:
        (folder / "project").mkdir()
        self.store = Store(folder / "project", folder / "state")
        self.run = run_readers.make_run(self.store)
        run_readers.make_run(self.store, 2)
        self.whole = run_readers.files(self.run)
        self.readers: dict[str, list[run_readers.View]] = {}
        for view in run_readers.VIEWS:
            for name in opened(lambda view=view: drain(view(self.store, self.run))):  # type: ignore[misc]
                self.readers.setdefault(name, []).append(view)

    def read(self, name: str, data: bytes) -> None:
        path = self.run.run_dir / name
        path.write_bytes(data)
        try:
            run = run_record.load(self.run.run_dir)
            for view in self.readers[path.name] if run is not None else ():
                drain(view(self.store, run))
            if run is None:
                drain(run_readers.all_runs(self.store, self.run))
        finally:
            for file in (path, self.run.run_dir / "submissions" / f"{self.run.submission.token}.json"):
                known = self.whole[os.path.relpath(file, self.run.run_dir)]
                if file.read_bytes() != known:  # it was damaged, or a reader has recorded an end
                    file.write_bytes(known)


def _noted(original: Callable[..., Any], found: set[str], path: Any, *how: Any, **more: Any) -> Any:
    found.add(str(path))
    return original(path, *how, **more)


def opened(call: Callable[[], None]) -> set[str]:
    """The names of the files that a call opens."""
    found: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        for module in (os, io):
            patch.setattr(module, "open", partial(_noted, module.open, found))
        call()
    return {Path(name).name for name in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return RunFolder(tmp_path_factory.mktemp("run"))


def case_of_file(folder: RunFolder, name: str) -> Case:
    right = folder.whole[name]
    document = json.loads(right) if name.endswith((".json", ".progress", ".end")) else None
    return Case(right, partial(folder.read, name), document)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", run_readers.NAMES)
def test_a_file_of_a_run_may_hold_anything(folder: RunFolder, name: str, count: int) -> None:
    check(case_of_file(folder, name), count)


@pytest.mark.parametrize("workdir", ["/" + "x" * 300, "/\0"])
def test_a_recorded_folder_may_be_no_path(folder: RunFolder, workdir: str) -> None:
    folder.read("spec.json", json.dumps(run_readers.SPEC | {"workdir": workdir}).encode())


def test_these_are_all_the_files_of_a_run_and_each_is_read(folder: RunFolder) -> None:
    assert set(run_readers.NAMES) == set(folder.whole)
    assert [name for name in folder.whole if not folder.readers.get(Path(name).name)] == []


# -- answers, and all else ---------------------------------------------------------------------------------------------


@cache
def asking(key: str) -> tuple[slurm_readers.View, ...]:
    """The readers that ask for this answer."""
    found = []
    for view in slurm_readers.VIEWS:
        slurm = slurm_readers.Slurm(key, slurm_readers.ANSWERS[key].encode())
        drain(view(slurm))
        found += [view] if key in slurm.asked else []
    return tuple(found)


def read_answer(key: str, data: bytes) -> None:
    for view in asking(key):
        drain(view(slurm_readers.Slurm(key, data)))


def case_of_answer(key: str) -> Case:
    return Case(slurm_readers.ANSWERS[key].encode(), partial(read_answer, key))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("key", slurm_readers.ANSWERS)
def test_slurm_may_answer_anything(key: str, count: int) -> None:
    check(case_of_answer(key), count)


def test_a_local_job_may_have_a_token_that_is_no_text(tmp_path: Path) -> None:
    right, read = other_readers.CASES["a local job"]
    _other(read, tmp_path, json.dumps({**right, "token": "\udcff"}).encode())


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("squeue, all columns", "\x1f6  ", "\x1f" + "9" * 5000),
        ("sprio", "17|", "9" * 5000 + "|"),
        ("scontrol show partition", "PartitionName=", "="),
        ("scontrol show job", "JobId=21 ", "JobId=21 ArrayJobId=21 ArrayTaskId=² "),
        ("sacct, paths", "10_2", "10_²"),
        ("scontrol show job", "Dependency=", "Dependency=afterok:²,"),
    ],
)
def test_an_answer_that_was_once_too_much(key: str, right: str, wrong: str) -> None:
    text = slurm_readers.ANSWERS[key]
    assert right in text
    read_answer(key, text.replace(right, wrong).encode())


def test_each_answer_is_asked_for() -> None:
    assert [key for key in slurm_readers.ANSWERS if not asking(key)] == []


def other_cases(tmp_path: Path) -> dict[str, Case]:
    return {
        name: Case(right if isinstance(right, bytes) else json.dumps(right).encode(), partial(_other, read, tmp_path),
                   right if isinstance(right, dict | list) else None)
        for name, (right, read) in other_readers.CASES.items()
    }  # fmt: skip


def _other(read: other_readers.Reader, folder: Path, data: bytes) -> None:
    drain(read(folder, data))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", other_readers.CASES)
def test_anything_else_that_is_read_may_hold_anything(tmp_path: Path, name: str, count: int) -> None:
    check(other_cases(tmp_path)[name], count)


def check(case: Case, count: int) -> None:
    """Give a case this many examples; fails for an error of another kind, and for one that takes too long."""

    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(case.examples)
    def on_damaged(data: bytes) -> None:
        began = time.process_time()
        case.read(data)
        assert time.process_time() - began < LIMIT, "it takes too long"

    on_damaged()


# -- no reader is left out ---------------------------------------------------------------------------------------------

#: The shared decoders and openers; a function that calls one is a reader.
SHARED = {"parse_json", "parse_object", "parse_rows", "parse_lines", "parse_unchecked", "build", "parse_fields",
          "read_json", "read_bytes", "open_file", "read_plain", "load_strictly"}  # fmt: skip
#: Decoders that only these call.
RAW = {"json.loads", "json.load", "json.JSONDecoder", "tomllib.loads", "tomllib.load", "pickle.load", "pickle.loads",
       "pickle.Unpickler", "csv.reader", "ast.literal_eval", "yaml.safe_load"}  # fmt: skip


def functions(folder: Path) -> Iterator[tuple[str, str, ast.AST]]:
    """Each function of the package: its file, its qualified name, and its tree."""
    for path in sorted(folder.rglob("*.py")):
        todo: list[tuple[ast.AST, str]] = [(tree_of(path), "")]
        while todo:
            node, above = todo.pop()
            for child in ast.iter_child_nodes(node):
                name = above
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    name = f"{above}.{child.name}".lstrip(".")
                    if isinstance(child, ast.FunctionDef):
                        yield str(path.relative_to(PACKAGE)), name, child
                todo.append((child, name))


def called(tree: ast.AST) -> set[str]:
    """The names of what is called, whole (`json.loads`) and last part."""
    names = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return names | {name.rpartition(".")[2] for name in names}


def is_reader(file: str, name: str, tree: ast.AST) -> bool:
    parses_slurm = file.startswith("scheduler/slurm/") and name.startswith("parse_")
    return not file.startswith(("worker/", "base/decode.py")) and (parses_slurm or bool(called(tree) & SHARED))


def test_every_reader_is_called_by_a_case(folder: RunFolder, tmp_path: Path) -> None:
    reached: set[tuple[str, str]] = set()
    package = f"{PACKAGE}/"

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            reached.add((code.co_filename.removeprefix(package), code.co_qualname.replace(".<locals>", "")))

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        cases: Mapping[str, Case] = other_cases(tmp_path)
        for case in (*cases.values(), *map(case_of_answer, slurm_readers.ANSWERS)):
            case.read(case.right)
        for name in run_readers.NAMES:
            folder.read(name, folder.whole[name])
            folder.read(name, b"{")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    readers = {(file, name) for file, name, tree in functions(PACKAGE) if is_reader(file, name, tree)}
    assert sorted(readers - reached - set(other_readers.NOT_HERE)) == []
    assert sorted(set(other_readers.NOT_HERE) - (readers - reached)) == [], "these are reached, or are no readers"


def test_no_other_code_decodes() -> None:
    found = {file for file, _, tree in functions(PACKAGE) if called(tree) & RAW}
    assert found == set(other_readers.DECODERS)
