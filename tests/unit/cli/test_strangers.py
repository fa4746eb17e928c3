"""A project that a stranger wrote: commands that only read run nothing of it and connect to nothing.

The project is full of traps: programs and hooks that leave a file when they run, and addresses of a socket that must
see no connection. ``docs/security.md`` lists what a stranger can write and what reads it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from clusterrun.base.fields import FIELD
from clusterrun.cli.common import agent
from clusterrun.cli.mcp import Denied, plan_submit
from tests.support.command_desk import Desk
from tests.support.patience import HUNG

SHAPE = ("--nodes", "1", "--gpus-per-node", "1", "--time", "1:00")


class Traps:
    """A project whose programs write their names to ``sprung``, and a port that must see no connection."""

    def __init__(self, desk: Desk, port: socket.socket) -> None:
        self.desk, self._port = desk, port
        self._sprung = desk.project.parent / "sprung"
        self.address = f"http://127.0.0.1:{port.getsockname()[1]}/"

    def program(self, name: str) -> Path:
        """Make a program of the project that leaves a line when it runs."""
        path = self.desk.write(name, f"#!/bin/sh\necho {name} >>{shlex.quote(str(self._sprung))}\n")
        path.chmod(0o755)
        return path

    def environment(self, name: str) -> Path:
        """Make a virtual environment of the project whose Python is a trap."""
        self.program(f"{name}/bin/python")
        self.desk.write(f"{name}/pyvenv.cfg", "")
        return self.desk.project / name

    def module(self, name: str) -> str:
        """Make a folder with a module that Python imports when it starts, and return the folder."""
        code = f"open({str(self._sprung)!r}, 'a').write('{name}\\n')\n"
        return str(self.desk.write(f"{name}/sitecustomize.py", code).parent)

    def forget(self) -> None:
        self._sprung.unlink(missing_ok=True)

    def sprung(self) -> list[str]:
        """The names of the traps that were run, and one more for a connection."""
        lines = self._sprung.read_text().split() if self._sprung.exists() else []
        try:
            self._port.accept()[0].close()
        except BlockingIOError:
            return lines
        return [*lines, "a connection"]


@pytest.fixture
def traps(desk: Desk) -> Iterator[Traps]:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        port.listen()
        port.setblocking(False)
        for name in ("ssh", "rsync", "git"):
            trap = desk.slurm.folder / name
            trap.write_text(f"#!/bin/sh\necho {name} >>{shlex.quote(str(desk.project.parent / 'sprung'))}\n")
            trap.chmod(0o755)
        own = desk.project.parent / "own/bin/python"  # the user's active environment; a real Python takes a second
        own.parent.mkdir(parents=True)
        own.write_text("#!/bin/sh\necho\n")
        own.chmod(0o755)
        desk.set(VIRTUAL_ENV=str(own.parents[1]))
        yield Traps(desk, port)


READING: tuple[Sequence[str], ...] = (
    ("list",), ("list", "--all"), ("status",), ("logs",), ("why",), ("free",),
    ("render", "lm", *SHAPE), ("render", "--explain", *SHAPE, "--", "train.py"),
    ("submit", "lm", "--dry-run", *SHAPE), ("submit", "--dry-run", *SHAPE, "--", "train.py"),
    ("submit", "--dry-run", *SHAPE, "--", "accelerate", "launch", "--config_file", "a.yaml", "train.py"),
    ("sweep", "lm", "--dry-run", *SHAPE, "--grid", "lr=1e-4,1e-3"), ("plan", "lm"), ("free", "lm", *SHAPE),
)  # fmt: skip


def start_nothing(traps: Traps, *commands: Sequence[str]) -> None:
    for words in commands:
        said = traps.desk.type(*words)
        assert traps.sprung() == [], words
        assert "Traceback" not in said.err


def every_line(traps: Traps) -> list[str]:
    """Lines of TOML, each of which names something that could run or be connected to."""
    module = traps.module("lib")
    traps.desk.write("a.yaml", "num_processes: 1\n")
    return [
        f'env.PYTHONPATH = "{module}"', f'env.LD_PRELOAD = "{module}/x.so"', f'env.HF_ENDPOINT = "{traps.address}"',
        f'env.BASH_ENV = "{traps.program("bashrc")}"',
        f'setup = ["{traps.program("setup")}", "$({traps.program("substituted")})"]',
        f'notify = "json://{traps.address.removeprefix("http://")}"',
    ]  # fmt: skip


def test_no_reading_command_runs_what_a_projects_file_names(traps: Traps) -> None:
    environment = traps.environment("env")
    traps.desk.write("clusterrun.toml", "\n".join([f'python = "{environment}/bin/python"', *every_line(traps)]))
    start_nothing(traps, *READING)


@pytest.mark.parametrize(
    "line", ['python = "./env/bin/python"', 'venv = "env"', 'conda = "./env"', "[environment]\nuv = '.'"]
)
def test_a_dry_run_starts_no_python_of_a_projects_file_and_says_so(traps: Traps, line: str) -> None:
    traps.environment("env")
    traps.environment(".venv")
    traps.desk.write("clusterrun.toml", line)
    said = traps.desk.type("submit", "--dry-run", *SHAPE, "--", "train.py")
    assert said.status == 0 and traps.sprung() == []
    assert "not checked: Python, its packages and settings (" in said.err and "clusterrun.toml chose it" in said.err
    traps.desk.write("clusterrun.toml", "")
    traps.desk.write("jobs/own.toml", f"script = 'train.py'\n{line}")
    assert "jobs/own.toml chose it" in traps.desk.type("submit", "--dry-run", "own", *SHAPE).err
    said = traps.desk.type("plan", "own")
    assert said.status == 2 and traps.sprung() == []


def test_a_python_of_the_user_gets_no_variable_that_runs_code_in_it(traps: Traps) -> None:
    traps.desk.write("clusterrun.toml", "\n".join([*every_line(traps), 'env.HF_HOME = "hf"']))
    got = traps.desk.project.parent / "got"
    own = traps.desk.project.parent / "own/bin/python"
    own.write_text(f"#!/bin/sh\n/usr/bin/env | /usr/bin/cut -d= -f1 >>{shlex.quote(str(got))}\necho\n")
    start_nothing(traps, ("submit", "lm", "--dry-run", *SHAPE), ("plan", "lm"))
    named = {"PYTHONPATH", "LD_PRELOAD", "BASH_ENV", "HF_ENDPOINT", "HF_HOME"}
    assert named & set(got.read_text().split()) == {"HF_HOME"}
    traps.desk.type("submit", "lm", "--dry-run", *SHAPE, "--env", "PYTHONPATH=typed")
    assert named & set(got.read_text().split()) == {"HF_HOME", "PYTHONPATH"}, "the user's own variables count"


def test_the_users_own_python_is_started(traps: Traps) -> None:
    environment = traps.environment("env")
    traps.desk.write("clusterrun.toml", 'venv = "env"')
    traps.desk.type("submit", "--dry-run", *SHAPE, "--venv", "env", "--", "train.py")
    assert traps.sprung() == ["env/bin/python"], "it was typed"
    traps.forget()
    traps.desk.set(VIRTUAL_ENV=str(environment))
    traps.desk.type("submit", "--dry-run", *SHAPE, "--", "train.py")
    assert traps.sprung() == ["env/bin/python"], "it is the active one"


def test_a_python_is_started_by_later_commands_once_a_job_was_submitted_with_it(traps: Traps) -> None:
    traps.environment("env")
    traps.environment("other")
    traps.desk.write("clusterrun.toml", 'venv = "env"')
    traps.desk.slurm.answer("sbatch", "123\n")
    assert traps.desk.type("submit", *SHAPE, "--", "train.py").status == 0
    traps.forget()
    said = traps.desk.type("submit", "--dry-run", *SHAPE, "--", "train.py")
    assert traps.sprung() == ["env/bin/python"] and "not checked" not in said.err
    traps.forget()
    traps.desk.write("clusterrun.toml", 'venv = "other"')
    start_nothing(traps, ("submit", "--dry-run", *SHAPE, "--", "train.py"))


def test_a_dry_run_of_a_resubmit_starts_the_python_that_was_typed_for_its_job(traps: Traps) -> None:
    traps.environment("env")
    traps.desk.slurm.answer("sbatch", "123\n")
    assert traps.desk.type("submit", "--venv", "env", *SHAPE, "--", "train.py").status == 0
    traps.forget()
    said = traps.desk.type("resubmit", "123", "--dry-run")
    assert said.status == 0 and traps.sprung() == ["env/bin/python"] and "not checked" not in said.err


def test_programs_and_modules_of_the_project_are_not_taken_for_those_of_the_system(traps: Traps) -> None:
    for name in ("squeue", "sbatch", "scontrol", "bash", "git", "ssh", "python", "python3", "py-spy"):
        traps.program(name)
    for name in ("torch", "click", "rich", "json", "jinja2", "clusterrun", "sitecustomize", "usercustomize"):
        traps.desk.write(f"{name}.py", f"open({str(traps.desk.project.parent / 'sprung')!r}, 'a').write('{name}\\n')\n")
    start_nothing(traps, *READING)
    traps.desk.set(VIRTUAL_ENV=sys.prefix)
    program = str(Path(sys.prefix, "bin", "clusterrun"))
    for words in ((program, "submit", "lm", "--dry-run", *SHAPE), (program, "list")):
        assert subprocess.run(words, capture_output=True, timeout=HUNG).returncode == 0
    assert traps.sprung() == []


def test_the_text_of_a_projects_files_is_not_run(traps: Traps) -> None:
    traps.program("trap")
    traps.desk.write("train.py", "open('../sprung', 'w').write('train.py')\n")
    traps.desk.write("run.sh", "./trap\ntorchrun --nproc_per_node=$(./trap) train.py\n")
    traps.desk.write("data.yaml", "num_processes: !!python/object/apply:os.system ['./trap']\n")
    start_nothing(
        traps,
        ("submit", "--dry-run", *SHAPE, "--", "train.py"),
        ("submit", "--dry-run", *SHAPE, "--", "bash", "run.sh"),
        ("submit", "--dry-run", *SHAPE, "--", "./trap"),
        ("render", *SHAPE, "--accelerate-config", "data.yaml", "--launcher", "accelerate", "--", "train.py"),
        ("plan", "lm", "--set", "data=data.yaml"),
    )
    text = "{{ ''.__class__.__mro__[1].__subclasses__() | sh }} {{ spec.__init__.__globals__ | sh }} {{ token | sh }}"
    traps.desk.write("own.j2", text)
    traps.desk.write("clusterrun.toml", 'template = "own.j2"\n')
    said = traps.desk.type("render", *SHAPE, "--", "train.py")
    assert said.status == 2 and "unsafe" in said.err


def test_records_that_came_with_a_project_are_data(traps: Traps) -> None:
    environment = traps.environment("env")
    traps.desk.slurm.answer("sbatch", "123\n")
    sent = traps.desk.type("submit", *SHAPE, "--json", "--", "train.py").data
    shutil.rmtree(traps.desk.state)  # what comes with a clone is only the project
    record = Path(sent["run_dir"]) / "record.json"
    spec = Path(sent["run_dir"]) / "spec.json"
    python = json.loads(spec.read_text())["python"]
    for path in (record, spec):
        path.write_text(path.read_text().replace(python, f"{environment}/bin/python"))
    (Path(sent["run_dir"]) / "notify.json").write_text(json.dumps({"name": "x", "target": traps.address}))
    run, job = sent["run_id"], "123"
    start_nothing(
        traps, *READING, ("status", job), ("why", job), ("why", job, "--stacks"), ("logs", job), ("diff", job, job),
        ("report", job, "-o", "../report.html"),
        ("check", job), ("resubmit", job, "--dry-run"), ("status", run), ("clean", "--dry-run"),
    )  # fmt: skip


def test_completion_reads_no_project_and_connects_to_nothing(traps: Traps) -> None:
    environment = traps.environment("env")
    traps.desk.write("clusterrun.toml", f'python = "{environment}/bin/python"\nremote = "127.0.0.1"\n')
    for typed in ("clusterrun ", "clusterrun submit --", "clusterrun status "):
        said = traps.desk.process(
            env={"_CLUSTERRUN_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()))}
        )
        assert said.status == 0 and traps.sprung() == [], typed


def test_a_host_of_a_projects_file_is_not_connected_to(traps: Traps) -> None:
    traps.desk.write("clusterrun.toml", 'remote = "127.0.0.1"\nsecret = ["HF_TOKEN"]\n')
    traps.desk.set(HF_TOKEN="hf_" + "a" * 30)
    for words in (*READING, ("submit", *SHAPE, "--", "train.py"), ("cancel", "5"), ("wait", "5")):
        said = traps.desk.type(*words)
        assert said.status == 2 and traps.sprung() == [], words
        assert "runs commands on 127.0.0.1" in said.err and "clusterrun remote setup 127.0.0.1" in said.err


TYPED_BY_AGENTS: tuple[Sequence[str], ...] = (
    ("--remote", "127.0.0.1"), ("--remote=127.0.0.1",), ("--secret", "HF_TOKEN"), ("--secret=HF_TOKEN",),
    ("--python", "env/bin/python"), ("--python=env/bin/python",), ("--venv", "env"), ("--conda=./env",),
    ("--notify", "http://127.0.0.1/"), ("--setup", "true"), ("--modules=x",), ("--template", "t.j2"),
    ("--sbatch-arg=--hold",), ("--nodelist", "node1"), ("--container-image=docker://x",), ("--accelerate-config=a",),
    ("--stage-env",), ("--shared",), ("--no-check",), ("--script",), ("--follow",), ("--wait",), ("--ladder",),
    ("--chain",), ("--array=0-9",), ("--recover=20261121-034501-k3v7qa",), ("--help",), ("-h",),
    ("--pyth=env/bin/python",), ("../other/jobs/x.toml",), ("/etc/x.toml",), ("~/x.toml",),
    ("--helper-job",), ("--notify-on=done",), ("--container-mounts=a:b",), ("--container-runtime=pyxis",),
    ("--container-python=x",), ("--master-port=2000",), ("--mail-type=END",),
)  # fmt: skip


@pytest.fixture
def in_process(traps: Traps, monkeypatch: pytest.MonkeyPatch) -> Traps:
    """Run the server's commands in this process: a program of its own for each costs half a second."""

    def run(verb: str, *words: str) -> object:
        monkeypatch.setenv("CLUSTERRUN_AGENT", "1")
        said = traps.desk.type(verb, "--json", *words)
        try:
            envelope = json.loads(said.out)
        except ValueError:
            raise Denied(said.err) from None
        if envelope.get("error"):
            raise Denied(envelope["error"]["message"])
        return envelope["data"]

    monkeypatch.setattr("clusterrun.cli.mcp.run_verb", run)
    return traps


