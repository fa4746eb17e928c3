"""`diff`: what differs between two runs, a line for what does not, and nothing unbounded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterrun.compare import code as code_of
from clusterrun.compare.code import MOST_LINES
from clusterrun.records import code_store
from clusterrun.records.code_store import Snapshot
from clusterrun.records.run_record import RunRecord
from clusterrun.records.store import Store
from clusterrun.run_folder import training_progress
from clusterrun.run_folder.training_progress import TrainingProgress
from tests.support.command_desk import Desk, refused
from tests.support.git_projects import write_files
from tests.support.run_records import attempt, submitted


def make(desk: Desk, number: int, **more: Any) -> RunRecord:
    return submitted(Store(desk.project, desk.state), number, **more)


def with_code(desk: Desk, run: RunRecord, files: Mapping[str, str], **more: Any) -> None:
    """Record these files as the saved code of a run."""
    write_files(desk.project, files)
    digest = code_store.save(desk.project, desk.project, [(name, "") for name in files])
    found = Snapshot(root=str(desk.project), digest=digest, commit="a1b2c3d4" * 5, branch="main", **more)
    (run.run_dir / "snapshot.json").write_text(json.dumps(found.to_json()))


def with_start(run: RunRecord, packages: Sequence[str], **versions: str) -> None:
    rank = {"rank": 0, "task": 0, "node": "n1", "python": "3.11", "torch": "2.9", "packages": "abc", **versions}
    attempt(run, start={"version": 1, "ranks": [rank]}, packages={"version": 1, "packages": [*packages]})


def with_metrics(run: RunRecord, *losses: float) -> None:
    rows = [json.dumps({"step": step, "loss": loss, "val_accuracy": 1 - loss}) for step, loss in enumerate(losses)]
    (run.run_dir / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows) + '{"step": 99, "lo')


def test_two_runs_without_a_difference_have_a_line_for_each_section(desk: Desk) -> None:
    for number in (1, 2):
        run = make(desk, number, name="train")
        with_code(desk, run, {"train.py": "a\n"})
        with_start(run, ["numpy==1"])
        with_metrics(run, 0.5)
    said = desk.type("diff", "101", "102")
    assert said.status == 0 and said.out.splitlines() == [
        "first        job 101 (train)", "second       job 102 (train)", "options      same",
        "code         same: a1b2c3d (main)", "environment  same", "metrics      same",
    ], said  # fmt: skip


def test_options_have_their_sources_and_tables_are_compared_by_key(desk: Desk) -> None:
    make(desk, 1, sources={"set": ({"lr": 1, "steps": 5}, "--set"), "nodes": (2, "jobs/x.toml")})
    make(
        desk,
        2,
        sources={"set": ({"lr": 2, "steps": 5}, "jobs/x.toml"), "nodes": (2, "--nodes"), "mem": ("1G", "--mem")},
    )
    said = desk.type("diff", "train1", "train2").out
    assert "set.lr  1 (--set) -> 2 (jobs/x.toml)\n" in said and "none -> 1G (--mem)\n" in said
    assert "steps" not in said and "nodes" not in said


def test_the_work_and_its_arguments_are_compared(desk: Desk) -> None:
    for number, words in ((1, ["--lr", "1"]), (2, ["--lr", "2 3"])):
        run = make(desk, number)
        spec = {"work": {"kind": "script", "path": "/p/train.py", "args": words}, "workdir": "/p"}
        (run.run_dir / "spec.json").write_text(json.dumps(spec))
    assert "arguments  --lr 1 -> --lr '2 3'\n" in desk.type("diff", "101", "102").out


def test_the_code_is_compared_file_by_file(desk: Desk) -> None:
    with_code(desk, make(desk, 1), {"train.py": "a\nb\n", "old.py": "o\n", "same.py": "s\n"})
    with_code(desk, make(desk, 2), {"train.py": "a\nB\n", "new.py": "n\n", "same.py": "s\n"}, changed=2)
    said = desk.type("diff", "101", "102").out
    assert "code         a1b2c3d (main) -> a1b2c3d (main) + 2 changed files\n" in said
    assert "3 files differ; the diff is below\n" in said and "same.py" not in said
    for line in ("--- a/train.py", "+++ b/train.py", "-b", "+B", "--- /dev/null", "+++ b/new.py", "--- a/old.py", "-o"):
        assert f"\n{line}\n" in said


def test_binary_and_large_files_are_named_only(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_of, "LARGEST", 1000)
    with_code(desk, make(desk, 1), {"b.bin": "\0a", "large.txt": "a" * 2000})
    with_code(desk, make(desk, 2), {"b.bin": "\0b", "large.txt": "b" * 2000})
    said = desk.type("diff", "101", "102").out
    assert "binary or large file b.bin differs\nbinary or large file large.txt differs\n" in said and "aaa" not in said


def test_the_output_is_bounded_and_safe(desk: Desk) -> None:
    with_code(desk, make(desk, 1), {"t.py": "".join(f"{n}\n" for n in range(5000))})
    with_code(desk, make(desk, 2), {"t.py": "\x1b[31mred\n" * 5000})
    said = desk.type("diff", "101", "102")
    assert len(said.out.splitlines()) < MOST_LINES + 20 and "… the rest of the diff is left out" in said.out
    assert "\x1b" not in said.out
    assert len(desk.type("diff", "101", "102", "--json").data["code"]["diff"].splitlines()) == MOST_LINES + 1


def test_deleted_code_leaves_the_commits(desk: Desk) -> None:
    first, second = make(desk, 1), make(desk, 2)
    with_code(desk, first, {"t.py": "1\n"})
    with_code(desk, second, {"t.py": "2\n"})
    digest = json.loads((first.run_dir / "snapshot.json").read_text())["digest"]
    code_store.tree_folder(desk.project, digest).rename(desk.project / "gone")
    said = desk.type("diff", "101", "102").out
    assert "the saved code of job 101 (train1) cannot be read (deleted?)\n" in said and "the diff is below" not in said


def test_versions_and_packages_are_compared(desk: Desk) -> None:
    first, second = make(desk, 1), make(desk, 2)
    with_start(first, ["numpy==1.0", "rich==2"])
    with_start(second, ["numpy==1.1", "rich==2"], torch="2.10")
    said = desk.type("diff", "101", "102").out
    assert "environment  torch  2.9 -> 2.10\n" in said and "numpy  1.0 -> 1.1\n" in said and "rich" not in said


def test_a_run_that_has_not_started_has_no_environment(desk: Desk) -> None:
    with_start(make(desk, 1), ["numpy==1.0"])
    run = make(desk, 2)
    assert "environment  job 102 (train2) has not started\n" in desk.type("diff", "101", "102").out
    attempt(run)
    assert "environment  job 102 (train2) recorded none\n" in desk.type("diff", "101", "102").out


def test_the_scheduler_of_a_run_that_names_none_is_the_one_it_ran_on(desk: Desk) -> None:
    make(desk, 1, sources={})
    make(desk, 2, sources={"scheduler": ("slurm", "job 101")})
    assert "options      same\n" in desk.type("diff", "101", "102").out
    make(desk, 3, scheduler="local", sources={})
    assert "options      scheduler  slurm -> local\n" in desk.type("diff", "101", "103").out


def test_the_last_and_best_metrics_are_compared(desk: Desk) -> None:
    with_metrics(make(desk, 1), 3.0, 1.0, 2.0)
    with_metrics(make(desk, 2), 3.0, 0.5)
    said = desk.type("diff", "101", "102").out
    for words in ("last step          2 -> 1", "last loss          2 -> 0.5", "best loss          1 -> 0.5",
                  "best val_accuracy  0 -> 0.5"):  # fmt: skip
        assert words in said, said


def test_what_scripts_printed_is_compared_where_they_logged_nothing(desk: Desk) -> None:
    for number, loss in ((1, 0.5), (2, 0.25)):
        folder = attempt(make(desk, number))
        training_progress.write(folder, TrainingProgress(step=9, stepped=1.0, loss=loss))
    assert "metrics      last loss  0.5 -> 0.25\n" in desk.type("diff", "101", "102").out


def test_json_has_the_same(desk: Desk) -> None:
    with_metrics(make(desk, 1, sources={"mem": ("1G", "--mem")}), 3.0)
    make(desk, 2, sources={})
    data = desk.type("diff", "101", "102", "--json").data
    assert [run["job_id"] for run in data["runs"]] == ["101", "102"]
    assert {"name": "mem", "values": ["1G", None], "sources": ["--mem", None]} in data["options"]
    assert data["code"]["snapshots"] == [None, None] and data["metrics"][0]["values"][1] is None


@pytest.mark.parametrize("text", ["", "[]", '{"digest": 5, "root": "/"}', '{"digest": "../../x", "root": "/"}', "{"])
def test_a_damaged_record_counts_as_not_saved(desk: Desk, text: str) -> None:
    for number in (1, 2):
        (make(desk, number).run_dir / "snapshot.json").write_text(text)
    assert "code         not saved\n" in desk.type("diff", "101", "102").out


@pytest.mark.parametrize(("words", "status", "text"), [
    (["101", "101"], 2, "101 and 101 are the same run"), (["101"], 2, "missing argument"),
    (["101", "4"], 4, "4"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(desk: Desk, words: list[str], status: int, text: str) -> None:
    make(desk, 1)
    message, _ = refused(desk, "diff", *words, status=status, calls=True)
    assert text in message.lower()


def test_a_link_is_compared_by_its_target(desk: Desk, tmp_path: Path) -> None:
    for number, target in ((1, "a.py"), (2, "b.py")):
        run = make(desk, number)
        (desk.project / "link.py").unlink(missing_ok=True)
        (desk.project / "link.py").symlink_to(target)
        digest = code_store.save(desk.project, desk.project, [("link.py", "")])
        record = Snapshot(root=str(desk.project), digest=digest).to_json()
        (run.run_dir / "snapshot.json").write_text(json.dumps(record))
    assert "\n-a.py\n+b.py\n" in desk.type("diff", "101", "102").out
