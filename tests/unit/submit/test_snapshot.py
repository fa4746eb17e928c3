"""submit saves the code of a git work tree, says so in one line, and refuses what it cannot save."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterrun.records import code_store, run_record
from clusterrun.records.run_record import RunRecord
from clusterrun.system import work_tree
from tests.support.command_desk import Desk, refused
from tests.support.git_projects import git, make_repository, write_files
from tests.support.run_records import attempt, claim, end

SCRIPT = ["--nodes", "1", "--gpus-per-node", "1", "--", "train.py", "--config", "a.yaml"]


@pytest.fixture
def project(desk: Desk) -> Path:
    make_repository(desk.project, {"a.yaml": "lr: 1\n"})
    return desk.project


def submit(desk: Desk, *words: str, job: int = 101) -> tuple[Path, str]:
    """Return the run's folder, and what was printed beside the JSON."""
    desk.slurm.answer("sbatch", f"{job}\n")
    said = desk.type("submit", "--json", *words)
    assert said.status == 0, said
    return Path(said.data["run_dir"]), said.err


def snapshot(run_dir: Path) -> dict[str, Any] | None:
    file = run_dir / "snapshot.json"
    return json.loads(file.read_text()) if file.exists() else None


def saved(project: Path, run_dir: Path) -> Path:
    return code_store.tree_folder(project, (snapshot(run_dir) or {})["digest"]) / "files"


def test_the_code_is_saved_and_recorded(desk: Desk, project: Path) -> None:
    write_files(project, {"a.yaml": "lr: 2\n", "new.py": "n\n", "notes.txt": "t\n"})
    run_dir, err = submit(desk, *SCRIPT)
    commit = git(project, "rev-parse", "HEAD").strip()
    assert f"clusterrun: code: {commit[:7]} (main) + 2 changed files, saved\n" in err
    found = snapshot(run_dir)
    assert found is not None and (found["root"], found["commit"], found["changed"]) == (str(project), commit, 2)
    files = saved(project, run_dir)
    assert (files / "a.yaml").read_text() == "lr: 2\n" and {
        path.name for path in files.iterdir() if not path.is_symlink()
    } == {"train.py", "a.yaml", "new.py"}
    assert "+lr: 2" in (run_dir / "code.diff").read_text() and (run_dir / "code.diff").stat().st_mode & 0o077 == 0
    assert f"     code  {commit[:7]} (main) + 2 changed files\n" in desk.type("status", run_dir.name).out


def test_the_script_and_the_job_are_the_same_with_and_without(desk: Desk, project: Path) -> None:
    texts = []
    for number, words in enumerate((SCRIPT, ["--no-snapshot", *SCRIPT])):
        script = (submit(desk, *words, job=101 + number)[0] / "script.sh").read_text()
        texts.append(
            [line for line in script.split("\n") if not line.startswith(("#SBATCH --job-name", "export CLUS"))]
        )
    assert texts[0] == texts[1]


def test_git_sees_nothing_of_it(desk: Desk, project: Path) -> None:
    submit(desk, *SCRIPT)
    assert ".clusterrun" not in git(project, "status", "--porcelain")
    assert "(main), saved" in submit(desk, *SCRIPT, job=102)[1], "saved code is no changed file"


@pytest.mark.parametrize("where", ["option", "job file"])
def test_it_can_be_switched_off(desk: Desk, project: Path, where: str) -> None:
    desk.write("clusterrun.toml", "snapshot = false\n" if where == "job file" else "")
    run_dir, err = submit(desk, *(["--no-snapshot"] if where == "option" else []), *SCRIPT)
    assert snapshot(run_dir) is None and "code:" not in err


def test_outside_of_a_work_tree_it_is_off_and_refused_if_typed(desk: Desk) -> None:
    run_dir, err = submit(desk, *SCRIPT)
    assert snapshot(run_dir) is None and "code" not in err
    message, hint = refused(desk, "submit", "--snapshot", *SCRIPT, calls=True)
    assert message == f"--snapshot: {desk.project} is not in a git work tree" and "git init" in hint


def test_a_task_has_no_code_to_save(desk: Desk, project: Path) -> None:
    assert snapshot(submit(desk, "lm", "--no-check")[0]) is None
    message, _ = refused(desk, "submit", "lm", "--no-check", "--snapshot", calls=True)
    assert message == "--snapshot is only for your own code, not lm"


def test_a_script_that_git_ignores_is_saved_too(desk: Desk, project: Path) -> None:
    write_files(project, {".gitignore": "mine/\n", "mine/t.py": "print()\n"})
    run_dir, _ = submit(desk, "--gpus-per-node", "1", "--", "mine/t.py")
    assert (saved(project, run_dir) / "mine/t.py").exists()


