"""The command to type after a failure: the run submitted again as it was typed, with what is to change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import training_progress
from clusterrun.run_folder.training_progress import TrainingProgress
from clusterrun.why.causes import Cause
from clusterrun.why.ended.resubmit import resubmit_command, with_command
from tests.support.run_records import attempt, submitted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "state")


def asked(store: Store, **sources: tuple[Any, str]) -> RunRecord:
    run = submitted(store, sources={name.replace("_", "-"): value for name, value in sources.items()})
    (run.run_dir / "spec.json").write_text(json.dumps({"work": {"kind": "script"}}))
    return run


def test_run_is_submitted_again_as_it_was_typed_with_what_changes(store: Store) -> None:
    run = asked(
        store,
        nodes=(2, "--nodes"),
        mem=("64G", "--mem"),
        partition=("gpu", "clusterrun.toml"),
        set=({"lr": "1"}, "--set"),
        requeue=(False, "--no-requeue"),
    )
    assert (
        resubmit_command("clusterrun submit … --mem SIZE", run)
        == "clusterrun submit --nodes 2 --set lr=1 --no-requeue --mem 128G -- train.py --lr 1"
    )


@pytest.mark.parametrize(
    ("limit", "longer"),
    [("90", "3:00:00"), ("2:00:00", "4:00:00"), ("1-12", "72:00:00"), ("1:30", "0:03:00"), ("soon", "LONGER")],
)
def test_time_limit_is_doubled(store: Store, limit: str, longer: str) -> None:
    run = asked(store, time=(limit, "--time"))
    assert (
        resubmit_command("clusterrun submit … --time LONGER", run)
        == f"clusterrun submit --time {longer} -- train.py --lr 1"
    )


def test_a_limit_is_as_long_as_the_training_takes_if_that_is_known(store: Store) -> None:
    run = asked(store, time=("10", "--time"))
    training_progress.write(attempt(run, 0, 0), TrainingProgress(90, 390.0, 900, 0.5, 1, 30.0, 10, 70.0))  # 4 s each
    assert "--time 1:12:00 " in resubmit_command("clusterrun submit … --time LONGER", run)


def test_only_the_record_has_the_values_of_a_sweeps_task_and_the_arguments_after_a_job_file(store: Store) -> None:
    work = {"kind": "script", "path": "/p/t.py", "args": ["--lr", "1"]}
    from_file = of(store, work, {"nodes": (2, "jobs/sft.toml")})
    job = from_file.job_id
    assert resubmit_command("clusterrun submit … --mem 2G", from_file) == f"clusterrun resubmit {job} --mem 2G"
    of_sweep = replace(of(store, work), sweep=from_file.run_id)
    assert resubmit_command("clusterrun submit …", of_sweep) == f"clusterrun resubmit {of_sweep.job_id}"


def test_after_rejected_arguments_the_run_is_not_resumed_which_keeps_them(store: Store) -> None:
    run = of(store, {"kind": "script", "path": "/p/t.py"}, resume_args=["--resume"])
    cause = with_command(Cause(kind="usage", sentence="", advice="compare them", command="python SCRIPT --help"), run)
    assert cause.command == "" and cause.advice == (
        "compare them: `python SCRIPT --help`; then run it with others: `clusterrun resubmit 101 -- ARGUMENTS`"
    )


def test_node_is_kept_off_besides_those_kept_off_before(store: Store) -> None:
    run = asked(store, exclude=("n1", "--exclude"), nodelist=("n2,n3", "--nodelist"))
    assert (
        resubmit_command("clusterrun submit … --exclude n2", run)
        == "clusterrun submit --exclude n1,n2 -- train.py --lr 1"
    )


def test_option_is_taken_away(store: Store) -> None:
    run = asked(store, master_port=(29500, "--master-port"), nodes=(2, "--nodes"))
    assert (
        resubmit_command("clusterrun submit … (without --master-port)", run)
        == "clusterrun submit --nodes 2 -- train.py --lr 1"
    )


# -- what is run, and from where -----------------------------------------------------------------------------------


def of(store: Store, work: dict[str, Any], sources: dict[str, Any] | None = None, **spec: Any) -> RunRecord:
    run = submitted(store, sources=sources or {})
    (run.run_dir / "spec.json").write_text(json.dumps({"work": work, **spec}))
    return run


def test_a_module_keeps_its_m(store: Store) -> None:
    run = of(store, {"kind": "module", "name": "pkg.mod", "args": ["--name", "a b"]})
    assert resubmit_command("clusterrun submit …", run) == "clusterrun submit -- -m pkg.mod --name 'a b'"


def test_a_python_callable_has_no_command(store: Store) -> None:
    assert resubmit_command("clusterrun submit …", of(store, {"kind": "function", "name": "f"})) == ""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("jobs/mine.toml", "clusterrun submit jobs/mine.toml"),
        ("--env, jobs/mine.toml", "clusterrun submit --env A=b jobs/mine.toml"),
        ("lm (shipped)", "clusterrun submit lm"),
        ("clusterrun.toml", "clusterrun submit sft"),
        ("~/.config/clusterrun/config.toml", "clusterrun submit sft"),
        ("clusterrun.toml [profile.big]", "clusterrun submit --profile big sft"),
    ],
)
def test_a_job_file_and_a_profile_are_named_again(store: Store, source: str, line: str) -> None:
    run = of(store, {"kind": "task", "name": "sft", "settings": []}, {"env": ({"A": "b"}, source)})
    assert resubmit_command("clusterrun submit …", run) == line


def test_values_that_are_no_text_are_written_as_settings_are(store: Store) -> None:
    run = of(store, {"kind": "task", "name": "lm"}, {"set": ({"data": ["a b", "c"], "packing": True}, "--set, x.toml")})
    assert resubmit_command("clusterrun submit …", run) == (
        """clusterrun submit --set 'data=["a b", "c"]' --set packing=true x.toml"""
    )


def test_from_another_folder_the_line_goes_to_the_runs_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = of(store, {"kind": "script", "path": "/p/t.py", "args": []}, workdir="/home/ann/my project")
    assert resubmit_command("clusterrun submit …", run) == "cd '/home/ann/my project' && clusterrun submit -- /p/t.py"
    monkeypatch.chdir("/")
    run = of(store, {"kind": "script", "path": "/p/t.py", "args": []}, workdir="/")
    assert resubmit_command("clusterrun submit …", run) == "clusterrun submit -- /p/t.py"


def test_words_from_a_log_are_quoted(store: Store) -> None:
    run = of(store, {"kind": "script", "path": "/p/t.py", "args": []}, {"exclude": ("n1", "--exclude")})
    line = resubmit_command("clusterrun submit … --exclude n2;touch${IFS}/tmp/x --requeue", run)
    assert line == "clusterrun submit --exclude 'n1,n2;touch${IFS}/tmp/x' --requeue -- /p/t.py"
    assert resubmit_command("clusterrun submit … --exclude n2'", run) == "clusterrun submit --exclude n1 -- /p/t.py"


# -- resuming ------------------------------------------------------------------------------------------------------


def checkpoints(folder: Path, *steps: int) -> Path:
    for step in steps:
        (folder / f"step-{step:08}").mkdir(parents=True)
    (folder / "latest").symlink_to("x")
    return folder


LM = {"kind": "task", "name": "lm", "settings": [["steps", 300]]}
CANCELLED = Cause(kind="cancelled", sentence="", advice="", command="clusterrun submit …")
STOPPED = Cause(kind="stopped", sentence="", advice="submit it again", command="clusterrun submit …")


@pytest.mark.parametrize("cause", [CANCELLED, STOPPED])
def test_the_command_resumes_from_the_checkpoint(store: Store, cause: Cause) -> None:
    run = of(store, LM, {"set": ({"steps": "300", "resume": "no"}, "--set")})
    checkpoints(run.run_dir / "checkpoints", 90, 120)
    told = with_command(cause, run)
    assert told.command == "clusterrun resume 101"
    assert told.advice == "this command resumes from the checkpoint of step 120"


def test_a_checkpoint_is_told_beside_other_advice(store: Store) -> None:
    run = of(store, LM, {"time": ("1:00:00", "--time")})
    checkpoints(run.run_dir / "checkpoints", 5)
    told = with_command(Cause(kind="time-limit", sentence="", advice="ask for more", command=LONGER), run)
    assert told.command == "clusterrun resume 101 --time 2:00:00"
    assert told.advice == "ask for more; this command resumes from the checkpoint of step 5"


def test_a_part_of_the_total_time_is_followed_by_one_as_long(store: Store) -> None:
    run = of(store, LM, {"time": ("1:00:00", "--time"), "total-time": ("8h", "--total-time")})
    checkpoints(run.run_dir / "checkpoints", 5)
    told = with_command(Cause(kind="time-limit", sentence="", advice="ask for more", command=LONGER), run)
    assert told.command == "clusterrun resume 101"


LONGER = "clusterrun submit … --time LONGER"


def test_a_checkpoint_dir_of_ones_own_is_resumed_from_by_itself(store: Store, tmp_path: Path) -> None:
    checkpoints(tmp_path / "ck", 7)
    work = {"kind": "task", "name": "lm", "settings": [["checkpoint_dir", "ck"]]}
    run = of(store, work, {"set": ({"checkpoint_dir": "ck"}, "--set")}, workdir=str(tmp_path))
    told = with_command(CANCELLED, run)
    assert told.command == "clusterrun resume 101"
    assert told.advice == "this command resumes from the checkpoint of step 7"


def test_without_a_checkpoint_nothing_is_said_of_one(store: Store) -> None:
    run = of(store, LM)
    assert with_command(CANCELLED, run) == Cause(kind="cancelled", sentence="", command="clusterrun submit lm")
    (run.run_dir / "checkpoints" / "step-x").mkdir(parents=True)
    assert with_command(STOPPED, run).advice == "submit it again"


@pytest.mark.parametrize("cause", ["cancelled", "time-limit"])
def test_a_script_with_files_in_its_checkpoint_folder_is_resumed_and_with_an_empty_one_submitted_again(
    store: Store, cause: str
) -> None:
    run = of(store, {"kind": "script", "path": "/p/t.py"})
    (run.run_dir / "checkpoints").mkdir(exist_ok=True)
    cancelled = Cause(kind=cause, sentence="", command="clusterrun submit …")
    assert with_command(cancelled, run).command == "clusterrun submit -- /p/t.py"
    (run.run_dir / "checkpoints" / "last.pt").touch()
    told = with_command(cancelled, run)
    assert told.command == "clusterrun resume 101"
    again = "this command starts the run again"
    assert told.advice == f"{again}; a script that does not find its checkpoint by itself needs --resume-args"


@pytest.mark.parametrize(("what", "changed"), [
    ("--mem SIZE", "--mem 8G"), ("--exclude n2", "--exclude n1,n2"),
    ("--time LONGER --partition long", "--time 2:00:00 --partition long"),
])  # fmt: skip
def test_what_slurm_is_asked_for_changes_in_the_same_run(store: Store, what: str, changed: str) -> None:
    asked = {"mem": ("4G", "--mem"), "exclude": ("n1", "--exclude"), "time": ("1:00:00", "--time")}
    run = of(store, LM, asked)
    checkpoints(run.run_dir / "checkpoints", 3)
    told = with_command(Cause(kind="host-memory", sentence="", command=f"clusterrun submit … {what}"), run)
    assert told.command == f"clusterrun resume 101 {changed}"


@pytest.mark.parametrize(("what", "changed"), [
    ("--set lr=1", "--set lr=1"), ("--nodes 1", "--nodes 1"), ("--exclude n2", "--exclude n2"),
    ("(without --signal)", ""),
])  # fmt: skip
def test_another_option_needs_another_run_which_resumes_from_the_checkpoint(
    store: Store, what: str, changed: str
) -> None:
    run = of(store, LM, {"nodelist": ("n1,n2", "clusterrun.toml")})
    folder = checkpoints(run.run_dir / "checkpoints", 3)
    told = with_command(Cause(kind="node-failure", sentence="", command=f"clusterrun submit … {what}"), run)
    assert told.command.split() == f"clusterrun submit {changed} --set resume={folder} lm".split()


@pytest.mark.parametrize(("command", "advice"), [
    ("", "repair it; this command resumes from the checkpoint of step 3"),
    ("python -m pip install x", "repair it; then `clusterrun resume 101` resumes from the checkpoint of step 3"),
])  # fmt: skip
def test_a_failed_run_is_resumed_once_its_cause_is_gone(store: Store, command: str, advice: str) -> None:
    run = of(store, LM)
    checkpoints(run.run_dir / "checkpoints", 3)
    told = with_command(Cause(kind="exception", sentence="", advice="repair it", command=command), run)
    assert (told.advice, told.command) == (advice, command or "clusterrun resume 101")


@pytest.mark.parametrize(("more", "how"), [({"resume_args": "--resume"}, " with --resume"), ({"requeue": True}, "")])
def test_a_script_that_may_start_again_is_resumed(store: Store, more: dict[str, Any], how: str) -> None:
    run = of(store, {"kind": "script", "path": "/p/t.py"}, **more)
    told = with_command(CANCELLED, run)
    assert (told.command, told.advice) == ("clusterrun resume 101", f"this command starts the run again{how}")


def test_a_killed_run_whose_memory_is_not_known_is_resumed(store: Store) -> None:
    run = of(store, LM)
    checkpoints(run.run_dir / "checkpoints", 3)
    told = with_command(Cause(kind="killed", sentence="", advice="?", command="clusterrun submit … --mem SIZE"), run)
    assert told.command == "clusterrun resume 101"
    assert told.advice.endswith("--mem SIZE`; this command resumes from the checkpoint of step 3")


def test_a_command_with_a_gap_is_told_and_not_printed(store: Store) -> None:
    run = of(store, LM)
    told = with_command(
        Cause(kind="nan-loss", sentence="", advice="lower it", command="clusterrun submit … --set lr=LOWER"), run
    )
    assert (told.command, told.advice) == ("", "lower it: `clusterrun submit … --set lr=LOWER`")
    told = with_command(Cause(kind="usage", sentence="", command="python SCRIPT --help"), run)
    assert (told.command, told.advice) == ("", "`python SCRIPT --help`")


@pytest.mark.parametrize("broken", ["", "[]", '{"work": 5}', '{"work": {"kind": "task", "settings": [[1], [[]], 3]}}'])
def test_a_broken_specification_is_no_error(store: Store, broken: str) -> None:
    run = submitted(store, sources={})
    (run.run_dir / "spec.json").write_text(broken)
    assert with_command(CANCELLED, run).command.startswith("clusterrun submit ")


@pytest.mark.parametrize("folder", ["~nosuchuser", "~nosuchuser/x", "a\0b"])
def test_a_checkpoint_folder_that_cannot_exist_is_no_checkpoint(store: Store, folder: str) -> None:
    run = submitted(store)
    work = {"kind": "task", "name": "lm", "settings": [["checkpoint_dir", folder]]}
    (run.run_dir / "spec.json").write_text(json.dumps({"work": work}))
    cause = Cause(kind="cancelled", sentence="cancelled", advice="", command="", source="")
    assert with_command(cause, run).command == ""