def test_an_agent_may_type_only_options_of_the_allow_list(in_process: Traps) -> None:
    in_process.environment("env")
    for words in TYPED_BY_AGENTS:
        with pytest.raises(Denied):
            plan_submit([*words, *SHAPE, "--", "train.py"])
        assert in_process.sprung() == [], words
    for line in ("--nodelist=node1", "--container-image=x"):
        with pytest.raises(Denied, match="cannot be used through this server"):
            plan_submit([*SHAPE, "--", "srun", line, "python", "train.py"])
    with pytest.raises(Denied):
        plan_submit(["--comment", "--", "--remote=127.0.0.1", *SHAPE])
    assert "train.py" in plan_submit([*SHAPE, "--comment=x", "--env", "A=1", "--", "train.py", "--remote", "x"])


def test_every_option_of_a_job_is_on_the_agents_list_or_refused_above() -> None:
    refused = {words[0].partition("=")[0].removeprefix("--") for words in TYPED_BY_AGENTS}
    assert FIELD.keys() <= agent.FIELDS_OF_AGENTS | refused and not agent.FIELDS_OF_AGENTS & refused


def test_an_agents_plan_starts_no_program_of_the_project(in_process: Traps) -> None:
    environment = in_process.environment("env")
    in_process.desk.set(VIRTUAL_ENV=str(environment))  # not even the active one
    in_process.desk.write("clusterrun.toml", 'venv = "env"\nsetup = ["./env/bin/python"]\nremote = "127.0.0.1"\n')
    in_process.desk.write("jobs/own.toml", 'script = "train.py"\npython = "./env/bin/python"\nsecret = []\n')
    in_process.desk.write("a.yaml", "num_processes: 1\n")
    plan = json.loads(plan_submit([*SHAPE, "--", "train.py"]))
    assert plan["gpu_hours"] == 1 / 60 and "env/bin/activate" in plan["script"]
    plan_submit([*SHAPE, "lm"])
    plan_submit(["own", *SHAPE])
    with pytest.raises(Denied, match="starts no program"):
        plan_submit([*SHAPE, "--", "accelerate", "launch", "--config_file", "a.yaml", "train.py"])
    assert in_process.sprung() == []


