"""``sweep``, ``submit --array`` and ``resubmit --failed``: each task is a run, and one sbatch submits an array."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.run_folder import training_progress
from clusterrun.run_folder.training_progress import TrainingProgress
from clusterrun.system import shell
from tests.support.command_desk import CONFIG, Desk, refused, work_words
from tests.support.listed_jobs import rows
from tests.support.run_records import end

GRID = ["--grid", "lr=1e-4,3e-4", "--grid", "seed=0..2"]
SCRIPT = ["--nodes", "2", "--gpus-per-node", "4", "--", "train.py", "--lr", "{lr}", "--seed={seed}", "{array_index}"]


def sweep(desk: Desk, *words: str, job: int = 101, size: int = 1001) -> Any:
    desk.slurm.answer("sbatch", f"{job}\n")
    desk.slurm.answer("scontrol", f"{CONFIG}MaxArraySize            = {size}\n")
    said = desk.type(words[0], "--json", "--no-check", *words[1:])
    assert said.status == 0, said
    return said.data


def sent(desk: Desk) -> list[Path]:
    """The scripts that sbatch got."""
    return [Path(call[-1]) for call in desk.slurm.calls if call[0] == "sbatch"]


def token(desk: Desk, data: Any, task: int = 0) -> str:
    (one,) = (Path(data["tasks"][task]["run_dir"]) / "submissions").glob("*.json")
    return one.stem


def queue(desk: Desk, *jobs: dict[str, str]) -> None:
    """What squeue answers from now on."""
    desk.slurm.answer("squeue", rows(*jobs))


def test_one_sbatch_sends_a_run_for_each_parameter_set(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, "--max-running", "2", *SCRIPT)
    (script,) = sent(desk)
    text = script.read_text()
    assert '#SBATCH --array="0-5%2"' in text and "train_%A_%a.out" in text and text.count("#SBATCH --job-name=") == 1
    assert [task["job_id"] for task in data["tasks"]] == [f"101_{index}" for index in range(6)]
    assert [tuple(task["parameters"].values()) for task in data["tasks"]] == [
        (lr, seed) for lr in ("1e-4", "3e-4") for seed in "012"
    ]
    for index, task in enumerate(data["tasks"]):
        run_dir = Path(task["run_dir"])
        own = (run_dir / "script.sh").read_text()
        lr, seed = task["parameters"].values()
        assert work_words(own)[-4:] == ["--lr", lr, f"--seed={seed}", str(index)]
        assert f"export CLUSTERRUN_SWEEP_LR={lr}" in own and f"[{index}]={run_dir.name}" in text
        assert token(desk, data, index) == token(desk, data)


def test_settings_of_a_built_in_task_and_the_table_of_a_job_file(desk: Desk) -> None:
    desk.write("jobs/tiny.toml", 'task = "lm"\n[set]\nsteps = 5\n[sweep]\nmax-running = 3\nzip.seed = "0..1"\n'
                                 "zip.lr = [1e-3, 2e-3]\n")  # fmt: skip
    data = sweep(desk, "sweep", "tiny")
    assert [task["parameters"] for task in data["tasks"]] == [
        {"seed": "0", "lr": "0.001"}, {"seed": "1", "lr": "0.002"},
    ]  # fmt: skip
    assert '--array="0-1%3"' in sent(desk)[0].read_text()
    words = work_words((Path(data["tasks"][1]["run_dir"]) / "script.sh").read_text())
    assert {"steps=5", "seed=1", "lr=0.002"} <= {*words}
    typed = sweep(desk, "sweep", "tiny", "--grid", "lr=1", job=102)
    assert [task["parameters"] for task in typed["tasks"]] == [{"lr": "1"}], "what is typed replaces the table"


def test_a_sweep_larger_than_maxarraysize_becomes_several_arrays(desk: Desk) -> None:
    data = sweep(desk, "sweep", "--grid", "lr=0..6", "--max-running", "2", "--", "train.py", "{lr}", size=3)
    texts = [path.read_text() for path in sent(desk)]
    tasks = [line for text in texts for line in text.splitlines() if line.startswith("#SBATCH --array=")]
    assert tasks == ['#SBATCH --array="0-2%2"', '#SBATCH --array="0-2%2"', '#SBATCH --array="0%2"']
    assert len({token(desk, data, index) for index in range(7)}) == 3
    after = [[word for word in call if word.startswith("--dependency")] for call in desk.slurm.calls
             if call[0] == "sbatch"]  # fmt: skip
    assert after == [[], ["--dependency=afterany:101"], ["--dependency=afterany:101"]], "the limit holds over all"


def test_submit_array_gives_each_run_its_index(desk: Desk) -> None:
    sweep(desk, "submit", "--array", "3,5-6%2", "--", "train.py", "--part", "{array_index}")
    text = sent(desk)[0].read_text()
    assert '#SBATCH --array="3,5-6%2"' in text and "[5]=" in text
    runs = list((desk.project / ".clusterrun" / "runs").iterdir())
    assert sorted(work_words((run / "script.sh").read_text())[-1] for run in runs) == ["3", "5", "6"]


def test_each_task_is_a_job_of_its_own(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    name = f"train.{token(desk, data)[:8]}"
    queue(desk, {"i": "101_[2-5]", "T": "PENDING", "r": "Priority", "j": name}, {"i": "101_0", "j": name},
          {"i": "101_1", "T": "FAILED", "j": name})  # fmt: skip
    states = desk.type("status", "train", "--json").data
    assert [one["state"] for one in states] == ["RUNNING", "FAILED", *["PENDING"] * 4]
    assert [one["job_id"] for one in states] == [f"101_{index}" for index in range(6)]
    assert states[3]["parameters"] == {"lr": "3e-4", "seed": "0"}
    one = desk.type("status", "101_3", "--json").data[0]
    assert (one["run_id"], one["state"]) == (data["tasks"][3]["run_id"], "PENDING")
    assert "train_101_3.out" in one["logs"][0]
    said = desk.type("status", "101")
    assert said.err.endswith("train: 6 tasks: 4 pending, 1 running, 1 failed\n")
    table = said.out.splitlines()
    assert table[0].split("\t") == ["JOBID", "lr", "seed", "STATE", "TIME", "STEP", "LOSS", "REASON"]
    assert table[1].split("\t")[:4] == ["101_0", "1e-4", "0", "RUNNING"] and len(table) == 7
    listed = desk.type("list").out.splitlines()[1:]
    assert [line.split("\t")[0] for line in listed] == ["101_0", "101_[2-5]"], "a line for each state"
    assert len(desk.type("list", "--json").data) == 5, "in JSON each task is a run"
    for verb in ("logs", "why"):
        said = desk.type(verb, "train")
        assert said.status == 2 and "train is a sweep of 6 tasks" in said.err and "101_1" in said.err


def test_resubmit_of_a_sweep_names_the_lines_that_can_be_typed(desk: Desk) -> None:
    sweep(desk, "sweep", *GRID, *SCRIPT)
    said = desk.type("resubmit", "train")
    assert said.status == 2 and "run its `clusterrun sweep` command again" in said.err
    assert "`clusterrun resubmit train --failed` for those that failed, `clusterrun resubmit 101_0` for one" in said.err


def test_cancel_of_a_sweep_cancels_its_active_tasks(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    name = f"train.{token(desk, data)[:8]}"
    queue(desk, {"i": "101_[1-5]", "T": "PENDING", "j": name}, {"i": "101_0", "T": "COMPLETED", "j": name})
    assert desk.type("cancel", "train").status == 0
    (call,) = [call for call in desk.slurm.calls if call[0] == "scancel"]
    assert call[2:] == [f"101_{index}" for index in range(1, 6)]


def test_resubmit_failed_repeats_those_tasks_with_their_parameters(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    name = f"train.{token(desk, data)[:8]}"
    ends = ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED", "CANCELLED", "RUNNING"]
    queue(desk, *({"i": f"101_{index}", "T": state, "j": name} for index, state in enumerate(ends)))
    again = sweep(desk, "resubmit", "--failed", "train", "--time", "30", job=102)
    assert [task["job_id"] for task in again["tasks"]] == ["102_1", "102_4"], "the same indexes"
    assert [task["parameters"] for task in again["tasks"]] == [data["tasks"][i]["parameters"] for i in (1, 4)]
    for old, new in zip((1, 4), again["tasks"], strict=True):
        own = (Path(new["run_dir"]) / "script.sh").read_text()
        assert work_words(own) == work_words((Path(data["tasks"][old]["run_dir"]) / "script.sh").read_text())
        assert '#SBATCH --time="30"' in own
    newer = f"train.{token(desk, again)[:8]}"
    queue(desk, *({"i": f"101_{i}", "T": state, "j": name} for i, state in enumerate(ends)),
          {"i": "102_[1,4]", "T": "PENDING", "j": newer})  # fmt: skip
    states = desk.type("status", "train", "--json").data
    assert [one["job_id"] for one in states] == ["101_0", "102_1", "101_2", "101_3", "102_4", "101_5"]
    said = desk.type("resubmit", "--failed", "train")
    assert said.status == 0 and "no task of train has failed" in said.err


def test_resubmit_failed_of_several_arrays_keeps_below_maxarraysize(desk: Desk) -> None:
    data = sweep(desk, "sweep", "--grid", "lr=0..6", "--", "train.py", "{lr}", size=3)
    queue(desk, *({"i": f"101_{index % 3}", "T": "FAILED", "j": f"train.{token(desk, data, index)[:8]}"}
                  for index in range(7)))  # fmt: skip
    desk.slurm.forget()
    again = sweep(desk, "resubmit", "--failed", "train", size=3)
    tasks = [line for path in sent(desk) for line in path.read_text().splitlines() if line.startswith("#SBATCH --arr")]
    assert tasks == ['#SBATCH --array="0-2"', '#SBATCH --array="0-2"', '#SBATCH --array="0"']
    assert [task["parameters"]["lr"] for task in again["tasks"]] == [*"0123456"]


def test_the_best_task_by_a_metric(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    desk.slurm.answer("squeue", "")
    for task, values in zip(data["tasks"], ((3.0, 1.5), (2.0, 2.5), (), (4.0,), ("x",), (9.0,)), strict=True):
        lines = "".join(json.dumps({"step": step, "val_loss": one}) + "\n" for step, one in enumerate(values))
        (Path(task["run_dir"]) / "metrics.jsonl").write_text(lines)
    said = desk.type("status", "train", "--best", "val_loss")
    assert said.out.splitlines()[-1] == "best val_loss: 1.5, job 101_0 (lr=1e-4 seed=0)"
    assert desk.type("status", "train", "--best", "val_loss", "--max").out.splitlines()[-1].startswith(
        "best val_loss: 9, job 101_5 "
    )  # fmt: skip
    said = desk.type("status", "train", "--best", "acc")
    assert (
        said.status == 2 and "no run has the metric acc" in said.err and "metrics of these runs: val_loss" in said.err
    )


def test_no_task_is_the_best_while_they_run_and_none_has_logged_the_metric(desk: Desk) -> None:
    data = sweep(desk, "sweep", "--grid", "lr=1,2", "--", "train.py", "{lr}")
    queue(desk, *({"i": f"101_{i}", "T": "RUNNING", "j": f"train.{token(desk, data, i)[:8]}"} for i in range(2)))
    said = desk.type("status", "train", "--best", "val_loss")
    assert said.status == 0 and "101_1" in said.out, said
    assert said.out.splitlines()[-1].startswith("no val_loss yet; print the loss")


def test_the_best_task_by_a_loss_that_was_only_printed(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    desk.slurm.answer("squeue", "")
    assert "print the loss" in desk.type("status", "train", "--best", "loss").err
    for index, loss in enumerate((3.0, 1.5)):
        attempt = Path(data["tasks"][index]["run_dir"]) / "attempts" / f"{token(desk, data, index)}_{index}.0.0"
        attempt.mkdir(parents=True)
        training_progress.write(attempt, TrainingProgress(200, 0.0, 200, loss))
    said = desk.type("status", "train", "--best", "loss")
    assert "best loss: 1.5, job 101_1 " in said.out, said
    assert desk.type("status", "train", "--best", "acc").err.count("metrics of these runs: loss\n") == 1


def test_of_a_sweep_one_task_that_failed_is_named_where_one_is_needed(desk: Desk) -> None:
    data = sweep(desk, "sweep", "--grid", "lr=1,2,3", "--", "train.py", "{lr}")
    desk.slurm.answer("squeue", "")
    for index, status in enumerate((0, 1)):
        folder = Path(data["tasks"][index]["run_dir"]) / "attempts" / f"{token(desk, data, index)}_{index}.0.0"
        folder.mkdir(parents=True)
        (folder / "end.json").write_text(json.dumps(end(status)))
    said = desk.type("why", "train")
    assert said.status == 2 and "give one task, such as 101_1" in said.err, said


def test_a_loss_that_became_nan_is_shown_as_nan_in_the_tables_of_a_sweep(desk: Desk) -> None:
    data = sweep(desk, "sweep", "--grid", "lr=1,30", "--", "train.py", "{lr}")
    desk.slurm.answer("squeue", "")
    for index, (loss, nan_losses) in enumerate(((3.0, None), (None, 12))):
        attempt = Path(data["tasks"][index]["run_dir"]) / "attempts" / f"{token(desk, data, index)}_{index}.0.0"
        attempt.mkdir(parents=True)
        training_progress.write(attempt, TrainingProgress(200, 0.0, 200, loss, nan_losses=nan_losses))
    for words in ([], ["--best", "loss"]):
        lines = desk.type("status", "train", *words).out.splitlines()
        assert [line.split("\t")[5] for line in lines[1:3]] == ["3", "nan"], lines
    assert "best loss: 3, job 101_0 (lr=1)" in desk.type("status", "train", "--best", "loss").out
    page = desk.type("report", "train", "-o", "-").out
    assert '<td class="number">nan</td>' in page and "<dd>nan</dd>" in page
    assert desk.type("status", "101_1").out.count("loss nan") == 1


def test_the_settings_of_every_task_are_checked_in_one_process(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.slurm.answer("squeue", "")
    sets: list[int] = []
    run = shell.run

    def counted(argv: Sequence[str], **kwargs: Any) -> Any:
        sets.extend([kwargs["stdin"].count("\n") + 1] if "check-settings" in argv else [])
        return run(argv, **kwargs)

    monkeypatch.setattr(shell, "run", counted)
    said = desk.type("sweep", "lm", "--gpus-per-node", "0", "--time", "60", "--grid", "lr=1e-4,2e-4,abc,4e-4")
    assert said.status == 2 and "lm: lr must be a number, got 'abc'" in said.err, said
    assert sets == [1, 3] and not sent(desk)


def test_a_refused_sweep_leaves_nothing(desk: Desk) -> None:
    sweep(desk, "sweep", *GRID, *SCRIPT)
    before = {name for name in desk.files() if "runs/" in name or "sweeps/" in name}
    desk.slurm.answer("sbatch", err="sbatch: error: Batch job submission failed: Invalid qos specification\n", status=1)
    said = desk.type("sweep", "--no-check", *GRID, *SCRIPT)
    assert said.status == 3 and "Slurm refused the job" in said.err
    assert {name for name in desk.files() if "runs/" in name or "sweeps/" in name} == before


def test_an_interrupted_sweep_is_completed_by_recover_without_a_double(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterrun.submit.protocol.EMPTY_SECONDS", 0.0)
    monkeypatch.setattr("clusterrun.submit.protocol.KEEP_SENDING", 0.0)
    # the second of three arrays is not delivered
    count = desk.slurm.folder / "count"
    (desk.slurm.folder / "sbatch").write_text(
        f"""#!/bin/bash