def test_a_script_elsewhere_is_named(desk: Desk, project: Path, tmp_path: Path) -> None:
    write_files(tmp_path, {"other/t.py": "print()\n"})
    _, err = submit(desk, "--gpus-per-node", "1", "--", str(tmp_path / "other/t.py"))
    how = "the job will run the file as it is when the job starts"
    assert f"not saved: {tmp_path}/other/t.py is outside {project}; {how}\n" in err


def test_a_project_in_a_subfolder_is_saved_with_the_rest(
    desk: Desk, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(project, {"sub/t.py": "print()\n"})
    monkeypatch.chdir(project / "sub")
    run_dir, _ = submit(desk, "--gpus-per-node", "1", "--", "t.py")
    files = code_store.tree_folder(project / "sub", (snapshot(run_dir) or {})["digest"]) / "files"
    assert (files / "sub/t.py").exists() and (files / "train.py").exists()


@pytest.mark.parametrize("fault", ["fails", "hangs", "refuses"])
def test_a_git_that_cannot_list_the_code_stops_no_submission(
    desk: Desk, project: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "refuses":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(project / ".git", 1234, 1234)
        os.chown(project, 1234, 1234)  # then the records are in the state folder
        expected = "code not saved: fatal: detected dubious ownership in repository"
    else:
        script = "exec sleep 60" if fault == "hangs" else "echo broken >&2; exit 3"
        script = f"#!/bin/sh\n{script}\n"
        (desk.slurm.folder / "git").write_text(script)
        (desk.slurm.folder / "git").chmod(0o755)
        if fault == "hangs":
            monkeypatch.setattr(work_tree, "TIMEOUT", 0.3)
        expected = "code not saved: git: timed out" if fault == "hangs" else "code not saved: broken"
    run_dir, err = submit(desk, *SCRIPT)
    assert expected in err and "the job will run the files as they are when it starts" in err
    assert snapshot(run_dir) is None
    said = desk.type("submit", "--snapshot", *SCRIPT)
    assert said.status == 2 and "clusterrun: --snapshot: git cannot list the files: git: " in said.err


def test_code_that_is_too_large_is_not_saved(desk: Desk, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_store, "LIMIT", 4)
    run_dir, err = submit(desk, *SCRIPT)
    assert snapshot(run_dir) is None and f"code not saved: the code in {project} is too large: " in err


def test_with_snapshot_code_that_is_too_large_is_refused(
    desk: Desk, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_store, "LIMIT", 4)
    desk.slurm.forget()
    said = desk.type("submit", "--snapshot", *SCRIPT)
    assert said.status == 2 and f"the code in {project} is too large: " in said.err
    assert "train.py" in said.err and "use --no-snapshot" in said.err and desk.slurm.count("sbatch") == 0
    assert not [*(project / ".clusterrun/runs").iterdir()]


def test_resume_runs_the_saved_code_and_resubmit_the_current(desk: Desk, project: Path) -> None:
    run_dir, _ = submit(desk, *SCRIPT)
    write_files(project, {"train.py": "syntax error here\n"})
    run = run_record.load(run_dir)
    assert run is not None
    claim(run)
    attempt(run, end=end(143, signal="TERM"))
    desk.slurm.answer("sbatch", "102\n")
    said = desk.type("resume", "101")
    assert said.status == 0, said
    assert "(main), as saved at submission; to run the current code, use `clusterrun resume 101 --cur" in said.err
    write_files(project, {"train.py": "print('new')\n"})
    desk.slurm.answer("sbatch", "103\n")
    said = desk.type("resubmit", "--json", run_dir.name)
    assert "the new run uses the current code" in said.err and "(main) + 1 changed file, saved" in said.err
    assert (saved(project, Path(said.data["run_dir"])) / "train.py").read_text() == "print('new')\n"


def test_resubmit_names_other_code_only_if_the_code_has_changed(desk: Desk, project: Path) -> None:
    write_files(project, {"new.py": "print(1)\n"})
    submit(desk, *SCRIPT)
    other = "the new run uses the current code, not the code of job 101"
    assert other not in desk.type("resubmit", "101", "--dry-run").err
    write_files(project, {"new.py": "print(2)\n"})
    assert other in desk.type("resubmit", "101", "--dry-run").err
    (project / ".git").rename(project.parent / "git")
    assert other not in desk.type("resubmit", "101", "--dry-run").err, "git cannot tell"


def test_a_run_without_its_saved_code_is_not_resumed(desk: Desk, project: Path) -> None:
    run_dir, _ = submit(desk, *SCRIPT)
    run = run_record.load(run_dir)
    assert run is not None
    claim(run)
    attempt(run, end=end(143, signal="TERM"))
    shutil.rmtree(saved(project, run_dir).parent)
    said = desk.type("resume", "101")
    assert said.status == 2 and f"the saved code of run {run.run_id} has been deleted" in said.err
    assert "to continue with the current code: clusterrun resume 101 --current-code" in said.err
    assert desk.type("resume", "101", "--current-code").status == 0


def fail(run_dir: Path) -> RunRecord:
    """Let the job of a run end with status 1."""
    run = run_record.load(run_dir)
    assert run is not None
    claim(run)
    attempt(run, end=end(1))
    return run


def test_resume_with_the_current_code_saves_it_anew_for_the_same_run(desk: Desk, project: Path) -> None:
    write_files(project, {"a.yaml": "lr: 2\n"})
    run_dir, _ = submit(desk, *SCRIPT)
    fail(run_dir)
    write_files(project, {"train.py": "print('fixed')\n", "a.yaml": "lr: 1\n"})
    desk.slurm.answer("sbatch", "102\n")
    said = desk.type("resume", "--json", "101", "--current-code")
    assert said.status == 0 and Path(said.data["run_dir"]) == run_dir, said
    assert "(main) + 1 changed file, saved\n" in said.err and "as saved" not in said.err
    assert (saved(project, run_dir) / "train.py").read_text() == "print('fixed')\n"
    assert "print('fixed')" in (run_dir / "code.diff").read_text() and "lr" not in (run_dir / "code.diff").read_text()


def test_current_code_that_is_that_of_the_commit_leaves_no_diff(desk: Desk, project: Path) -> None:
    write_files(project, {"a.yaml": "lr: 2\n"})
    run_dir, _ = submit(desk, *SCRIPT)
    fail(run_dir)
    git(project, "commit", "-a", "-q", "-m", "second")
    assert desk.type("resume", "101", "--current-code").status == 0
    assert snapshot(run_dir) is not None and not (run_dir / "code.diff").exists()


def test_current_code_that_cannot_be_saved_is_used_as_it_is_and_no_old_code_is_claimed(
    desk: Desk, project: Path
) -> None:
    run_dir, _ = submit(desk, *SCRIPT)
    fail(run_dir)
    (project / ".git").rename(project.parent / "git")
    said = desk.type("resume", "101", "--current-code")
    assert said.status == 0 and "code not saved; the job will run the files as they are when it starts" in said.err
    assert snapshot(run_dir) is None and "     code  " not in desk.type("status", run_dir.name).out


def test_current_code_that_is_refused_leaves_the_saved_code(
    desk: Desk, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, _ = submit(desk, "--snapshot", *SCRIPT)
    fail(run_dir)
    before = snapshot(run_dir)
    monkeypatch.setattr(code_store, "LIMIT", 4)
    desk.slurm.forget()
    said = desk.type("resume", "101", "--current-code")
    assert said.status == 2 and f"the code in {project} is too large: " in said.err
    assert snapshot(run_dir) == before and desk.slurm.count("sbatch") == 0


def test_a_resume_that_slurm_refuses_leaves_the_saved_code(desk: Desk, project: Path) -> None:
    run_dir, _ = submit(desk, "--snapshot", *SCRIPT)
    fail(run_dir)
    before = snapshot(run_dir)
    (project / "train.py").write_text("print('new')\n")
    desk.slurm.forget()
    desk.slurm.answer("sbatch", err="sbatch: error: Invalid account or account/partition combination", status=1)
    assert desk.type("resume", "101", "--current-code", "--account", "typo").status == 3
    assert snapshot(run_dir) == before and desk.slurm.count("sbatch") == 1


def test_a_task_has_no_current_code(desk: Desk, project: Path) -> None:
    fail(submit(desk, "lm", "--no-check")[0])
    said = desk.type("resume", "101", "--current-code")
    assert said.status == 2 and "clusterrun: --current-code is only for your own code, not lm\n" in said.err


def test_an_interrupted_submission_is_not_finished_with_other_code(desk: Desk, project: Path) -> None:
    run_dir, _ = submit(desk, *SCRIPT)
    for file in (run_dir / "submissions").glob("*.json"):
        data = json.loads(file.read_text())
        file.write_text(json.dumps(data | {"state": "submitting", "job_id": "", "submitter": ["", 0, 0]}))
    message, hint = refused(desk, "resume", run_dir.name, "--current-code", calls=True)
    assert "was interrupted, and has its options already" in message and f"clusterrun resume {run_dir.name}" in hint
