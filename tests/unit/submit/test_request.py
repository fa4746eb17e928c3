"""Requests: merging of levels, parsing of the command, checks of the job's Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Command, JobSpec, Module, Script, Task
from clusterrun.submit import environments, request
from clusterrun.submit.accelerate_yaml import check_shape
from clusterrun.submit.job_python import JobPython
from clusterrun.submit.request import SubmitArgs
from tests.support.rendered_scripts import make_script, make_spec


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / "train.py").write_text("")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "data.txt").write_text("")
    return root


def environ(project: Path, **more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(project.parent), **more}


def read(
    project: Path, *words: str, job: str | None = None, cwd: Path | None = None, env: Any = None, **flags: Any
) -> Any:
    values = {name.replace("_", "-"): Value(value, f"--{name}") for name, value in flags.items()}
    return request.load_request(
        SubmitArgs(job=job, command=words, flags=values), cwd or project, env or environ(project)
    )


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (["train.py", "--lr", "1"], Script("{}/train.py", ("--lr", "1"))),
        (["./train.py"], Script("{}/train.py")),
        (["sub/../train.py"], Script("{}/train.py")),
        (["{}/train.py"], Script("{}/train.py")),
        (["-m", "pkg.mod", "-m", "x"], Module("pkg.mod", ("-m", "x"))),
        (["./run.sh", "a"], Command("{}/run.sh", ("a",))),
        (["run.sh"], Command("{}/run.sh")),
        (["env", "true"], Command("/usr/bin/env", ("true",))),
        (["python", "train.py", "x"], Script("{}/train.py", ("x",))),
        (["python3.11", "-u", "-B", "-m", "pkg"], Module("pkg")),
    ],
)
def test_the_work_is_recognised(project: Path, words: list[str], work: Any) -> None:
    found = request.parse_work(
        [w.replace("{}", str(project)) for w in words], project, environ(project), lambda line: None
    )
    where = "name" if isinstance(work, Module) else "path"
    assert type(found) is type(work) and found.args == work.args
    assert getattr(found, where) == getattr(work, where).replace("{}", str(project))


def test_a_link_keeps_its_name(project: Path) -> None:
    (project / "latest.py").symlink_to("train.py")
    found = request.parse_work(["latest.py"], project, environ(project), lambda line: None)
    assert found == Script(f"{project}/latest.py")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.txt"], "neither a Python script nor an executable: data.txt"),
        (["sub"], "no such script: sub"),
        (["./sub"], "no such script: ./sub"),
        (["train.py/x"], "no such script"),
        (["x" * 5000], "no such script"),
        (["train.py", ":"], "the argument ':'"),
    ],
)
def test_what_is_no_work(project: Path, words: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        request.parse_work(words, project, environ(project), lambda line: None)


def test_levels(project: Path) -> None:
    (project / "clusterrun.toml").write_text('job = "sft"\nnodes = 2\npartition = "p"\nenv.A = "1"\nenv.B = "1"\n')
    (project / "jobs").mkdir()
    (project / "jobs" / "sft.toml").write_text('task = "lm"\nnodes = 3\nenv.B = "2"\nset.steps = 5\nset.lr = 1.5\n')
    found = read(
        project, cwd=project / "sub", env=environ(project, SBATCH_QOS="q", SLURM_ACCOUNT="a"), set={"steps": "9"}
    )
    assert found.root == project
    assert found.work == Task("lm", (("steps", "9"), ("lr", 1.5)))
    assert found.values["nodes"] == Value(3, "jobs/sft.toml")
    assert found.values["env"].value == {"A": "1", "B": "2"}
    assert found.values["qos"] == Value("q", "SBATCH_QOS") and found.values["account"] == Value("a", "SLURM_ACCOUNT")
    assert read(project, "train.py", nodes=7).values["nodes"] == Value(7, "--nodes")
    assert "set" not in read(project, "train.py").values


def test_a_job_file_may_name_a_script(project: Path) -> None:
    (project / "clusterrun.toml").write_text("")
    (project / "jobs").mkdir()
    (project / "jobs" / "mine.toml").write_text('script = "train.py"\nargs = ["--x", "a b"]\n')
    assert read(project, job="mine", cwd=project / "sub").work == Script(f"{project}/train.py", ("--x", "a b"))


def test_words_after_a_job_files_name_are_further_arguments(project: Path) -> None:
    (project / "jobs").mkdir()
    (project / "jobs" / "mine.toml").write_text('script = "train.py"\nargs = ["--lr", "1"]\n')
    (project / "jobs" / "package.toml").write_text('module = "package.train"\n')
    assert read(project, "--lr", "2", job="mine").work == Script(f"{project}/train.py", ("--lr", "1", "--lr", "2"))
    assert read(project, "lr=2", job="package").work == Module("package.train", ("lr=2",))
    for words in (("train.py",), ("-m", "package.train"), ("torchrun.sh", "train.py"), ("sh", "-c", "true")):
        with pytest.raises(RequestError, match="both a job file and a script were given"):
            read(project, *words, job="mine")


def test_the_default_job(project: Path) -> None:
    found = read(project)
    assert found.work == Task("lm") and found.values["job-name"].value == "lm" and found.scheduler == "auto"


def test_the_jobs_python(project: Path) -> None:
    assert read(project).values["python"] == Value(sys.executable, "default: clusterrun's own")
    venv = project / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to("/bin/sh")
    assert read(project, env=environ(project, VIRTUAL_ENV=str(venv))).values["python"] == Value(
        f"{venv}/bin/python", "VIRTUAL_ENV"
    )
    assert read(project, env=environ(project, CONDA_PREFIX=str(venv))).values["python"].source == "CONDA_PREFIX"
    assert read(project, env=environ(project, VIRTUAL_ENV="/gone")).values["python"].value == sys.executable
    assert read(project, python="sh").values["python"] == Value("/usr/bin/sh", "--python")
    with pytest.raises(RequestError, match="no such program: none"):
        read(project, python="none")


def test_an_environment_in_a_folder_that_may_not_be_entered_counts_for_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(environments, "Path", type("Closed", (type(Path()),), {"is_file": refuse}))
    assert environments.find_python(None, {"VIRTUAL_ENV": "/closed"}).value == sys.executable


@pytest.mark.parametrize(
    ("has_gpus", "gpus", "why"), [(True, 1, "GPUs found"), (False, 0, "no GPUs found"), (None, 0, "no cluster")]
)
def test_gpus_by_default(project: Path, has_gpus: bool | None, gpus: int, why: str) -> None:
    spec, notices = request.resolve_spec(read(project, "train.py"), has_gpus=has_gpus, local=False)
    assert (spec.gpus_per_node, notices) == (gpus, []) and why in spec.sources["gpus-per-node"].source


def test_a_bad_value_in_a_file_is_refused_with_the_file_and_the_line(project: Path) -> None:
    (project / "clusterrun.toml").write_text('# ours\ntotal-time = "soon"\n\n[profile.big]\nnodes = 0\n')
    (project / "jobs").mkdir()
    (project / "jobs/a.toml").write_text('script = "train.py"\n\ntime = "99:99:99"\n')
    for options, message in (
        ({"job": "a", "total_time": "5d"}, "--time: '99:99:99' is not a valid time limit (jobs/a.toml:3)"),
        ({"job": "a", "time": "2h"}, "--total-time: 'soon' is not a duration (clusterrun.toml:2)"),
    ):
        with pytest.raises(RequestError) as caught:
            request.resolve_spec(read(project, **options), has_gpus=None, local=False)
        assert caught.value.message == message
    known = request.load_request(SubmitArgs(command=("train.py",), profile="big"), project, environ(project))
    with pytest.raises(RequestError, match=r"--nodes must be at least 1, not 0 \(clusterrun.toml:5\)"):
        request.resolve_spec(known, has_gpus=None, local=False)


def test_minutes_and_seconds_are_named_because_they_are_easily_meant_as_hours(project: Path) -> None:
    (project / "clusterrun.toml").write_text('on-failure = "hold=2:00"\n')
    times = {"time": "1:30", "total_time": "1h30m", "resume_args": "--resume"}
    spec, notices = request.resolve_spec(read(project, "train.py", **times), has_gpus=None, local=False)
    assert spec.time_limit == 90 and spec.total_time == 5400
    assert notices == [
        "--time 1:30 is 1 min 30 s, as in sbatch; use 1h30m for hours",
        "--on-failure 2:00 is 2 min 0 s, as in sbatch (clusterrun.toml); use 2h for hours",
    ]


def test_a_time_with_units_reaches_sbatch_in_its_own_format(project: Path) -> None:
    typed = (("1h30m", "1:30:00"), ("2d", "48:00:00"), ("1-12", "1-12"), ("90", "90"))
    for text, directive in typed:
        spec, notices = request.resolve_spec(read(project, "train.py", time=text), has_gpus=None, local=False)
        assert (spec.directive("time"), notices) == (directive, [])


def test_local_knows_one_argument_of_sbatch(project: Path) -> None:
    kill = "--kill-on-invalid-dep=yes"
    for arguments, ignored in (([kill], []), (["--hold", kill], ["the local scheduler ignores --sbatch-arg"])):
        asked = read(project, "train.py", dependency="afterok:L1", sbatch_arg=arguments)
        spec, notices = request.resolve_spec(asked, has_gpus=False, local=True)
        assert (spec.sbatch_args, notices) == ((kill,), ignored)


def test_what_local_has_no_use_for(project: Path) -> None:
    asked = read(project, "train.py", partition="p", mem="1G", time="5", gres="gpu:3")
    spec, notices = request.resolve_spec(asked, has_gpus=False, local=True)
    assert notices == ["the local scheduler ignores --mem, --partition, --gres"]
    assert (spec.gpus_per_node, spec.tasks_per_node, spec.time_limit, spec.directive("partition")) == (3, 3, 300, "")
    quiet = read(project, "train.py", env=environ(project, SBATCH_PARTITION="p", SLURM_ACCOUNT="a"))
    assert request.resolve_spec(quiet, has_gpus=False, local=True)[1] == [], (
        "what stands in the shell for Slurm is no news"
    )


def check_python(spec: JobSpec, env: Mapping[str, str]) -> None:
    request.check_python(spec, JobPython(spec.python), env)


def test_the_python_is_asked_whether_it_can(project: Path) -> None:
    env = environ(project)
    check_python(make_spec(python=sys.executable), env)
    (project / "torch.py").write_text("")
    with pytest.raises(RequestError, match="cannot run") as error:
        check_python(make_spec(python="/bin/false"), env)
    with pytest.raises(RequestError, match="cannot run"):
        check_python(make_spec(python="/nowhere"), env)
    fake = project / "fake"
    fake.write_text("#!/bin/sh\necho torch transformers\n")
    fake.chmod(0o755)
    with pytest.raises(RequestError, match=r"does not have torch or transformers") as error:
        check_python(make_spec(Task("lm"), python=str(fake)), env)
    assert error.value.hint.startswith(f"{fake} -m pip install torch transformers")


def test_packages_do_not_go_into_what_pipx_made_for_clusterrun_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "python"
    own.write_text("#!/bin/sh\necho torch\n")
    own.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own))
    with pytest.raises(RequestError, match=r"does not have torch$") as error:
        check_python(make_spec(python=str(own)), {"PATH": os.environ["PATH"]})
    assert error.value.hint == "activate the environment that has it, or choose it with --venv, --conda or --python"


def test_beside_a_container_the_jobs_python_needs_only_torch(tmp_path: Path) -> None:
    script, python = tmp_path / "train.py", tmp_path / "python"
    script.write_text("in the image's Python this is no error")
    spec = make_spec(Script(str(script)), python=sys.executable, container_image="a#b", container_runtime="pyxis")
    check_python(spec, environ(tmp_path))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(RequestError, match=r"does not have torch$"):
        check_python(replace(spec, python=str(python)), environ(tmp_path))


def test_torch_that_is_too_old_is_refused_with_the_command_that_replaces_it(tmp_path: Path) -> None:
    package, python = tmp_path / "torch", tmp_path / "python"
    package.mkdir()
    (package / "__init__.py").write_text("")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {"PATH": os.environ["PATH"]}
    spec = make_spec(Command("true"), python=str(python))
    for version in ("2.8.0", "2.13.1+cpu", "3.0.0a0+git123", "unknown"):
        (package / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
        check_python(spec, env)
    for version in ("2.7.1+cu118", "1.13.0"):
        (package / "version.py").write_text(f"__version__ = '{version}'\n")
        with pytest.raises(RequestError, match=r"has torch [12]\.\d+; clusterrun needs 2\.8 or newer") as error:
            check_python(spec, env)
        assert "pip install 'torch>=2.8'" in (error.value.hint or "")


@pytest.mark.parametrize("line", ["if true", "echo 'x", 'echo "x', "cat <<E", ")", "fi", "f() {"])
def test_setup_is_read_by_bash_line_by_line(project: Path, line: str) -> None:
    with pytest.raises(RequestError, match="--setup: syntax error in line 1") as error:
        request.check_setup(make_spec(setup=[line]), "", environ(project))
    assert error.value.hint


def test_good_setup_and_a_bad_script(project: Path) -> None:
    lines = ["module load x # y", "a=1; b() { :; }", "[[ x ]] && y"]
    request.check_setup(make_spec(setup=lines), "true\n", environ(project))
    with pytest.raises(RequestError, match="syntax error in the rendered script"):
        request.check_setup(make_spec(), "if\n", environ(project))
    swallowing = make_spec(setup=["echo \\"])  # alone it is shell; in the script it would swallow what follows
    with pytest.raises(RequestError, match="syntax error in the rendered script"):
        request.check_setup(swallowing, make_script(swallowing), environ(project))


def test_no_fp16_is_the_precision_of_the_task_and_a_typed_one_wins_over_the_job_file(project: Path) -> None:
    (project / "jobs").mkdir()
    (project / "jobs" / "sft.toml").write_text('task = "lm"\nset.precision = "bf16"\n')
    assert read(project, job="sft").work == Task("lm", (("precision", "bf16"),))
    assert read(project, job="sft", fp16=False).work == Task("lm", (("precision", "fp32"),))
    assert read(project, job="sft", fp16=True).work == Task("lm", (("precision", "fp16"),))
    assert read(project, job="sft", fp16=True).values["set"].source.startswith("--fp16"), "it is typed again as --set"


def test_fp16_is_refused_for_a_script_and_beside_a_typed_precision(project: Path) -> None:
    with pytest.raises(RequestError, match="--fp16 is only for built-in tasks"):
        read(project, "train.py", fp16=True)
    with pytest.raises(RequestError, match="--fp16 conflicts with --set precision"):
        read(project, fp16=True, set={"precision": "bf16"})


YAML = "compute_environment: LOCAL_MACHINE\nnum_machines: {}\nnum_processes: {}\nmixed_precision: bf16\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (YAML.format(2, 8), ""),
        ("mixed_precision: bf16\n", ""),
        (
            YAML.format(1, 4),
            "sets num_machines to 1, but the job uses 2",
        ),
        (YAML.format(2, 4), "sets num_processes to 4, but the job uses 8"),
        (YAML.format(2, -1), "sets num_processes to -1"),
        ("compute_environment: AMAZON_SAGEMAKER\n", "AMAZON_SAGEMAKER is not supported"),
        ("a: [", "cannot be parsed"),
        ("just text", "not an accelerate configuration"),
    ],
)
def test_accelerates_yaml_must_fit_the_job(tmp_path: Path, text: str, message: str) -> None:
    pytest.importorskip("yaml")
    config = tmp_path / "c.yaml"
    config.write_text(text)
    job = make_spec(
        nodes=2, gpus_per_node=4, python=sys.executable, launcher="accelerate", accelerate_config=str(config)
    )
    env = {"PATH": "/usr/bin:/bin"}
    if not message:
        check_shape(job, JobPython(job.python), env)
        return
    with pytest.raises(RequestError) as caught:
        check_shape(job, JobPython(job.python), env)
    assert message in str(caught.value) and str(config) in str(caught.value)


def test_a_relative_yaml_starts_from_the_current_folder(project: Path) -> None:
    request = read(project, "../train.py", cwd=project / "sub", launcher="accelerate", accelerate_config="c.yaml")
    assert request.values["accelerate-config"].value == str(project / "sub" / "c.yaml")
