"""`--secret`: a variable of the shell reaches the ranks, and no file of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.records import run_record
from tests.support.command_desk import Desk, refused
from tests.support.run_records import attempt, claim, end

WORDS = ("--nodes", "1", "--gpus-per-node", "0")
VALUE = "hunter2-of-the-test"


def test_the_value_is_in_no_file_and_in_no_command(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "101\n")
    desk.set(MY_TOKEN=VALUE)
    said = desk.type("submit", "--json", *WORDS, "--secret", "MY_TOKEN", "--", "train.py")
    assert said.status == 0, said.err
    run_dir = Path(said.data["run_dir"])
    assert json.loads((run_dir / "spec.json").read_text())["secrets"] == ["MY_TOKEN"]
    kept = [*desk.files().values(), *(path.read_bytes() for path in desk.state.rglob("*") if path.is_file())]
    assert not [text for text in kept if text and VALUE.encode() in text]
    assert not [call for call in desk.slurm.calls if VALUE in " ".join(call)]
    assert VALUE not in desk.type("render", *WORDS, "--secret", "MY_TOKEN", "--explain", "--", "train.py").out


def test_a_job_file_names_its_secrets(desk: Desk) -> None:
    desk.write("jobs/sft.toml", 'script = "train.py"\ngpus-per-node = 0\nsecret = ["MY_TOKEN"]\n')
    message, hint = refused(desk, "submit", "sft", "--no-check")
    assert (message, hint) == ("--secret: MY_TOKEN is not set in this shell", "export MY_TOKEN=…, then try again")
    assert desk.type("render", "sft").status == 0


@pytest.mark.parametrize(("options", "text"), [
    (["--secret", "MY_TOKEN=abc"], "'MY_TOKEN' must be given without a value"),
    (["--secret", "MY-TOKEN"], "'MY-TOKEN' is not a variable name"),
    (["--secret", "RANK"], "RANK is set by clusterrun or bash"),
    (["--secret", "NAME", "--env", "NAME=a"], "--secret and --env both set NAME"),
])  # fmt: skip
def test_what_would_not_work_is_refused(desk: Desk, options: list[str], text: str) -> None:
    desk.set(NAME=VALUE)
    message, hint = refused(desk, "submit", *WORDS, *options, "--", "train.py")
    assert text in message and "abc" not in message + hint


@pytest.fixture
def ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Job 101 has the secret MY_TOKEN and was cancelled; the shell has lost the variable."""
    desk.slurm.answer("sbatch", "101\n")
    desk.set(MY_TOKEN=VALUE)
    said = desk.type("submit", "--json", *WORDS, "--secret", "MY_TOKEN", "--", "train.py")
    run = run_record.load(Path(said.data["run_dir"]))
    assert run is not None
    monkeypatch.delenv("MY_TOKEN")
    claim(run)
    attempt(run, end=end(143, signal="TERM"))


def test_resume_and_resubmit_need_the_value_again(desk: Desk, ended: None) -> None:
    sent = desk.slurm.count("sbatch")
    for verb in ("resubmit", "resume"):
        said = desk.type(verb, "101")
        assert said.status == 2 and "--secret: MY_TOKEN is not set in this shell" in said.err
    assert desk.slurm.count("sbatch") == sent


@pytest.mark.parametrize("verb", ["resubmit", "resume"])
def test_a_command_of_another_machine_names_the_secret_again(
    desk: Desk, ended: None, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("CLUSTERRUN_REMOTE", "end")
    said = desk.type(verb, "101", "--no-check") if verb == "resubmit" else desk.type(verb, "101")
    assert (
        said.status == 2
        and "hint: export MY_TOKEN=… on your own machine, and pass --secret MY_TOKEN on the command line\n" in said.err
    )
    desk.set(MY_TOKEN=VALUE)
    desk.slurm.answer("sbatch", "102\n")
    desk.slurm.forget()
    said = desk.type(verb, "101", "--secret", "MY_TOKEN", *(["--no-check"] if verb == "resubmit" else []))
    assert said.status == 0, said.err
    assert desk.slurm.count("sbatch") == 1


def test_resume_takes_no_secret_that_the_run_does_not_have(desk: Desk, ended: None) -> None:
    desk.set(MY_TOKEN=VALUE, OTHER=VALUE)
    message, hint = refused(desk, "resume", "101", "--secret", "MY_TOKEN", "--secret", "OTHER", calls=True)
    assert message.endswith("was submitted without 'OTHER'") and hint == "its secrets: MY_TOKEN"


def test_a_value_that_would_be_stored_is_refused(desk: Desk) -> None:
    desk.set(MY_TOKEN=VALUE)
    for words in (["--comment", f"key {VALUE}", "--", "train.py"], ["--", "train.py", "--key", VALUE]):
        message, _ = refused(desk, "submit", *WORDS, "--secret", "MY_TOKEN", *words)
        assert "the value of MY_TOKEN would be written to the job script" in message and VALUE not in message


def test_a_name_that_the_job_does_not_inherit_counts_as_not_set(desk: Desk) -> None:
    desk.set(SQUEUE_TOKEN=VALUE)
    message, _ = refused(desk, "submit", *WORDS, "--secret", "SQUEUE_TOKEN", "--", "train.py")
    assert message == "--secret: SQUEUE_TOKEN is not set in this shell"
