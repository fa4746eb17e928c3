"""How the command line speaks: help, JSON, errors, and text that is not its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from clusterrun.cli import VERBS, cli
from clusterrun.terminal.paint import Colours
from tests.support.command_desk import Desk
from tests.support.installed_command import ROOT
from tests.support.listed_jobs import rows


def test_alone_it_shows_its_help(desk: Desk) -> None:
    said = desk.type()
    assert "Usage: clusterrun" in said.err + said.out and "submit" in said.err + said.out


@pytest.mark.parametrize("verb", ["submit", "render", "logs", "status", "list", "wait", "cancel", "init"])
def test_help_has_examples(desk: Desk, verb: str) -> None:
    said = desk.type(verb, "--help")
    assert said.status == 0 and said.err == "" and f"  clusterrun {verb}" in said.out
    assert desk.type(verb, "-h").out == said.out


def test_the_version(desk: Desk) -> None:
    from clusterrun import __version__

    assert desk.type("--version").out == f"clusterrun, version {__version__}\n"


def test_every_command_takes_json_but_those_whose_output_is_not_their_own() -> None:
    top = click.Context(cli)
    commands = {name: cli.get_command(top, name) for name in VERBS}
    commands["remote"] = commands["remote"].commands["setup"]  # type: ignore[union-attr]
    without = {
        name for name, one in commands.items() if one and "--json" not in [o for p in one.params for o in p.opts]
    }
    assert without == {"exec", "mcp"}
    assert "Every command but `exec` and `mcp` takes `--json`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["submit", "--nodes", "0", "--json"], 2),
        (["render", "--json", "none"], 2),
        (["submit", "--json", "--nope"], 2),
        (["status", "1x", "--json"], 2),
        (["status", "x", "--json"], 4),
        (["status", "--json", "99"], 4),
        (["logs", "--json", "99"], 4),
        (["wait", "--json", "99"], 4),
        (["cancel", "--json", "99"], 4),
        (["cancel", "--json"], 4),
        (["logs", "--json", "-f", "99"], 2),
        (["init", "--json", "a/b"], 2),
    ],
)
def test_an_error_as_json_is_one_envelope(desk: Desk, words: list[str], status: int) -> None:
    said = desk.type(*words)
    assert (said.status, said.err) == (status, "")
    envelope = json.loads(said.out)
    assert said.out.count("\n") == 1
    assert {"version", "command", "data", "error"} == set(envelope)
    assert (envelope["version"], envelope["command"], envelope["data"]) == (1, words[0], None)
    assert {"message", "hint", "said", "exit_code"} == set(envelope["error"])
    assert envelope["error"]["exit_code"] == status and envelope["error"]["message"]


def test_a_result_as_json_is_one_envelope(desk: Desk) -> None:
    said = desk.type("render", "--json", "--nodes", "3", "--", "train.py")
    assert json.loads(said.out)["error"] is None and said.data["script"].startswith("#!")
    assert said.data["sources"]["nodes"] == {"value": 3, "source": "--nodes"}
    assert desk.type("list", "--json").data == []


def test_debug_shows_where(desk: Desk) -> None:
    said = desk.process("--debug", "submit", "--nodes", "0")
    assert said.status != 0 and "Traceback" in said.err and "RequestError" in said.err
    assert "Traceback" not in desk.process("submit", "--nodes", "0").err


def test_what_nobody_foresaw_is_a_line_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterrun.cluster import Cluster

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a\nbug")

    monkeypatch.setattr(Cluster, "listing", broken)
    said = desk.type("list")
    assert said.status == 1 and len(said.err.splitlines()) == 2 and "--debug" in said.err


def test_foreign_text_cannot_act_on_the_terminal(desk: Desk) -> None:
    desk.slurm.answer(
        "sbatch", err="\x1b]0;gotcha\x07\nsbatch: error: Batch job submission failed: no\x1b[2J\n", status=1
    )
    said = desk.type("submit", "--", "train.py")
    assert said.status == 3 and "\x1b" not in said.err and r"\x1b]0;gotcha" in said.err
    assert "\x1b" not in desk.type("submit", "\x1b[31mjob").err


def test_a_refusal_is_shown_once_and_leaves_no_run(desk: Desk) -> None:
    words = "sbatch: error: Batch job submission failed: Invalid partition name specified"
    desk.slurm.answer("sbatch", err=words + "\n", status=1)
    said = desk.type("submit", "--partition", "nope", "--", "train.py")
    assert said.status == 3 and said.out == "" and said.err.count(words) == 1 and "hint: " in said.err
    assert [name for name, data in desk.files().items() if data is not None] == ["train.py"]
    assert desk.type("list", "--all").out == ""


def test_a_reader_that_has_gone_already_is_no_error(desk: Desk) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "clusterrun", "render"], env=os.environ, stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_no_error(desk: Desk) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m clusterrun render | head -c 1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.endswith("0\n") and done.stderr.count("Traceback") == 0


def test_a_terminal_without_unicode(desk: Desk) -> None:
    words = ("submit", "--dry-run", "--script", "--comment", "é🙂", "--", "train.py")
    said = desk.process(*words, env={"PYTHONIOENCODING": "ascii"})
    assert said.status == 0 and "é🙂" in said.out, said.err  # the script itself is bytes
    said = desk.process("init", "--print", env={"PYTHONIOENCODING": "ascii"})
    assert "UnicodeEncodeError" not in said.err and said.status == 0, said.err


def test_colors_are_chosen_anywhere_before_a_script(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Colours, "chosen", "auto")
    desk.slurm.answer("squeue", rows({"i": "7", "j": "mine"}))
    for words in (["--color", "always", "list"], ["list", "--color=always"]):
        assert "\x1b[36mRUNNING\x1b[0m" in desk.type(*words).out
    assert "\x1b" not in desk.type("list", "--color", "never").out
    said = desk.type("list", "--color", "pink")
    assert said.status == 2 and "hint: use always, never, auto" in said.err
    assert desk.type("list", "--color").status == 2


def test_init_names_how_to_submit_a_script_and_what_the_demo_is(desk: Desk) -> None:
    desk.without_slurm()
    said = desk.type("init")
    assert said.status == 0 and (desk.project / "clusterrun.toml").is_file()
    assert "`clusterrun submit -- SCRIPT`, or try the cluster with the demo job, `clusterrun submit lm`" in said.out


def test_names_are_utf8_whatever_the_locale(desk: Desk) -> None:
    folder = desk.project / "çalışma ü"
    folder.mkdir()
    (folder / "train.py").write_text("")
    desk.slurm.answer("sbatch", "123\n")
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    words = ("--job-name", "dédé İ", "--gpus-per-node", "1", "--no-check", "--json", "--", "train.py", "--note=ağ")
    said = desk.process("submit", *words, env=ascii_only, cwd=folder)
    assert said.status == 0 and (said.data["name"], said.data["logs"][0]) == ("dédé İ", f"{folder}/logs/train_123.out")
    script = (Path(said.data["run_dir"]) / "script.sh").read_text()
    assert f"'{folder}/train.py' '--note=ağ'" in script and "PYTHONUTF8" not in script
    for words in (("list", "--all"), ("status", "dédé İ"), ("list", "--name", "d*İ")):
        said = desk.process(*words, env=ascii_only, cwd=folder)
        assert said.status in (0, 75) and "dédé İ" in said.out, said  # 75: the stand-in of squeue shows no job
