"""A wrong request gets one line and a hint, exit 2, and nothing written."""

from __future__ import annotations

import json

import pytest

from tests.support.command_desk import Desk, refused


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["sumbit"], "no such command: sumbit", "did you mean submit?"),
        (["zzz"], "no such command: zzz", "clusterrun --help"),
        (["submit", "--node", "2"], "no such option: --node", "did you mean --nodes?"),
        (["submit", "--gpus-per-nodes=2"], "no such option: --gpus-per-nodes", "did you mean --gpus-per-node?"),
        (["render", "--no-requeu"], "no such option: --no-requeu", "did you mean --no-requeue?"),
        (["status", "--jason", "1"], "no such option: --jason", "did you mean --json?"),
        (["submit", "--gpus", "4"], "no such option: --gpus", "did you mean --gpus-per-node?"),
        (["submit", "--epochs", "4"], "no such option: --epochs", "clusterrun submit --help"),
        (["submit", "--lr", "1"], "no such option: --lr", "clusterrun submit --help"),
        (["submit", "--zzzzzzzzz"], "no such option: --zzzzzzzzz", "clusterrun submit --help"),
        (["resume"], "missing argument 'JOBID'", "clusterrun resume last"),
        (["logs", "1", "2"], "got unexpected extra argument (2)", "clusterrun logs --help"),
        (["logs", "1", "--stream", "x"], "'x' is not one of 'out', 'err', 'both'", "clusterrun logs --help"),
        (["logs", "1", "--rank", "-1"], "--rank: '-1' is not a valid rank", "--rank 0-3,8"),
        (["logs", "1", "-n", "x"], "'x' is not a valid integer", "clusterrun logs --help"),
        (
            ["cancel", "1", "--all"],
            "job ids cannot be combined with --name, --state or --all",
            "clusterrun cancel JOBID",
        ),
        (["submit", "--nodes"], "option '--nodes' requires an argument", "clusterrun submit --help"),
        (["submit", "--follow=yes"], "option '--follow' does not take a value", "clusterrun submit --help"),
        (["submit", "a", "b"], "expected one job file or task, not a b", "clusterrun submit -- a b"),
        (["submit", "train.py"], "train.py is a script, not a job file", "clusterrun submit -- train.py"),
        (["submit", "--"], "no script after --", "clusterrun submit -- train.py"),
        (["submit", "lm", "--", "train.py"], "both a job file and a script were given", "use only one"),
        (["submit", "lm", "--", "--lr", "1"], "lm takes settings, not arguments", "clusterrun submit lm --set lr=1e-4"),
        (["submit", "--json", "--follow"], "--json and --follow cannot be combined", "--wait"),
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
        (["sfft"], "no job file 'sfft'", "did you mean sft?"),
        (["jobs/none.toml"], "no job file 'jobs/none.toml'", "available: classify, diffusion, lm, sft"),
        (["../../etc/passwd"], "no job", ""),
        (["--nodes", "0"], "--nodes must be at least 1, not 0", ""),
        (["--nodes", "-1"], "--nodes must be at least 1, not -1", ""),
        (["--nodes", "two"], "'two' is not a valid integer", ""),
        (["--nodes", "9" * 5000], "not a valid integer", ""),
        (["--gpus-per-node", "-1"], "--gpus-per-node must be at least 0, not -1", ""),
        (["--tasks-per-node", "0"], "--tasks-per-node", ""),
        (["--master-port", "80"], "--master-port must be a port between 1024 and 65535, not 80", ""),
        (["--mem", "lots"], "--mem must be a size such as 64G, not 'lots'", ""),
        (["--time", "soon"], "--time: 'soon' is not a valid time limit", "2:00:00"),
        (["--time", ""], "--time", ""),
        (["--scheduler", "pbs"], "--scheduler must be slurm, local or auto, not 'pbs'", ""),
        (["--job-name", "n" * 41], "longer than 40 bytes", "shorter"),
        (["--job-name", "é" * 21], "longer than 40 bytes", "shorter"),
        (["--gres", "gpu:2", "--gpus-per-node", "2"], "--gres and --gpus-per-node both request GPUs", "keep one"),
        (["--env", "A"], "--env must be KEY=VALUE, not 'A'", "--env NAME=value"),
        (["--env", "=b"], "--env must be KEY=VALUE, not '=b'", "--env NAME=value"),
        (["--env", "a-b=c"], "--env: 'a-b' is not a valid variable name", ""),
        (["--env", "1A=c"], "--env: '1A' is not a valid variable name", ""),
        (["--env", "é=c"], "is not a valid variable name", ""),
        (["--env", "RANK=1"], "--env: RANK is set by clusterrun", "remove RANK"),
        (["--env", "MASTER_ADDR=x"], "--env: MASTER_ADDR is set by clusterrun", ""),
        (["--env", "TORCHELASTIC_RUN_ID=x"], "--env: TORCHELASTIC_RUN_ID is set by clusterrun", ""),
        (["--env", "SLURM_JOB_ID=1"], "--env: SLURM_JOB_ID is set by clusterrun", ""),
        (["--env", "CR_TOKEN=1"], "--env: CR_TOKEN is set by clusterrun", ""),
        (
            ["--env", "HF_TOKEN=hf_x"],
            "--env: HF_TOKEN looks like a token; the batch script",
            "export HF_TOKEN in your",
        ),
        (["--env", "WANDB_API_KEY=x"], "--env: WANDB_API_KEY looks like an API key", "export WANDB_API_KEY"),
        (["--env", "UID=1"], "--env: UID is reserved by bash", ""),
        (["--python", "/nowhere/python"], "--python: no such program: /nowhere/python", "path of a Python interpreter"),
        (["--template", "none.j2"], "none.j2: No such file or directory", "Jinja"),
        (["--profile", "none"], "no profile 'none' (--profile)", "[profile.none]"),
        (["--", "none.py"], "no such script: none.py", "searched in"),
        (["--", "trian.py"], "no such script: trian.py", "did you mean train.py?"),
        (["--", "./none"], "no such script: ./none", ""),
        (["--", ""], "no such script", ""),
        (["--", "train.py", "a", ":", "b"], "the argument ':' is not supported", "--env"),
        (["--", "-m"], "-m needs a module name", "-m package.train"),
        (["--", "python"], "no script in: python", ""),
        (["--", "python", "-c", "1"], "no script in", ""),
        (["--set", "steps=1", "--", "train.py"], "--set is only for built-in tasks", "pass arguments"),
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
        ("--wrap=x", "-- SCRIPT"), ("--test-only", "--dry-run"), ("--array=0-3", "use --array"),
        ("-a0-3", "use --array"), ("-N4", "--nodes"), ("--ntasks=4", "--tasks-per-node"),
        ("-n4", "--tasks-per-node"), ("--ntasks-per-node=4", "--tasks-per-node"), ("--gpus=4", "--gpus-per-node"),
        ("-G4", "--gpus-per-node"), ("-D/tmp", "cd to that folder"), ("--export=NONE", "--env"),
        ("--export-file=x", "--env"), ("--no-requeue", "--no-requeue"), ("--requeue", "--requeue"),
        ("--open-mode=truncate", "appends"), ("--parsable", "reads the job id"), ("--clusters=b", "SLURM_CLUSTERS"),
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