[ "$1" != --test-only ] || exit 1
n=$(($(cat {count} 2>/dev/null || echo 0) + 1)); echo $n >{count}
echo "${{@: -1}}" >>{count}.scripts
[ $n != 2 ] || {{ echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }}
echo $((100 + n))
"""
    )
    desk.slurm.answer("scontrol", f"{CONFIG}MaxArraySize            = 2\n")
    desk.slurm.answer("squeue", "")
    said = desk.type("sweep", "--no-check", "--grid", "lr=0..4", "--", "train.py", "{lr}")
    assert said.status == 3 and "3 tasks of the sweep were not submitted: " in said.err
    sweep_id = said.err.rpartition("--recover ")[2].strip()
    assert desk.type("submit", "--recover", sweep_id).status == 0
    states = desk.type("list", "--all", "--json").data
    ids = sorted(str(one["job_id"]) for one in states)
    assert ids == ["101_0", "101_1", "103_0", "103_1", "104_0"]
    scripts = Path(f"{count}.scripts").read_text().split()
    assert scripts[1] == scripts[2] and len(set(scripts)) == 3, "the undelivered array was sent again, no other was"


def test_a_sweep_that_was_killed_before_its_file_was_there_was_not_submitted(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    (file,) = (desk.project / ".clusterrun" / "sweeps").glob("*.json")
    file.unlink()
    desk.slurm.answer("squeue", "")
    for task in data["tasks"]:
        (one,) = (Path(task["run_dir"]) / "submissions").glob("*.json")
        gone = {"state": "submitting", "job_id": "", "submitter": ["", 0, 0], "at": 7}
        one.write_text(json.dumps(json.loads(one.read_text()) | gone))
    said = desk.type("submit", "--recover", data["sweep"])
    assert said.status == 4 and "was not submitted" in said.err and f"clusterrun cancel {data['sweep']}" in said.err
    assert desk.slurm.count("sbatch") == 1
    assert desk.type("cancel", "train").status == 0
    assert not any((desk.project / ".clusterrun" / "runs").iterdir())


def test_a_lost_answer_is_looked_up_for_the_whole_array(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterrun.submit.protocol.EMPTY_SECONDS", 0.0)
    sbatch = desk.slurm.folder / "sbatch"
    fields = rows({"i": "201_[0-1]", "T": "PENDING", "j": "NAME"})
    (desk.slurm.folder / "row").write_text(fields)
    sbatch.write_text(  # the job is in the queue, and sbatch fails
        f"""#!/bin/bash
