"""`resubmit`: the same work and options as a new run, with the changes that were typed and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records import run_record
from tests.support.command_desk import Desk, refused, work_words
from tests.support.listed_jobs import rows, run_row
from tests.support.run_records import attempt, claim, end

SCRIPT = ["--nodes", "2", "--gpus-per-node", "4", "--env", "A=1", "--dependency", "afterok:7", "--time", "1:00",
          "--", "train.py", "--lr", "1"]  # fmt: skip


def submit(desk: Desk, *words: str, job: int = 101) -> Path:
    desk.slurm.answer("sbatch", f"{job}\n")
    said = desk.type(*words[:1], "--json", *words[1:])
    assert said.status == 0, said
    return Path(said.data["run_dir"])


def spec(run_dir: Path) -> dict[str, Any]:
    found = json.loads((run_dir / "spec.json").read_text())
    assert isinstance(found, dict)
    return found


def identity_free(run_dir: Path) -> list[str]:
    """The script without the lines that name its run."""
    lines = (run_dir / "script.sh").read_text().split("\n")
    return [line for line in lines if not line.startswith(("#SBATCH --job-name", "export CLUSTERRUN_"))]


def test_an_unchanged_run_gets_the_same_script_but_for_its_dependency(desk: Desk) -> None:
    first = submit(desk, "submit", *SCRIPT)
    second = submit(desk, "resubmit", "101", job=102)
    assert second.name != first.name
    expected = [line for line in identity_free(first) if "afterok:7" not in line]
    assert identity_free(second) == expected


def test_changes_replace_values_and_tables_are_merged(desk: Desk) -> None:
    submit(desk, "submit", *SCRIPT)
    found = spec(submit(desk, "resubmit", "train", "--nodes", "3", "--env", "B=2", "--", "--lr", "2", job=102))
    assert (found["nodes"], found["gpus_per_node"], found["env"]) == (3, 4, [["A", "1"], ["B", "2"]])
    assert found["work"]["args"] == ["--lr", "2"] and found["time_limit"] == 60


def test_the_other_way_to_ask_for_gpus_replaces_the_recorded_one(desk: Desk) -> None:
    submit(desk, "submit", *SCRIPT)
    found = spec(submit(desk, "resubmit", "101", "--gres", "gpu:2", job=102))
    assert found["gpus_per_node"] is None and ["gres", "gpu:2"] in found["directives"]


def test_settings_of_a_task_are_changed_one_by_one(desk: Desk) -> None:
    submit(desk, "submit", "lm", "--no-check", "--set", "steps=7", "--set", "precision=bf16", "--no-requeue")
    script = (submit(desk, "resubmit", "last", "--no-check", "--set", "lr=1e-4", job=102) / "script.sh").read_text()
    assert {"steps=7", "lr=1e-4", "precision=bf16"} <= {*work_words(script)}
    found = spec(submit(desk, "resubmit", "101", "--no-check", "--fp16", job=103))
    assert dict(found["work"]["settings"])["precision"] == "fp16" and not found["requeue"]


def test_profiles_and_job_files_are_not_read_again(desk: Desk) -> None:
    desk.write("clusterrun.toml", 'partition = "gpu"\n')
    submit(desk, "submit", *SCRIPT)
    desk.write("clusterrun.toml", 'partition = "other"\nqos = "high"\n')
    assert dict(spec(submit(desk, "resubmit", "101", job=102))["directives"])["partition"] == "gpu"


def test_the_run_starts_in_the_folder_of_the_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first = submit(desk, "submit", *SCRIPT)
    monkeypatch.chdir("/")
    second = submit(desk, "resubmit", "101", job=102)
    assert second.parent == first.parent and spec(second)["workdir"] == str(desk.project)


def test_messages_go_to_the_same_target(desk: Desk) -> None:
    first = submit(desk, "submit", "--notify", "true", "--notify-on", "failed", *SCRIPT)
    second = submit(desk, "resubmit", "101", job=102)
    assert json.loads((second / "notify.json").read_text()) == json.loads((first / "notify.json").read_text())


def test_a_dry_run_writes_nothing(desk: Desk) -> None:
    submit(desk, "submit", *SCRIPT)
    before = desk.files()
    said = desk.type("resubmit", "101", "--nodes", "5", "--dry-run")
    assert said.status == 0 and "5" in said.out.splitlines()[0] and desk.files() == before


@pytest.mark.parametrize(("words", "status", "text"), [
    (["101", "--set", "lr=1"], 2, "--set is only for built-in tasks"),
    (["101", "--nodes", "0"], 2, "--nodes must be at least 1, not 0"),
    (["101", "--profile", "big"], 2, "no such option: --profile"),
    (["55"], 4, "55"),
    ([], 2, "missing argument"),
])  # fmt: skip
def test_what_cannot_be_repeated_is_refused_in_one_line(desk: Desk, words: list[str], status: int, text: str) -> None:
    submit(desk, "submit", *SCRIPT)
    message, _ = refused(desk, "resubmit", *words, status=status, calls=True)
    assert text in message


def test_a_checkpoint_folder_that_both_runs_use_is_named(desk: Desk) -> None:
    submit(desk, "submit", "lm", "--no-check", "--set", "checkpoint_dir=ckpt")
    notice = "clusterrun: checkpoint_dir=ckpt belongs to job 101, so training resumes from the newest checkpoint there"
    assert notice in desk.type("resubmit", "101", "--no-check", "--dry-run").err
    assert notice not in desk.type("resubmit", "101", "--no-check", "--dry-run", "--set", "checkpoint_dir=new").err


@pytest.mark.parametrize(("words", "has_checkpoint", "status", "expected"), [
    (["--resume-args", "--resume"], False, 1, True),
    ([], True, 1, True),
    ([], False, 1, False),
    (["--resume-args", "--resume"], True, 0, False),
    (["--resume-args", "--resume"], True, None, False),
])  # fmt: skip
def test_a_run_that_could_be_continued_is_named(
    desk: Desk, words: list[str], has_checkpoint: bool, status: int | None, expected: bool
) -> None:
    run = run_record.load(submit(desk, "submit", *words, *SCRIPT))
    assert run is not None
    if has_checkpoint:
        (run.run_dir / "checkpoints" / "step-1").mkdir(parents=True)
    claim(run)
    attempt(run, end=None if status is None else end(status))
    desk.slurm.forget()
    if status is None:
        desk.slurm.answer("squeue", rows(run_row(run)))
    notice = "the new run starts from the beginning; to continue job 101, use `clusterrun resume 101`"
    assert (notice in desk.type("resubmit", "101", "--dry-run").err) is expected


def test_a_task_takes_no_arguments(desk: Desk) -> None:
    submit(desk, "submit", "lm", "--no-check")
    message, _ = refused(desk, "resubmit", "101", "--", "--lr", "1", calls=True)
    assert "lm takes settings, not arguments" in message


def test_a_folder_that_is_gone_is_named(desk: Desk, tmp_path: Path) -> None:
    first = submit(desk, "submit", *SCRIPT)
    record = first / "spec.json"
    record.write_text(json.dumps({**spec(first), "workdir": str(tmp_path / "gone")}))
    message, _ = refused(desk, "resubmit", "101", calls=True)
    assert f"the folder that job 101 was submitted from is gone: {tmp_path / 'gone'}" in message


def test_a_script_that_is_gone_is_refused(desk: Desk) -> None:
    submit(desk, "submit", *SCRIPT)
    (desk.project / "train.py").unlink()
    message, _ = refused(desk, "resubmit", "101", calls=True)
    assert message == f"the script is gone: {desk.project}/train.py"


def test_broken_profiles_of_today_do_not_matter(desk: Desk) -> None:
    submit(desk, "submit", *SCRIPT)
    desk.write("clusterrun.toml", "nodes = [")
    submit(desk, "resubmit", "101", job=102)


def test_gpus_that_were_a_default_are_a_default_again(desk: Desk) -> None:
    first = submit(desk, "submit", "--", "train.py")
    record = first / "record.json"
    record.write_text(record.read_text().replace('"default: GPUs found"', '"default: no GPUs found"'))
    values = json.loads(record.read_text())
    values["sources"]["gpus-per-node"][0] = 0
    record.write_text(json.dumps(values))
    assert spec(submit(desk, "resubmit", "101", job=102))["gpus_per_node"] == 1


def test_a_template_is_looked_for_where_it_is_typed(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(desk, "submit", *SCRIPT)
    monkeypatch.chdir(tmp_path)
    said = desk.type("resubmit", "101", "--template", "my.j2")
    assert said.status == 2 and f"{tmp_path}/my.j2" in said.err


def test_a_rung_of_a_ladder_is_refused_and_the_last_one_is_a_job_like_others(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "101\n")
    said = desk.type("submit", "lm", "--nodes", "2", "--gpus-per-node", "2", "--ladder", "--no-check")
    assert said.status == 0, said.err
    runs = sorted((desk.project / ".clusterrun" / "runs").iterdir(), key=lambda one: spec(one)["nodes"])
    message, _ = refused(desk, "resubmit", runs[0].name, calls=True)
    assert "is not the last rung of its ladder" in message
    assert spec(submit(desk, "resubmit", runs[-1].name, "--no-check", job=104))["sbatch_args"] == []


def test_the_local_rank_is_an_argument_again_where_the_script_wants_it(desk: Desk) -> None:
    desk.write("old.py", "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n")
    first = submit(desk, "submit", "--gpus-per-node", "1", "--", "old.py", "--lr", "1")
    assert spec(first)["work"]["args"] == ["--lr", "1"]
    again = submit(desk, "resubmit", "101", "--gpus-per-node", "4", "--", "--lr", "2", job=102)
    assert spec(again)["work"]["args"] == ["--local_rank={local_rank}", "--lr", "2"]


@pytest.mark.parametrize(("place", "value"), [
    (("record.json", "sources", "env"), [5, "--env"]), (("record.json", "sources", "nodes"), ["two", "--nodes"]),
    (("spec.json", "work", "path"), 5), (("spec.json", "work", "args"), [1]), (("spec.json", "work", "args"), "abc"),
])  # fmt: skip
def test_a_damaged_record_is_one_line(desk: Desk, place: tuple[str, str, str], value: object) -> None:
    first = submit(desk, "submit", *SCRIPT)
    document = json.loads((first / place[0]).read_text())
    document[place[1]][place[2]] = value
    (first / place[0]).write_text(json.dumps(document))
    said = desk.type("resubmit", "101", "--env", "B=1")
    assert said.status == 2 and "unexpected error" not in said.err and "Traceback" not in said.err
