"""What a shell completes, and the script that asks for it: quiet, and nothing that a shell would run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.base.fields import FIELDS
from clusterrun.cli import VERBS, cli
from clusterrun.cli.common.complete import answer, completions
from clusterrun.cli.completion import SCRIPTS
from clusterrun.records.store import Store
from tests.support.command_desk import Desk
from tests.support.run_records import submitted


def at(line: str, shell: str = "bash") -> list[str]:
    return completions(cli, f"clusterrun {line}", shell)


def test_verbs_options_and_the_files_of_a_script(desk: Desk) -> None:
    assert at("") == [*VERBS] and at("su") == ["submit"] and at("sub", "zsh") == [
        "submit\tSubmit a job file, your own script, or the default job."
    ]  # fmt: skip
    assert at("submit --part") == ["--partition"] and {"--remote", "--debug"} <= {*at("--")}
    assert at("submit --nodes 2 -- tr") == at("submit --template ") == ["<files>"]
    assert at("submit --nodes ") == []


def test_job_files_tasks_and_profiles(desk: Desk) -> None:
    desk.write("jobs/mine.toml", 'task = "sft"\n')
    desk.write("clusterrun.toml", "[profile.small]\nnodes = 1\n")
    assert at("submit ") == ["classify", "diffusion", "lm", "mine", "sft", "smollm2"]
    assert at("submit jobs/") == ["<files>"]
    assert at("tasks s") == ["sft"] and at("submit --profile ") == ["small"]
    assert at("init new --from s") == ["script", "sft"] and at("completion z") == ["zsh"]


def test_settings_are_those_of_the_jobs_task(desk: Desk) -> None:
    desk.write("jobs/mine.toml", 'task = "sft"\n')
    assert at("submit mine --set pack") == ["packing="] and at("submit lm --set pack") == []
    assert at("submit --set pack") == ["packing="], "the task is not known"
    assert at("submit mine --set lr") == ["lr=", "lr_scaling="] and at("sweep mine --grid lr") == ["lr=", "lr_scaling="]
    assert at("submit mine --set packing=t") == ["true"], "bash breaks words at ="
    assert at("submit mine --set schedule=co", "fish") == ["schedule=cosine", "schedule=constant"]
    assert at("submit --launcher=to", "zsh") == ["--launcher=torchrun"]
    assert at("submit mine --set data=") == ["<files>"] and at("submit mine --set lr=") == []


def test_jobs_by_id_and_name_the_newest_first(desk: Desk) -> None:
    store = Store(desk.project, desk.state)
    submitted(store, 7, "7", name="old")
    submitted(store, 8, "8", name="new")
    assert at("logs ") == ["last", "8", "7", "new", "old"] and at("cancel n") == ["new"]
    assert at("logs 7", "fish") == ["7\told"]


def test_a_name_that_a_shell_would_run_is_not_offered(desk: Desk) -> None:
    desk.write("jobs/$(touch hacked).toml", 'task = "sft"\n')
    desk.write("jobs/a\nb.toml", 'task = "sft"\n')
    desk.write("clusterrun.toml", '[profile."`id`"]\nnodes = 1\n')
    assert set(at("submit ")) == {"classify", "diffusion", "lm", "sft", "smollm2"}
    assert at("submit --profile ") == []


@pytest.mark.parametrize("line", ["submit --profile ", "submit x --set ", "logs ", "no-such-verb "])
def test_what_cannot_be_read_completes_nothing_and_prints_no_error(
    desk: Desk, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    desk.write("clusterrun.toml", "nodes = = 2\n")
    desk.write("jobs/x.toml", "[[[\n")
    monkeypatch.setattr("clusterrun.cli.common.complete._store", lambda: 1 / 0)
    desk.set(_CLUSTERRUN_COMPLETE="bash_complete", COMP_LINE=f"clusterrun {line}")
    assert desk.type().status == 0
    assert capfd.readouterr().err == ""
    monkeypatch.delenv("COMP_LINE")
    answer(cli)


def test_every_option_with_a_file_completes_files(desk: Desk) -> None:
    for field in FIELDS:
        if field.metavar in ("FILE", "DIR"):
            assert at(f"submit --{field.name} ") == ["<files>"], field.name


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_printed(desk: Desk, shell: str) -> None:
    assert desk.type("completion", shell).out == SCRIPTS[shell]


def test_install_for_bash_adds_one_line_once_and_keeps_the_file_that_it_is_in(desk: Desk, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles" / "bashrc").write_text("export A=1")  # without a line end
    (home / ".bashrc").symlink_to(tmp_path / "dotfiles" / "bashrc")
    script = home / ".local" / "share" / "clusterrun" / "completion.bash"
    said = desk.type("completion", "bash", "--install")
    assert script.read_text() == SCRIPTS["bash"] and "To undo: rm ~/.local/share/clusterrun/completion.bash" in said.out
    assert "Added to ~/.bashrc:" in said.out
    assert "Already in ~/.bashrc:" in desk.type("completion", "bash", "--install").out
    line = f"source {script} 2>/dev/null  # clusterrun completion"
    assert (home / ".bashrc").read_text() == f"export A=1\n{line}\n" and (home / ".bashrc").is_symlink()


def test_install_for_fish_and_zsh_writes_where_they_look(desk: Desk, tmp_path: Path) -> None:
    home = tmp_path / "home"
    said = desk.type("completion", "fish", "--install")
    assert "Wrote ~/.config/fish/completions/clusterrun.fish" in said.out and "Added" not in said.out
    assert (home / ".config/fish/completions/clusterrun.fish").read_text() == SCRIPTS["fish"]
    desk.set(ZDOTDIR=str(tmp_path / "project"))
    desk.type("completion", "zsh", "--install")
    assert "completion.zsh" in (tmp_path / "project" / ".zshrc").read_text() and not (home / ".zshrc").exists()


def test_a_home_that_cannot_be_written_is_one_line(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "home" / ".local").write_text("a file")
    said = desk.type("completion", "bash", "--install")
    assert said.status == 2 and "cannot write" in said.err and not (tmp_path / "home" / ".bashrc").exists()


def test_a_start_file_that_is_no_regular_file_is_left_alone(desk: Desk, tmp_path: Path) -> None:
    home = tmp_path / "home"
    os.mkfifo(home / ".bashrc")
    said = desk.type("completion", "bash", "--install")
    assert said.status == 2 and f"cannot write {home}/.bashrc: not a regular file" in said.err
    assert [path.name for path in home.iterdir()] == [".bashrc"]
