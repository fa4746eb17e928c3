"""Errors in profiles name the line; invalid TOML is an error too."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.errors import ConfigError, nearest
from clusterrun.run_folder.safe_files import SETTINGS_LIMIT
from tests.support.profile_folders import load, make_root, merged, project


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("\nnodez = 2", 2, "unknown key 'nodez'", "did you mean nodes?"),
        ("[profile.a]\n# nodez\n\nnodez = 2", 4, "unknown key 'nodez'", "did you mean nodes?"),
        ("gpus_per_nod = 2", 1, "unknown key 'gpus_per_nod'", "did you mean gpus-per-node?"),
        ("zzzzzz = 2", 1, "unknown key 'zzzzzz'", "see the flags in `clusterrun submit --help`"),
        ("gpus-per-node = 2\ngpus_per_node = 4", 2, "gpus-per-node is set twice", "keep one of them"),
        ("[restart]\nmax-restart = 2", 2, "unknown key 'max-restart' in [restart]", "did you mean max-restarts?"),
        (
            "[restart]\ncolour = 2",
            2,
            "unknown key 'colour' in [restart]",
            "available keys: max-restarts, resume-args",
        ),
        ("[notify]\nto = 2", 2, "unknown key 'to' in [notify]", "available keys: target, on"),
        ("[notify]\ntarget = 2", 2, "target must be a string", ""),
        ("notify = 'x'\nnotify_on = 'done'", 2, "notify_on must be a list", ""),
        ("restart = 2", 1, "restart must be a table, not the number 2", "write [restart]"),
        ("max-restarts = 1\n[restart]\nmax_restarts = 2", 2, "max-restarts is set twice", "keep one of them"),
        ("nodes = '2'", 1, "nodes must be a whole number, not the string '2'", "write nodes = 2"),
        ("nodes = 2.0", 1, "nodes must be a whole number, not the number 2.0", ""),
        ("nodes = true", 1, "nodes must be a whole number, not true", ""),
        ("time = 02:00:00", 1, "time must be a string, not the time 02:00:00", 'write time = "02:00:00"'),
        ("time = 90", 1, "time must be a string, not the number 90", 'write time = "90"'),
        ("requeue = 'true'", 1, "requeue must be true or false, not the string 'true'", "write requeue = true"),
        ("setup = 'module load x'", 1, "setup must be a list of strings", 'write setup = ["…"]'),
        ("setup = [\n'a',\n1]", 1, "setup must be a list of strings", ""),
        ("partition = ['a', 'b']", 1, "partition must be a string, not a list", 'write partition = "…"'),
        ("env = 'A=1'", 1, "env must be a table", "write [env]"),
        ("[env]\nA = '1'\nB = 2", 3, "env: B must be a string, not the number 2", 'write B = "2"'),
        ("[env]\nA = '1'\npartition = 'x'", 3, "partition is an option, but in [env]", "move it above"),
        ("[set]\nlr = nan", 2, "set: lr must be a string, a number, true, false", ""),
        ("[set]\nx = [1]", 2, "set: x must be", ""),
        ("job = 3", 1, "job must be a string, not the number 3", 'write job = "3"'),
        ("job = ''", 1, "job must be a non-empty string", 'write job = "…"'),
        ("[profile.a]\ndefault-profile = 'b'", 2, "the default-profile key belongs at the top", ""),
        ("cluster = 'a'", 1, "the cluster key belongs in a profile's table", "below [profile.NAME]"),
        ("profile = 'a'", 1, "profile must contain tables, such as [profile.NAME]", 'default-profile = "NAME"'),
        ("task = 'lm'", 1, "the task key belongs in a job file", "jobs/NAME.toml"),
        ("[profile.a]\nargs = []", 2, "the args key belongs in a job file", "jobs/NAME.toml"),
        ("nodes = 2\npartition = gpu", 2, "Invalid value (column 13)", "in quotes"),
        ("a = [\n1,\n", 2, "(at the end of the file)", "in quotes"),
        ("nodes = 1\nnodes = 2", 2, "Cannot overwrite a value", ""),
    ],
)
def test_wrong_profiles(root: Path, text: str, line: int, message: str, hint: str) -> None:
    project(root, text)
    with pytest.raises(ConfigError) as caught:
        load(root)
    assert caught.value.message.startswith(f"clusterrun.toml:{line}: ")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"# ok\npartition = '\xff'", "clusterrun.toml:2: not UTF-8 text"),
        (b"a = " + b"[" * 50_000, "clusterrun.toml: the values are nested too deeply"),
        (b"nodes = " + b"9" * 5000, "clusterrun.toml: "),
        (b"#" * (SETTINGS_LIMIT + 1), "clusterrun.toml: larger than"),
        (b"partition = 'a\0b'", "clusterrun.toml:1: "),
    ],
)
def test_files_that_are_no_toml(root: Path, raw: bytes, message: str) -> None:
    (root / "clusterrun.toml").write_bytes(raw)
    (root / "clusterrun.toml").chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        load(root)
    assert caught.value.message.startswith(message)


def test_a_windows_editor(root: Path) -> None:
    (root / "clusterrun.toml").write_bytes(b"\xef\xbb\xbfnodes = 2\r\npartition = 'x'\r\n")
    (root / "clusterrun.toml").chmod(0o644)
    assert {k: v.value for k, v in merged(root).items()} == {"nodes": 2, "partition": "x"}


@given(st.text(), st.lists(st.text()))
def test_nearest_is_one_of_the_choices(word: str, choices: list[str]) -> None:
    hint = nearest(word, choices)
    assert not hint or hint.removeprefix("did you mean ").removesuffix("?") in choices
