"""Ranks in a container: the runtime that is found, what is mounted, and what is refused before a job is queued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.submit.job_python import WORKER
from tests.support.command_desk import Desk

SHAPE = ("--nodes", "2", "--gpus-per-node", "4")
PYXIS = "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH"


def submit(desk: Desk, *words: str, job: int = 101) -> tuple[dict[str, Any], str]:
    """The specification and the notes of a submission."""
    desk.slurm.answer("sbatch", f"{job}\n")
    said = desk.type(words[0], "--json", *words[1:])
    assert said.status == 0, said
    return json.loads((Path(said.data["run_dir"]) / "spec.json").read_text()), said.err


def put_program(desk: Desk, name: str, text: str = "") -> None:
    path = desk.slurm.folder / name
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


def put_apptainer(desk: Desk) -> None:
    put_program(desk, "srun")
    put_program(desk, "apptainer")
    desk.write("torch.sif", "")


def test_pyxis_is_used_where_srun_has_its_options(desk: Desk) -> None:
    put_apptainer(desk)
    put_program(desk, "srun", PYXIS)
    spec, notes = submit(desk, "submit", *SHAPE, "--container-image", "nvcr.io#nvidia/pytorch:25.06", "--", "train.py")
    assert (spec["container_runtime"], spec["container_image"]) == ("pyxis", "nvcr.io#nvidia/pytorch:25.06")
    assert "not checked: Python and its packages (in the container)" in notes


def test_apptainer_is_used_without_pyxis_and_the_image_is_a_file_of_this_folder(desk: Desk) -> None:
    put_apptainer(desk)
    spec, _ = submit(desk, "submit", *SHAPE, "--container-image", "torch.sif", "--container-mounts", "/data,/a:/b:ro",
                     "--", "train.py")  # fmt: skip
    assert (spec["container_runtime"], spec["container_image"]) == ("apptainer", f"{desk.project}/torch.sif")
    folders = (desk.project, WORKER.parent)
    assert spec["container_mounts"] == [*(f"{one}:{one}" for one in folders), "/data:/data", "/a:/b:ro"]
    assert spec["container_python"] == "python3"


def test_a_folder_that_the_user_mounts_is_mounted_once(desk: Desk) -> None:
    put_apptainer(desk)
    own = f"{desk.project}:{desk.project}:ro"
    spec, _ = submit(desk, "submit", "--container-image", "torch.sif", "--container-mounts", own, "--", "train.py")
    assert [one for one in spec["container_mounts"] if str(desk.project) in one] == [own]


def test_a_parent_that_the_user_mounts_comes_before_the_folders_in_it(desk: Desk) -> None:
    put_apptainer(desk)
    parent = str(desk.project.parent)
    words = ("--container-image", "torch.sif", "--container-mounts", f"{parent}:{parent}:ro")
    spec, _ = submit(desk, "submit", *words, "--", "train.py")
    found = list(spec["container_mounts"])
    assert found.index(f"{parent}:{parent}:ro") < found.index(f"{desk.project}:{desk.project}")


def test_links_above_the_project_and_the_script_are_mounted_and_followed(desk: Desk, tmp_path: Path) -> None:
    put_apptainer(desk)
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "other.py").touch()
    (tmp_path / "link").symlink_to("real")
    spec, _ = submit(desk, "submit", "--container-image", "torch.sif", "--", f"{tmp_path}/link/other.py")
    assert spec["work"]["path"] == f"{tmp_path}/real/other.py"
    assert {f"{tmp_path}/{name}:{tmp_path}/{name}" for name in ("real", "link")} <= {*spec["container_mounts"]}


def test_the_table_of_a_job_file_is_the_options(desk: Desk) -> None:
    put_apptainer(desk)
    desk.write("jobs/a.toml", 'script = "train.py"\n[container]\nimage = "torch.sif"\nmounts = ["/data:/data"]\n'
               'runtime = "apptainer"\npython = "/opt/py/bin/python"\n')  # fmt: skip
    spec, _ = submit(desk, "submit", "a")
    assert spec["container_image"] == f"{desk.project}/torch.sif" and spec["container_mounts"][-1] == "/data:/data"
    assert spec["container_python"] == "/opt/py/bin/python"


def test_the_options_of_srun_are_kept(desk: Desk) -> None:
    put_program(desk, "srun", PYXIS)
    spec, _ = submit(desk, "submit", "--", "srun", "-N2", "--gres=gpu:4", "--container-image=a.b#c/d:e",
                     "--container-mounts=/data:/data,/s:/t", "python", "train.py")  # fmt: skip
    assert spec["container_image"] == "a.b#c/d:e" and spec["container_mounts"][-2:] == ["/data:/data", "/s:/t"]


def test_a_resubmit_repeats_the_container_and_a_venv_replaces_it(desk: Desk) -> None:
    put_apptainer(desk)
    first, _ = submit(desk, "submit", "--container-image", "torch.sif", "--container-mounts", "/d", "--", "train.py")
    again, _ = submit(desk, "resubmit", "101", job=102)
    assert again["container_mounts"] == first["container_mounts"] and again["container_image"]
    for name in ("python", "activate"):
        desk.write(f"env/bin/{name}", "#!/bin/sh\n").chmod(0o755)
    plain, _ = submit(desk, "resubmit", "102", "--venv", "env", "--no-check", job=103)
    assert plain["container_image"] == "" and plain["container_mounts"] == []
    inside, _ = submit(desk, "resubmit", "103", "--container-image", "torch.sif", job=104)
    assert inside["container_image"] and inside["setup"] == []


def test_a_dry_run_names_the_python_of_the_image(desk: Desk) -> None:
    put_apptainer(desk)
    said = desk.type("submit", "--dry-run", "--container-image", "torch.sif", "--", "train.py")
    assert f"   python  python3 in {desk.project}/torch.sif (apptainer)\n" in said.out


@pytest.mark.parametrize(("words", "message", "hint"), [
    (["--container-mounts", "/a"], "--container-mounts needs --container-image", "add --container-image IMAGE"),
    (["--container-image", "torch.sif", "--container-mounts", "a:b"], "not a mount: 'a:b'", "absolute paths"),
    (["--container-image", "torch.sif", "--modules", "cuda"],
     "--modules (--modules) and --container-image (--container-image) conflict", "the ranks use the image's packages"),
    (["--container-image", "none.sif"], "--container-image: no such file: {project}/none.sif", "--no-check"),
    (["--container-image", "org/name:1"], "Apptainer cannot find org/name:1", "docker://org/name:1"),
    (["--container-image", "torch.sif", "--container-runtime", "docker"], "must be pyxis or apptainer", ""),
    (["--container-image", "x", "--container-runtime", "pyxis", "--scheduler", "local"],
     "pyxis is an srun plugin", "use apptainer"),
    (["--sbatch-arg=--container-image=x"], "it conflicts with clusterrun's own options", "use --container-image"),
])  # fmt: skip
def test_a_mistake_is_refused_with_what_to_do(desk: Desk, words: list[str], message: str, hint: str) -> None:
    put_apptainer(desk)
    said = desk.type("submit", *words, "--", "train.py")
    assert said.status == 2 and message.format(project=desk.project) in said.err and hint in said.err, said.err
    assert not (desk.project / ".clusterrun").exists()


def test_a_machine_without_a_runtime_says_what_to_set(desk: Desk) -> None:
    put_program(desk, "srun")
    said = desk.type("submit", "--container-image", "docker://a/b", "--", "train.py")
    assert said.status == 2 and "found neither pyxis (srun --container-image) nor apptainer on this node" in said.err
    assert "--container-runtime apptainer" in said.err


def test_a_folder_that_cannot_be_a_mount_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put_apptainer(desk)
    folder = desk.write("a,b/train.py", "").parent
    desk.write("a,b/clusterrun.toml", "")
    monkeypatch.chdir(folder)
    said = desk.type("submit", "--container-image", str(desk.project / "torch.sif"), "--", "train.py")
    assert said.status == 2 and f"a container cannot mount {folder}: its path contains a comma" in said.err


def test_lines_for_each_node_do_not_enter_a_container(desk: Desk) -> None:
    put_apptainer(desk)
    said = desk.type("render", "--per-node-commands", "--container-image", "torch.sif", "--", "train.py")
    assert said.status == 2 and "--per-node-commands does not support --container-image" in said.err
