"""A node's file of records: what a rank writes is read as it was written, and never harms the slot of another rank."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterrun.base.decode import parse_object
from clusterrun.run_folder.ends import Outcome, write_end
from clusterrun.run_folder.rank_records import END, HALF, PROGRESS, SLOT, RankSlot, encode, load, load_first_end, read

TEXT = st.text(st.characters(exclude_categories=()), max_size=400)  # lone surrogates too
GROUPS = st.dictionaries(TEXT, st.integers(0, 10**12), max_size=20)
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def slot(folder: Path, rank: int, local_rank: int) -> RankSlot:
    return RankSlot(folder, rank, local_rank)


def test_ranks_of_a_node_share_a_file_and_each_has_its_place(tmp_path: Path) -> None:
    for rank in range(8, 12):
        one = slot(tmp_path, rank, rank - 8)
        one.write_progress({"step": rank})
        if rank != 10:
            one.write_end({"status": rank})
        one.close()
    assert os.listdir(tmp_path) == ["node-8.ranks"]
    progress, ends = read(tmp_path)
    assert progress == dict(load(tmp_path, PROGRESS)) == {rank: {"step": rank} for rank in range(8, 12)}
    assert ends == dict(load(tmp_path, END)) == {rank: {"status": rank} for rank in (8, 9, 11)}
    assert (tmp_path / "node-8.ranks").stat().st_size == 4 * SLOT


def test_a_later_record_replaces_the_earlier_and_a_restart_clears_the_end(tmp_path: Path) -> None:
    one = slot(tmp_path, 1, 1)
    one.write_progress({"step": 1, "phase": "a long name of a phase"})
    one.write_progress({"step": 2})
    one.write_end({"status": 1, "error": "an error of the first start"})
    one.clear_end()
    assert read(tmp_path) == ({1: {"step": 2}}, {})
    one.write_end({"status": 0})
    assert read(tmp_path)[1] == {1: {"status": 0}}


def test_the_end_of_rank_0_is_read_alone(tmp_path: Path) -> None:
    assert load_first_end(tmp_path) == {}
    slot(tmp_path, 0, 0).write_end({"status": 0})
    assert load_first_end(tmp_path) == {"status": 0}


# -- whatever it holds -------------------------------------------------------------------------------------------------


@quick
@given(error=TEXT, node=TEXT, times=st.integers(1, 30))
def test_an_end_keeps_all_but_the_rest_of_a_long_error(tmp_path: Path, error: str, node: str, times: int) -> None:
    for other in (0, 2):
        one = slot(tmp_path, other, other)
        one.write_progress({"neighbour": other})
        one.write_end({"neighbour": other})
        one.close()
    one = slot(tmp_path, 1, 1)
    outcome = Outcome(7, error * times)
    write_end(one, node, outcome, joined_group=True, any_joined_group=False, signals=("SIGTERM", "SIGUSR1"))
    one.close()
    progress, ends = read(tmp_path)
    assert ends == dict(load(tmp_path, END)) and progress == dict(load(tmp_path, PROGRESS))
    assert progress == {0: {"neighbour": 0}, 2: {"neighbour": 2}}
    assert (ends[0], ends[2]) == ({"neighbour": 0}, {"neighbour": 2})
    kept = ends[1]
    assert (kept["rank"], kept["status"], kept["joined_group"], kept["any_joined_group"]) == (1, 7, True, False)
    assert kept["signals"] == ["SIGTERM", "SIGUSR1"] and kept["time"] > 1e9
    # a pair of lone surrogates is one character after JSON
    assert as_json(error * times).startswith(as_json(kept["error"]))


def as_json(text: str) -> str:
    """What a reader makes of a text: what no file name may contain is replaced (base/decode.py), at its end cut off."""
    return str(parse_object(json.dumps({"text": text}))["text"]).rstrip("\ufffd")


@quick
@given(name=TEXT, groups=GROUPS, count=st.integers())
def test_a_progress_record_always_fits(name: str, groups: dict[str, int], count: int) -> None:
    record = encode({"time": 5.0, "step": count, "collectives": groups, "gpu": {"name": name, "use": 97}})
    assert len(record) == HALF and record.endswith(b"\n") and record.count(b"\n") == 1
    found = json.loads(record)
    assert (found["time"], found["step"]) == (5.0, count)
    assert set(map(as_json, found["collectives"])) <= set(map(as_json, groups))


def test_as_much_of_an_error_is_kept_as_fits() -> None:
    for error in ("x" * 5000, "ä" * 5000, "\U0001f525" * 5000, "\udc80" * 5000, '"' * 5000):
        record = encode({"status": 1, "error": error})
        assert HALF - len(record.rstrip()) < 8, "less than one more character would fit"


def test_a_number_without_end_is_refused_and_leaves_the_slot(tmp_path: Path) -> None:
    one = slot(tmp_path, 0, 0)
    one.write_progress({"step": 1})
    with pytest.raises(ValueError):
        one.write_progress({"step": 10**2000})
    assert read(tmp_path)[0] == {0: {"step": 1}}


@quick
@given(before=TEXT, after=TEXT, cut=st.integers(0, HALF))
def test_a_torn_write_is_a_whole_record_or_none(tmp_path: Path, before: str, after: str, cut: int) -> None:
    old, new = encode({"step": 1, "text": before}), encode({"step": 2, "text": after})
    (tmp_path / "node-0.ranks").write_bytes(new[:cut] + old[cut:] + encode({"status": 0}) + new[:cut])
    progress, ends = read(tmp_path)
    assert (progress, ends) == (dict(load(tmp_path, PROGRESS)), dict(load(tmp_path, END)))
    assert ends == {0: {"status": 0}}
    assert all(isinstance(record, dict) for record in progress.values())


@quick
@given(data=st.binary(max_size=3 * SLOT))
def test_no_bytes_do_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "node-4.ranks").write_bytes(data)
    assert read(tmp_path) == (dict(load(tmp_path, PROGRESS)), dict(load(tmp_path, END)))


@pytest.mark.parametrize("data", [b"[" * HALF, b'{"a":' * 204, b"{" * HALF])
def test_deep_nesting_does_no_harm(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "node-0.ranks").write_bytes(data)
    assert read(tmp_path) == ({}, {}) and dict(load(tmp_path, PROGRESS)) == {}


def test_a_record_that_is_torn_at_the_first_look_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slot(tmp_path, 0, 0).write_progress({"step": 5})
    pread, reads = os.pread, 0

    def torn(*arguments: int) -> bytes:
        nonlocal reads
        reads += 1
        data = pread(*arguments)
        return data[:8] + bytes(HALF - 8) if reads == 1 else data

    monkeypatch.setattr(os, "pread", torn)
    assert read(tmp_path)[0] == {0: {"step": 5}}
    reads = 0
    assert dict(load(tmp_path, PROGRESS)) == {0: {"step": 5}}


# -- the file ----------------------------------------------------------------------------------------------------------


def link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def folder(path: Path, victim: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("kind", [link, pipe, folder])
def test_what_is_no_file_of_this_user_is_neither_written_nor_read(tmp_path: Path, kind: Any) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    kind(tmp_path / "node-0.ranks", victim)
    with pytest.raises(OSError):
        slot(tmp_path, 0, 0).write_progress({"step": 1})
    assert victim.read_text() == "mine" and read(tmp_path) == ({}, {}) and dict(load(tmp_path, PROGRESS)) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "node-0.ranks"
    path.write_bytes(b"")
    os.chown(path, 65534, 65534)
    with pytest.raises(OSError, match="not a regular file owned by this user"):
        slot(tmp_path, 0, 0).write_progress({"step": 1})
    assert path.read_bytes() == b""


@pytest.mark.parametrize(("of_folder", "of_file"), [(0o700, 0o600), (0o750, 0o640)])
def test_the_group_may_read_it_where_it_may_read_the_folder(tmp_path: Path, of_folder: int, of_file: int) -> None:
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt").chmod(of_folder)
    before = os.umask(0o077)
    try:
        slot(tmp_path / "attempt", 0, 0).write_progress({})
    finally:
        os.umask(before)
    assert (tmp_path / "attempt" / "node-0.ranks").stat().st_mode & 0o777 == of_file


def test_heartbeats_open_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments) or real(*arguments))
    one = slot(tmp_path, 0, 0)
    for step in range(10):
        one.write_progress({"step": step})
    assert len(opened) == 1


def test_a_descriptor_that_the_users_code_took_over_is_not_written_to(tmp_path: Path) -> None:
    one = slot(tmp_path, 0, 0)
    one.write_progress({"step": 1})
    assert one._file is not None
    number = one._file[0]
    os.close(number)
    data = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT, 0o600)
    assert data == number, "the lowest free number"
    one.write_progress({"step": 2})
    one.close()
    assert os.pread(data, 10, 0) == b"" and read(tmp_path)[0] == {0: {"step": 2}}
    os.close(data)


def test_a_write_that_fails_opens_the_file_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = slot(tmp_path, 0, 0)
    one.write_progress({"step": 1})
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: 7)
        with pytest.raises(OSError, match="partly written"):
            one.write_progress({"step": 2})
    assert one._file is None
    one.write_progress({"step": 3})
    assert read(tmp_path)[0] == {0: {"step": 3}}


def test_each_rank_has_a_place_whatever_its_launcher_numbers(tmp_path: Path) -> None:
    for rank, local_rank in ((0, 3), (1, 0), (2, 1), (3, 0)):
        slot(tmp_path, rank, local_rank).write_progress({"step": rank})
    assert read(tmp_path)[0] == {rank: {"step": rank} for rank in range(4)}


def test_a_file_larger_than_any_nodes_is_not_read(tmp_path: Path) -> None:
    slot(tmp_path, 0, 0).write_progress({"step": 1})
    os.truncate(tmp_path / "node-0.ranks", 4096 * SLOT)
    assert dict(load(tmp_path, PROGRESS)) == {0: {"step": 1}}
    os.truncate(tmp_path / "node-0.ranks", 4096 * SLOT + 1)
    assert dict(load(tmp_path, PROGRESS)) == {}