@pytest.mark.parametrize("line", [
    "notify = '{address}'", "notify = './env/bin/python'", "template = 'own.j2'", "sbatch-arg = ['--hold']",
    "shared = true", "nodelist = 'node1'",
])  # fmt: skip
def test_what_a_file_sets_is_checked_for_agents_after_it_is_merged(in_process: Traps, line: str) -> None:
    text = line.format(address=in_process.address)
    name = line.partition(" ")[0]
    in_process.desk.write("own.j2", "{{ token | sh }}")
    in_process.desk.write("clusterrun.toml", f"[profile.x]\n{text}\n")
    plan_submit([*SHAPE, "--", "train.py"])
    with pytest.raises(Denied, match=f"--{name} cannot be used through this server .clusterrun.toml"):
        plan_submit([*SHAPE, "--profile", "x", "--", "train.py"])
    in_process.desk.write("jobs/own.toml", f'script = "train.py"\n{text}\n')
    for job in ("own", "jobs/own.toml"):
        with pytest.raises(Denied, match=f"--{name} cannot be used through this server .jobs/own.toml"):
            plan_submit([job, *SHAPE])
    user = in_process.desk.project.parent / "home/.config/clusterrun/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('notify = "true"\n')
    in_process.desk.write("clusterrun.toml", "")
    plan_submit([*SHAPE, "--", "train.py"])
    assert in_process.sprung() == []


def test_a_job_file_that_leads_out_of_the_project_is_not_for_agents(in_process: Traps) -> None:
    outside = in_process.desk.project.parent / "outside.toml"
    outside.write_text('script = "train.py"\n')
    link = in_process.desk.write("jobs/x.toml", "").parent / "link.toml"
    link.symlink_to(outside)
    for job in ("link", "jobs/link.toml"):
        with pytest.raises(Denied):
            plan_submit([job, *SHAPE])
