"""The command line: bad input gets one line and a hint, exit 2, and nothing written; good input arrives untouched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.desks import Desk, work_words

PROGRAM = [sys.executable, "-m", "clusterrun"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, monkeypatch, capfd)


def refused(desk: Desk, *words: str, status: int = 2, calls: bool = False) -> tuple[str, str]:
    """Type a command that must be refused: one line, at most one hint, nothing on stdout, nothing written.

    Returns the line and the hint. With `calls` False no Slurm command may have been run either, but for the one look
    at the configuration.
    """
    before = desk.files()
    said = desk.type(*words)
    assert said.status == status, said
    assert said.out == "", said
    lines = said.err.splitlines()
    assert "Traceback" not in said.err
    assert 1 <= len(lines) <= 2 and lines[0].startswith("clusterrun: "), said.err
    assert len(lines) == 1 or lines[1].startswith("  hint: "), said.err
    assert desk.files() == before
    if not calls:
        assert [call for call in desk.slurm.calls if call[0] != "scontrol"] == []
    return lines[0].removeprefix("clusterrun: "), lines[1].removeprefix("  hint: ") if lines[1:] else ""


# -- usage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["sumbit"], "no such command: sumbit", "did you mean submit?"),
        (["zzz"], "no such command: zzz", "clusterrun --help"),
        (["submit", "--node", "2"], "no such option: --node", "did you mean --nodes?"),
        (["submit", "--gpus-per-nodes=2"], "no such option: --gpus-per-nodes", "did you mean --gpus-per-node?"),
        (["render", "--no-requeu"], "no such option: --no-requeu", "did you mean --no-requeue?"),
        (["status", "--jason", "1"], "no such option: --jason", "did you mean --json?"),
        (["submit", "--zzzzzzzzz"], "no such option: --zzzzzzzzz", "clusterrun submit --help"),
        (["status"], "missing argument 'JOBID...'", "clusterrun status --help"),
        (["logs", "1", "2"], "got unexpected extra argument (2)", "clusterrun logs --help"),
        (["logs", "1", "--stream", "x"], "'x' is not one of 'out', 'err', 'both'", "clusterrun logs --help"),
        (["logs", "1", "--rank", "-1"], "-1 is not in the range x>=0", "clusterrun logs --help"),
        (["logs", "1", "-n", "x"], "'x' is not a valid integer", "clusterrun logs --help"),
        (["cancel"], "say which jobs", "clusterrun cancel JOBID"),
        (["cancel", "1", "--all"], "say which jobs", "clusterrun cancel JOBID"),
        (["submit", "--nodes"], "option '--nodes' requires an argument", "clusterrun submit --help"),
        (["submit", "--follow=yes"], "option '--follow' does not take a value", "clusterrun submit --help"),
        (["submit", "a", "b"], "more than one job: a b", "clusterrun submit -- a b"),
        (["submit", "train.py"], "train.py is a script, not a job file", "clusterrun submit -- train.py"),
        (["submit", "--"], "nothing comes after --", "clusterrun submit -- train.py"),
        (["submit", "lm", "--", "train.py"], "a job file and a script were both given", "keep one"),
        (["submit", "--json", "--follow"], "--json and --follow do not go together", "--wait"),
    ],
)
def test_usage(desk: Desk, words: list[str], message: str, hint: str) -> None:
    if "--json" in words:
        said = desk.type(*words)
        error = json.loads(said.out)["error"]
        assert (said.status, error["message"]) == (2, message) and hint in error["hint"] and said.err == ""
        return
    line, told = refused(desk, *words)
    assert message in line and hint in told


def test_a_request_that_is_wrong(desk: Desk) -> None:
    desk.write("jobs/sft.toml", 'task = "lm"\n')
    cases: list[tuple[list[str], str, str]] = [
        (["sfft"], "no job 'sfft'", "did you mean sft?"),
        (["jobs/none.toml"], "no job 'jobs/none.toml'", "there are: lm, sft"),
        (["../../etc/passwd"], "no job", ""),
        (["--nodes", "0"], "--nodes: 0 is not a whole number, 1 or more", ""),
        (["--nodes", "-1"], "--nodes: -1 is not a whole number, 1 or more", ""),
        (["--nodes", "two"], "'two' is not a valid integer", ""),
        (["--nodes", "9" * 5000], "not a valid integer", ""),
        (["--gpus-per-node", "-1"], "--gpus-per-node: -1 is not a whole number, 0 or more", ""),
        (["--tasks-per-node", "0"], "--tasks-per-node", ""),
        (["--master-port", "80"], "--master-port: 80 is not a port between 1024 and 65535", ""),
        (["--mem", "lots"], "--mem: 'lots' is not a size such as 64G", ""),
        (["--time", "soon"], "--time: not a time limit: 'soon'", "2:00:00"),
        (["--time", ""], "--time", ""),
        (["--scheduler", "pbs"], "--scheduler: 'pbs' is not slurm, local or auto", ""),
        (["--job-name", "n" * 41], "longer than 40 bytes", "shorten"),
        (["--job-name", "é" * 21], "longer than 40 bytes", "shorten"),
        (["--gres", "gpu:2", "--gpus-per-node", "2"], "--gres and --gpus-per-node both ask for GPUs", "keep one"),
        (["--env", "A"], "--env: not KEY=VALUE: 'A'", "--env NAME=value"),
        (["--env", "=b"], "--env: not KEY=VALUE: '=b'", "--env NAME=value"),
        (["--env", "a-b=c"], "--env: 'a-b' is not the name of a variable", ""),
        (["--env", "1A=c"], "--env: '1A' is not the name of a variable", ""),
        (["--env", "é=c"], "is not the name of a variable", ""),
        (["--env", "RANK=1"], "--env: RANK is set by clusterrun itself", "leave it out"),
        (["--env", "MASTER_ADDR=x"], "--env: MASTER_ADDR is set by clusterrun itself", ""),
        (["--env", "SLURM_JOB_ID=1"], "--env: SLURM_JOB_ID is set by clusterrun itself", ""),
        (["--env", "CR_TOKEN=1"], "--env: CR_TOKEN is set by clusterrun itself", ""),
        (["--env", "UID=1"], "--env: UID is bash's own", ""),
        (["--python", "/nowhere/python"], "--python: no such program: /nowhere/python", "path of a Python"),
        (["--template", "none.j2"], "none.j2: No such file or directory", "Jinja"),
        (["--profile", "none"], "no profile 'none' (--profile)", "[profile.none]"),
        (["--", "none.py"], "no such script: none.py", "looked in"),
        (["--", "trian.py"], "no such script: trian.py", "did you mean train.py?"),
        (["--", "./none"], "no such script: ./none", ""),
        (["--", ""], "no such script", ""),
        (["--", "train.py", "a", ":", "b"], "a lone : among the script's arguments", "--env"),
        (["--", "-m"], "-m needs the name of a module", "-m package.train"),
        (["--", "python"], "no script to run in: python", ""),
        (["--", "python", "-c", "1"], "no script to run in", ""),
        (["--set", "steps=1", "--", "train.py"], "--set is for our own tasks", "after it"),
        (["--recover", "x"], "not a run id: 'x'", "20261121"),
    ]
    for words, message, hint in cases:
        line, told = refused(desk, "submit", *words)
        assert message in line and hint in told, (words, line, told)
        if "--recover" not in words:
            line, told = refused(desk, "render", *words)
            assert message in line, words


@pytest.mark.parametrize("option", ["--partition", "--comment", "--job-name", "--mail-type", "--nodelist", "--setup",
                                    "--sbatch-arg", "--env", "--gres", "--constraint"])  # fmt: skip
def test_a_newline_is_refused_in_any_value(desk: Desk, option: str) -> None:
    value = {"--env": "A=a\nb", "--sbatch-arg": "--mcs-label=a\nb"}.get(option, "a\nb")
    line, _ = refused(desk, "submit", option, value)
    assert f"{option}: a newline is not allowed" in line


def test_a_newline_is_refused_in_the_scripts_arguments(desk: Desk) -> None:
    line, _ = refused(desk, "submit", "--", "train.py", "a\nb")
    assert line.startswith("the script's arguments: a newline is not allowed")
    refused(desk, "submit", "--", "tr\nain.py")
    refused(desk, "submit", "jo\nb")
    refused(desk, "submit", "--sc\nheduler")
    refused(desk, "sub\nmit")


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("--output=x", "logs/train_JOBID.out"), ("--output", "logs/train_JOBID.out"), ("--outp=x", "logs/"),
        ("-o x", "logs/"), ("-ox", "logs/"), ("-e/x", "logs/"), ("-Jname", "--job-name"), ("-HJname", "--job-name"),
        ("--job-name=x", "--job-name"), ("--comment=x", "--comment"), ("--wait", "--wait"), ("-W", "--wait"),
        ("--wrap=x", "-- SCRIPT"), ("--test-only", "--dry-run"), ("--array=0-3", "one submit per job"),
        ("-a0-3", "one submit per job"), ("-N4", "--nodes"), ("--ntasks=4", "--tasks-per-node"),
        ("-n4", "--tasks-per-node"), ("--ntasks-per-node=4", "--tasks-per-node"), ("--gpus=4", "--gpus-per-node"),
        ("-G4", "--gpus-per-node"), ("-D/tmp", "cd to the folder"), ("--export=NONE", "--env"),
        ("--export-file=x", "--env"), ("--no-requeue", "--no-requeue"), ("--requeue", "--requeue"),
        ("--open-mode=truncate", "appended"), ("--parsable", "reads the id"), ("--clusters=b", "SLURM_CLUSTERS"),
        ("-Mb", "SLURM_CLUSTERS"), ("--help", "man sbatch"), ("-V", "sbatch --version"),
        ("value", "--sbatch-arg=--switches=1"), ("-", "--sbatch-arg=--switches=1"), ("", "--sbatch-arg=--switches=1"),
        ("--", "--sbatch-arg=--switches=1"),
    ],
)  # fmt: skip
def test_sbatch_arguments_that_would_undo_us(desk: Desk, argument: str, instead: str) -> None:
    line, hint = refused(desk, "submit", f"--sbatch-arg={argument}")
    assert line.startswith(f"--sbatch-arg: {argument!r}") and instead in hint


def test_sbatch_arguments_that_do_no_harm_go_through(desk: Desk) -> None:
    for argument in ("--switches=1", "--exclusive", "-s", "--nice=10", "--deadline=now+1hour", "--hint=nomultithread"):
        assert desk.type("render", "--sbatch-arg", argument).status == 0, argument


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('partition = "gpu"\nnods = 2\n', "clusterrun.toml:2: unknown key 'nods'", "did you mean nodes?"),
        ("partition = gpu\n", "clusterrun.toml:1: ", "quotes"),
        ('a = "\n', "clusterrun.toml:1: ", ""),
        ("[profile.x]\nnodes = 1\n\n[profile.x]\n", "clusterrun.toml:4: ", ""),
        ('\nnodes = "two"\n', "clusterrun.toml:2: nodes must be a whole number, not the text 'two'", ""),
        ("nodes = 0\n", "--nodes: 0 is not a whole number, 1 or more (clusterrun.toml)", ""),
        ('task = "lm"\n', "clusterrun.toml:1: task belongs in a job file", "jobs/NAME.toml"),
        ('job = "none"\n', "no job 'none'", ""),
        ("nodes = " + "9" * 5000 + "\n", "clusterrun.toml", ""),
    ],
)
def test_a_wrong_profile(desk: Desk, text: str, message: str, hint: str) -> None:
    desk.write("clusterrun.toml", text)
    line, told = refused(desk, "submit")
    assert line.startswith(message) and hint in told, (line, told)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('task = "lm"\n\nnodez = 2\n', "jobs/sft.toml:3: unknown key 'nodez'", "did you mean nodes?"),
        ("nodes = 2\n", "jobs/sft.toml: nothing says what to run", "task ="),
        ('task = "lm"\nscript = "a.py"\n', "jobs/sft.toml:2: task and script both say what to run", "keep one"),
        ('script = "none.py"\n', "no such script: ", ""),
        ("task = lm\n", "jobs/sft.toml:1: ", "quotes"),
        ('script = "train.py"\nargs = "x"\n', "jobs/sft.toml:2: args must be a list of texts", ""),
    ],
)
def test_a_wrong_job_file(desk: Desk, text: str, message: str, hint: str) -> None:
    desk.write("jobs/sft.toml", text)
    line, told = refused(desk, "submit", "sft")
    assert line.startswith(message) and hint in told, (line, told)


def test_a_template_that_does_not_render(desk: Desk) -> None:
    path = desk.write("my.j2", "#!/bin/bash\n# {{ token | sh }}\n{{ nobody | sh }}\n")
    for verb in ("submit", "render"):
        line, _ = refused(desk, verb, "--template", "my.j2")
        assert line == f"{path}:3: 'nobody' is undefined"


def test_setup_lines_that_are_not_shell(desk: Desk) -> None:
    for text in ("if true", "echo 'open", "cat <<EOF", "}"):
        said = desk.type("submit", "--python", sys.executable, "--setup", "true", "--setup", text)
        assert said.status == 2 and said.err.startswith(f"clusterrun: --setup: line 2 is not shell: {text}\n"), said
        assert sorted(desk.files()) == ["train.py"] and desk.slurm.count("sbatch") == 0


def test_a_log_folder_that_cannot_be_written(desk: Desk) -> None:
    desk.write("logs", "a file")
    line, _ = refused(desk, "submit", "--", "train.py")
    assert line.startswith(f"the log folder cannot be written: {desk.project}/logs: ")


def test_a_log_folder_that_everybody_may_write(desk: Desk) -> None:
    logs = desk.project / "logs"
    logs.mkdir()
    logs.chmod(0o777)
    line, hint = refused(desk, "submit", "--", "train.py")
    assert "writable by everybody" in line and hint == f"chmod o-w {logs}"


def test_a_folder_that_is_not_ours_to_write(desk: Desk) -> None:
    mortal = []
    if os.geteuid() == 0:  # without its capabilities root is stopped by a folder's mode as everybody is
        mortal = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    desk.project.chmod(0o555)
    try:
        done = subprocess.run([*mortal, *PROGRAM, "submit", "--", "train.py"], capture_output=True, text=True)
    finally:
        desk.project.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        f"clusterrun: the log folder cannot be written: {desk.project}/logs: Permission denied",
        "  hint: submit from a folder of yours with room",
    ]
    assert desk.files().keys() == {"train.py"} and desk.slurm.count("sbatch") == 0


def test_a_folder_that_is_gone(desk: Desk) -> None:
    gone = desk.project / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    for words in (["submit"], ["render"], ["list"], ["status", "1"], ["logs", "1"], ["cancel", "1"], ["init"]):
        line, hint = refused(desk, *words)
        assert "the current folder " in line and hint.startswith("cd to "), words


# -- jobs ----------------------------------------------------------------------------------------------------------

NO_IDS = """../../etc|12; rm||-1|１２|1;|1;a b|1_|_1|1+|L|l1|1 2|1
|0x1|$(id)|--all|1;../../x""".split("|")
NO_IDS += ["9" * 400, "a" * 100_000]


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_what_is_no_job_id_reaches_no_command(desk: Desk, verb: str) -> None:
    for text in NO_IDS:
        if (verb, text) == ("cancel", "--all"):
            continue
        line, _ = refused(desk, verb, text)
        assert "not a job id" in line or "no such option" in line or "say which" in line or "missing" in line, line
        assert len(line) < 200
    assert desk.slurm.calls == []


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_a_job_that_nobody_knows(desk: Desk, verb: str) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    line, _ = refused(desk, verb, "99", status=4, calls=True)
    assert line == "no such job: 99"
    assert refused(desk, verb, "L99", status=4, calls=True)[0] == "no such job: L99"
    assert "is known here" in refused(desk, verb, "20261121-034501-k3v7qa", status=4, calls=True)[0]
    assert refused(desk, verb, "1_2", status=4, calls=True)[0] == "no such job: 1_2"
    desk.slurm.forget()
    assert "cluster" in refused(desk, verb, "99;elsewhere", status=4)[0]
    assert refused(desk, verb, "99;desk", status=4, calls=True)[0].startswith("no such job: 99")


@pytest.mark.parametrize("verb", ["status", "logs", "wait", "cancel"])
def test_a_job_without_slurm(desk: Desk, verb: str) -> None:
    desk.without_slurm()
    assert refused(desk, verb, "99", status=4)[0] == "no such job: 99"


@pytest.mark.parametrize("verb", ["status", "cancel"])
def test_a_job_while_slurm_is_silent(desk: Desk, verb: str) -> None:
    desk.slurm.answer("squeue", err="slurm_load_jobs error: Unable to contact slurm controller\n", status=1)
    said = desk.type(verb, "99")
    assert said.status == 3 and said.out == ""
    assert said.err.splitlines() == [
        "clusterrun: Slurm did not answer",
        "  | squeue: slurm_load_jobs error: Unable to contact slurm controller",
        "  hint: ask `scontrol ping`, then try again",
    ]


def test_somebody_elses_job_is_not_cancelled(desk: Desk) -> None:
    from tests.test_slurm_text import row

    desk.slurm.answer("squeue", row(i="99", A="99", u="mallory", j="theirs"))
    line, _ = refused(desk, "cancel", "99", status=4, calls=True)
    assert line == "job 99 belongs to mallory, not to you" and desk.slurm.count("scancel") == 0


def test_slurm_asked_for_where_there_is_none(desk: Desk) -> None:
    desk.without_slurm()
    line, hint = refused(desk, "submit", "--scheduler", "slurm", status=3)
    assert line.startswith("there is no Slurm here") and "--scheduler local" in hint
    assert desk.type("render", "--scheduler", "slurm").status == 0


# -- programs that start ranks themselves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["torchrun", "--nproc-per-node", "4", "train.py", "--lr", "1"], "-- train.py --lr 1"),
        (["torchrun", "--nproc_per_node=4", "-m", "pkg.train", "--x"], "-- -m pkg.train --x"),
        (["/opt/bin/torchrun", "train.py"], "-- train.py"),
        (["accelerate", "launch", "train.py", "a b"], "-- train.py 'a b'"),
        (["python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"], "-- train.py"),
        (["-m", "torch.distributed.launch", "train.py"], "-- train.py"),
        (["mpirun", "-np", "4", "python", "train.py"], "-- train.py"),
        (["srun", "hostname"], "-- train.py"),
    ],
)
def test_launchers_are_refused_with_the_line_to_type(desk: Desk, words: list[str], hint: str) -> None:
    line, told = refused(desk, "submit", "--", *words)
    assert "starts ranks itself" in line
    assert told == f"clusterrun submit --nodes 2 --gpus-per-node 4 {hint}"


@pytest.mark.parametrize(
    ("words", "work"),
    [
        (["python", "train.py", "--lr", "1"], ["script", "--", "train.py", "--lr", "1"]),
        (["python3", "-u", "train.py"], ["script", "--", "train.py"]),
        (["/usr/bin/python3.11", "train.py", "-u"], ["script", "--", "train.py", "-u"]),
        (["python", "-m", "pkg.train", "-m"], ["module", "--", "pkg.train", "-m"]),
    ],
)
def test_python_is_left_out_with_a_notice(desk: Desk, words: list[str], work: list[str]) -> None:
    said = desk.type("render", "--", *words)
    assert said.status == 0 and f"clusterrun: {words[0]} is left out" in said.err
    found = work_words(said.out)
    assert [Path(word).name if word.startswith("/") else word for word in found] == work


SCRIPT_WORDS = (
    "--help -h --json --debug -- -m --nodes 0 --version - --sbatch-arg=x ` ' \" \\ # * %j ! ~ & ; -n1 é🙂".split(" ")
)
SCRIPT_WORDS += ["", "a b", "$(touch x)", "\x1b[31m", "\t", "\r", "{{ x }}", "{% x %}", "{# x #}", "{## x"]


def test_the_scripts_own_words_arrive_untouched(desk: Desk) -> None:
    said = desk.type("render", "--", "train.py", *SCRIPT_WORDS)
    assert said.status == 0, said.err
    assert work_words(said.out) == ["script", "--", str(desk.project / "train.py"), *SCRIPT_WORDS]
    assert desk.type("render", "--", "train.py", "--help").out.startswith("#!")
    assert (
        desk.type("render", "--", "-m", "pkg.train", "-m", "x", "--").out.count("CR_WORK=(module -- pkg.train -m x --)")
        == 1
    )
    assert work_words(desk.type("render", "--", "env", "--help").out) == ["command", "--", "/usr/bin/env", "--help"]


def test_bytes_that_are_no_text_arrive_too(desk: Desk) -> None:
    said = desk.process("render", "--comment", "c\udcff", "--", "train.py", "\udcff\udc80")
    assert said.status == 0, said.err
    assert work_words(said.out)[-1] == "\udcff\udc80"


# -- how it speaks -------------------------------------------------------------------------------------------------


def test_alone_it_shows_its_help(desk: Desk) -> None:
    said = desk.type()
    assert "Usage: clusterrun" in said.err + said.out and "submit" in said.err + said.out


@pytest.mark.parametrize("verb", ["submit", "render", "logs", "status", "list", "wait", "cancel", "init"])
def test_help_has_examples(desk: Desk, verb: str) -> None:
    said = desk.type(verb, "--help")
    assert said.status == 0 and said.err == "" and f"  clusterrun {verb}" in said.out
    assert desk.type(verb, "-h").out == said.out


def test_the_version(desk: Desk) -> None:
    from clusterrun import __version__

    assert desk.type("--version").out == f"clusterrun, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["submit", "--nodes", "0", "--json"], 2),
        (["render", "--json", "none"], 2),
        (["submit", "--json", "--nope"], 2),
        (["status", "x", "--json"], 2),
        (["status", "--json", "99"], 4),
        (["logs", "--json", "99"], 4),
        (["wait", "--json", "99"], 4),
        (["cancel", "--json", "99"], 4),
        (["cancel", "--json"], 2),
        (["logs", "--json", "-f", "99"], 2),
        (["init", "--json", "x"], 2),
    ],
)
def test_an_error_as_json_is_one_envelope(desk: Desk, words: list[str], status: int) -> None:
    said = desk.type(*words)
    assert (said.status, said.err) == (status, "")
    envelope = json.loads(said.out)
    assert said.out.count("\n") == 1
    assert {"version", "command", "data", "error"} == set(envelope)
    assert (envelope["version"], envelope["command"], envelope["data"]) == (1, words[0], None)
    assert {"message", "hint", "said", "exit_code"} == set(envelope["error"])
    assert envelope["error"]["exit_code"] == status and envelope["error"]["message"]


def test_a_result_as_json_is_one_envelope(desk: Desk) -> None:
    said = desk.type("render", "--json", "--nodes", "3", "--", "train.py")
    assert json.loads(said.out)["error"] is None and said.data["script"].startswith("#!")
    assert said.data["sources"]["nodes"] == {"value": 3, "source": "--nodes"}
    assert desk.type("list", "--json").data == []


def test_debug_shows_where(desk: Desk) -> None:
    said = desk.process("--debug", "submit", "--nodes", "0")
    assert said.status != 0 and "Traceback" in said.err and "RequestError" in said.err
    assert "Traceback" not in desk.process("submit", "--nodes", "0").err


def test_what_nobody_foresaw_is_a_line_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterrun.cluster import Cluster

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a\nbug")

    monkeypatch.setattr(Cluster, "listing", broken)
    said = desk.type("list")
    assert said.status == 1 and len(said.err.splitlines()) == 2 and "--debug" in said.err


def test_foreign_text_cannot_act_on_the_terminal(desk: Desk) -> None:
    desk.slurm.answer(
        "sbatch", err="\x1b]0;gotcha\x07\nsbatch: error: Batch job submission failed: no\x1b[2J\n", status=1
    )
    said = desk.type("submit", "--", "train.py")
    assert said.status == 3 and "\x1b" not in said.err and r"\x1b]0;gotcha" in said.err
    assert "\x1b" not in desk.type("submit", "\x1b[31mjob").err


def test_a_refusal_is_shown_once_and_leaves_no_run(desk: Desk) -> None:
    words = "sbatch: error: Batch job submission failed: Invalid partition name specified"
    desk.slurm.answer("sbatch", err=words + "\n", status=1)
    said = desk.type("submit", "--partition", "nope", "--", "train.py")
    assert said.status == 3 and said.out == "" and said.err.count(words) == 1 and "hint: " in said.err
    assert [name for name, data in desk.files().items() if data is not None] == ["train.py"]
    assert desk.type("list", "--all").out == ""


def test_a_closed_pipe_is_no_error(desk: Desk) -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -m clusterrun render | head -c 1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.endswith("0\n") and done.stderr.count("Traceback") == 0


def test_a_terminal_without_unicode(desk: Desk) -> None:
    said = desk.process("submit", "--dry-run", "--comment", "é🙂", "--", "train.py", env={"PYTHONIOENCODING": "ascii"})
    assert said.status == 0 and "é🙂" in said.out, said.err  # the script itself is bytes
    said = desk.process("init", "--print", env={"PYTHONIOENCODING": "ascii"})
    assert "UnicodeEncodeError" not in said.err and said.status == 0, said.err


# -- render and submit ---------------------------------------------------------------------------------------------

SUBMITTED = ["--nodes", "2", "--gpus-per-node", "4", "--time", "1:00", "--env", "A=it's", "--setup", "true"]
SUBMITTED += ["--comment", "hello", "--", "train.py", "--lr", "1"]


def test_submit_sends_what_render_prints(desk: Desk) -> None:
    desk.slurm.answer("sbatch", "123\n")
    printed = desk.type("render", *SUBMITTED)
    assert desk.files().keys() == {"train.py"}, "render writes nothing"
    sent = desk.type("submit", "--json", *SUBMITTED)
    assert sent.status == 0, sent.err
    script = (Path(sent.data["run_dir"]) / "script.sh").read_text().split("\n")
    different = [
        (one, two) for one, two in zip(printed.out.split("\n"), script, strict=True) if one != two
    ]  # fmt: skip
    assert [one.partition("=")[0] for one, _ in different] == [
        "#SBATCH --job-name", "#SBATCH --comment", "CR_RUN_ID", "CR_RUN_DIR", "CR_TOKEN",
    ]  # fmt: skip
    (call,) = [call for call in desk.slurm.calls if call[0] == "sbatch"]
    assert call[1:] == ["--parsable", "--", f"{sent.data['run_dir']}/script.sh"]
    assert sent.data["logs"] == [f"{desk.project}/logs/train_123.{end}" for end in ("out", "err")]


def test_dry_run_prints_the_script_and_writes_nothing(desk: Desk) -> None:
    said = desk.type("submit", "--dry-run", *SUBMITTED)
    assert said.status == 0 and said.out.startswith("#!/bin/bash -l\n") and "nothing was written" in said.err
    assert desk.files().keys() == {"train.py"} and desk.slurm.count("sbatch") == 0


def test_render_explains_where_values_come_from(desk: Desk) -> None:
    desk.write("clusterrun.toml", 'partition = "gpu"\n[profile.big]\nnodes = 8\n')
    desk.write("jobs/sft.toml", 'task = "lm"\ntime = "1:00"\nset.steps = 7\n')
    desk.set(SBATCH_ACCOUNT="ours", SBATCH_PARTITION="other")
    said = desk.type("render", "sft", "--explain", "--profile", "big", "--qos", "q", "--set", "lr=1")
    lines = {line.split(" = ")[0]: line for line in said.err.splitlines()}
    told = {
        "partition": "'gpu'  (clusterrun.toml)",
        "nodes": "8  (clusterrun.toml [profile.big])",
        "time": "'1:00'  (jobs/sft.toml)",
        "account": "'ours'  (SBATCH_ACCOUNT)",
        "qos": "'q'  (--qos)",
        "gpus-per-node": "1  (default: there are GPUs)",
    }
    for name, words in told.items():
        assert lines[f"clusterrun: {name}"] == f"clusterrun: {name} = {words}"
    assert re.search(r"set = .*\(--set, jobs/sft.toml\)", said.err)


def test_what_only_slurm_understands_is_named_once(desk: Desk) -> None:
    said = desk.type(
        "render", "--scheduler", "local", "--partition", "x", "--qos", "y", "--time", "1:00", "--", "train.py"
    )
    assert said.status == 0 and said.err == "clusterrun: the local scheduler has no use for --partition, --qos\n"
