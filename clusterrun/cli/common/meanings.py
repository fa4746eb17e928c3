"""What people mean who type a word of another tool, or a misspelt one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise, takewhile

from clusterrun.base.errors import closest

#: Commands of other tools, and everyday words, with what does it here.
COMMANDS = {
    **dict.fromkeys(("stop", "kill", "scancel", "abort", "delete", "rm"), "clusterrun cancel JOBID"),
    **dict.fromkeys(("ps", "ls", "queue", "squeue", "jobs"), "clusterrun list"),
    **dict.fromkeys(("sacct", "history"), "clusterrun list --all"),
    **dict.fromkeys(("run", "launch", "sbatch", "start", "train"), "clusterrun submit"),
    **dict.fromkeys(("tail", "follow", "attach"), "clusterrun logs JOBID -f"),
    **dict.fromkeys(("show", "info", "describe", "scontrol"), "clusterrun status JOBID"),
    **dict.fromkeys(("explain", "debug", "reason"), "clusterrun why JOBID"),
    **dict.fromkeys(("restart", "retry", "rerun", "requeue"), "clusterrun resubmit JOBID"),
    **dict.fromkeys(("continue", "resume-from"), "clusterrun resume JOBID"),
    **dict.fromkeys(("sinfo", "nodes", "gpus"), "clusterrun free"),
    **dict.fromkeys(("srun", "ssh", "shell"), "clusterrun exec JOBID"),
    **dict.fromkeys(("watch", "dashboard"), "clusterrun top"),
    **dict.fromkeys(("config", "setup", "configure"), "clusterrun init"),
    "help": "clusterrun --help",
    "version": "clusterrun --version",
}
#: Options of other tools, with what does it here; some mean something else with one command.
OPTIONS = {
    **dict.fromkeys(("--nproc-per-node", "--gpus-per-task", "-G"), "use --gpus-per-node"),
    **dict.fromkeys(
        ("--ntasks-per-node", "--ntasks", "-n"), "use --tasks-per-node, or --gpus-per-node: one rank per GPU"
    ),
    **dict.fromkeys(
        ("--output", "--error", "-o", "-e"),
        "the logs are logs/train_JOBID.out and .err; `clusterrun logs JOBID -f` follows them",
    ),
    **dict.fromkeys(("--nnodes", "--num-nodes"), "use --nodes"),
    "--name": "use --job-name",
    "--queue": "use --partition",
    **dict.fromkeys(("--walltime", "--timeout"), "use --time"),
    "--memory": "use --mem",
    **dict.fromkeys(("list -o", "list -O", "--format"), "use --columns jobid,name,state, or --json"),
    "list -a": "use --all",
    "list -t": "use --state",
    "list -j": "clusterrun status JOBID",
    "--exclusive": "use --sbatch-arg=--exclusive",
    "--test-only": "use --dry-run",
    "--begin": "use --sbatch-arg=--begin=TIME",
    "--tail": "use --lines",
    **dict.fromkeys(("-u", "--user", "--me"), "only your own jobs are listed and cancelled"),
    "--mail-user": "Slurm mails the user who submits; use --mail-type, or --notify",
    "--wrap": "clusterrun submit -- bash -c 'COMMAND'",
    "--chdir": "run clusterrun in that folder",
}
SCRIPTS = (".py", ".sh")
#: Programs that start scripts.
STARTERS = ("torchrun", "accelerate", "deepspeed", "python", "python3", "bash", "srun", "mpirun")
#: Options of `submit` that scripts seldom have.
OURS = (
    "--dry-run",
    "--nodes",
    "--gpus-per-node",
    "--tasks-per-node",
    "--partition",
    "--job-name",
    "--no-check",
    "--follow",
)


def meant_command(typed: str, commands: Iterable[str]) -> str:
    """Return a hint for a command that does not exist; empty if nothing is near."""
    if typed in COMMANDS:
        return COMMANDS[typed]
    if typed.endswith(SCRIPTS):
        return f"clusterrun submit -- {typed}"
    return _near(typed, commands)


def meant_option(typed: str, options: Iterable[str], words: Sequence[str]) -> str:
    """Return a hint for an option that does not exist, typed among ``words``; empty if nothing is near."""
    own = list(takewhile(lambda word: word != "--", words))
    script = next((at for at, word in enumerate(own) if _starts(word)), None)
    if script is not None and typed in own[script:]:
        return f"options of a script stand after `--`: {with_separator(words, own[script:])}"
    values = _value_of(typed, own)
    if words[:1] == ["sweep"] and "," in values:
        return f"parameters are given with --grid: --grid {_axis(typed, values)}"
    of_command = f"{words[0]} {typed}" if words else typed
    in_table = OPTIONS.get(of_command, OPTIONS.get(typed))
    return in_table or _near(typed, options) or _of_job_file(typed, own)


def _of_job_file(typed: str, words: Sequence[str]) -> str:
    """Return the line in which a word after a job file's name is an argument of its script; empty without one."""
    has_job_file = words[:1] == ["submit"] and not words[1].startswith("-")
    if not has_job_file or typed not in words:
        return ""
    return f"arguments of a job file's script stand after `--`: {with_separator(words, words[words.index(typed) :])}"


def _axis(typed: str, values: str) -> str:
    """Return the value of --grid for ``--lr 1,2``, and for ``--param lr=1,2``."""
    return values if "=" in values else f"{typed.lstrip('-')}={values}"


def _starts(word: str) -> bool:
    return word.endswith(SCRIPTS) or word in STARTERS


def _value_of(typed: str, words: Sequence[str]) -> str:
    """Return the value of an option that was typed as ``--lr 1`` or ``--lr=1``; empty without one."""
    joined = dict(word.partition("=")[::2] for word in words if "=" in word)
    return joined.get(typed) or dict(pairwise(words)).get(typed, "")


def with_separator(words: Sequence[str], script: Sequence[str]) -> str:
    """Return a typed command line with the words of a script at its end, after ``--``."""
    own, rest = list(words), list(script)
    for word in (*script, "--"):
        if word in own:
            own.remove(word)
        elif word != "--":
            return f"clusterrun submit -- {shlex.join(rest)}"  # it was not typed like that
    return f"clusterrun {shlex.join(own)} -- {shlex.join(rest)}"


def _near(typed: str, words: Iterable[str]) -> str:
    """Return a hint with the word that another one begins (``--gpus``) or misspells; empty if there is none.

    Leading dashes do not count. Short words resemble each other by chance, and so do those that begin differently.
    """
    by_name = {word.lstrip("-"): word for word in words}
    name = typed.lstrip("-")
    begun = [word for longer, word in by_name.items() if longer.startswith(f"{name}-")]
    misspelt = closest(name, [word for word in by_name if word[:1] == name[:1]]) if len(name) > 2 else ""
    near = begun[0] if begun else by_name.get(misspelt)
    return f"did you mean {near}?" if near else ""


def misplaced(script: Sequence[str]) -> str:
    """Return that options of clusterrun are given to the script; empty if none seems to be."""
    ours = [word for word in script[1:] if word.partition("=")[0] in OURS]
    is_launcher = not (script and script[0].endswith(SCRIPTS))  # or another program, whose options they may be
    if not ours or is_launcher:
        return ""
    return f"{ours[0]} stands after `--`, so it is an argument of {script[0]}; options of clusterrun stand before `--`"