[ "$1" != --test-only ] || exit 1
name=$(sed -n 's/^#SBATCH --job-name="\\(.*\\)"/\\1/p' "${{@: -1}}")
sed "s/NAME/$name/" {desk.slurm.folder}/row >{desk.slurm.folder}/squeue.out
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""
    )
    said = desk.type("sweep", "--json", "--no-check", "--grid", "lr=0..1", "--", "train.py", "{lr}")
    assert said.status == 0, said
    assert [task["job_id"] for task in said.data["tasks"]] == ["201_0", "201_1"]


def test_a_task_whose_record_missed_the_answer_is_healed_by_the_sweeps_file(desk: Desk) -> None:
    data = sweep(desk, "sweep", *GRID, *SCRIPT)
    run_dir = Path(data["tasks"][4]["run_dir"])
    (one,) = (run_dir / "submissions").glob("*.json")
    document = json.loads(one.read_text())
    one.write_text(json.dumps({**document, "state": "submitting", "job_id": "", "submitter": ["", 0, 0], "at": 7}))
    desk.slurm.answer("squeue", "")
    assert desk.type("status", run_dir.name, "--json").data[0]["job_id"] == "101_4"


def test_what_cannot_be_swept_is_refused_and_nothing_written(desk: Desk) -> None:
    for words, line, hint in (
        (["sweep", "--", "train.py"], "no parameters were given", "--grid lr="),
        (["sweep", "--grid", "lr=1,2", "--", "train.py"], "the parameter lr is not used", "write {lr} in the"),
        (["sweep", "--grid", "lr=1,2", "--", "train.py", "{lr}", "{x}"], "unknown parameter x", "known: {lr}"),
        (["sweep", "--grid", "lr", "0.1", "0.2", "--", "train.py", "{lr}"], "separate values", "--grid lr=0.1,0.2"),
        (["sweep", "--file", "no.csv", "--", "train.py"], "--file no.csv: No such file", "path of a CSV"),
        (["sweep", "--no-check", "--snapshot", "--grid", "lr=1", "--", "train.py", "{lr}"], "not in a git", "git init"),
        (["submit", "--array", "5-1", "--", "train.py"], "not a list of indexes", "0-99%8"),
        (["submit", "--array", "0-1", "--follow", "--", "train.py"], "--array and --follow", "logs ID_0"),
        (["submit", "--array", "0-1", "--chain", "a", "b"], "cannot be combined", "use one of them"),
    ):
        got = refused(desk, *words)
        assert line in got[0] and hint in got[1], got
    assert desk.type("resubmit", "--failed", "nothing").status == 4
