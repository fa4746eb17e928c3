"""Translate another launcher's line into options of clusterrun and the program of each rank, or refuse it.

A shell script that starts ranks itself runs once on one node; on several nodes it is refused, as a batch script is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launch_shape import (
    Values,
    format_line,
    format_options,
    job_options,
    one_gpu_each,
    refused_line,
)
from clusterrun.submit.launcher_table import STARTER_NUMBERS, assignments, launcher_of, prefix_length, variables_before
from clusterrun.submit.launchers import Around, Launch, add_local_rank, combine, find_launch, join_options, number
from clusterrun.submit.own_ranks import line_instead, script_options, starts_own_ranks
from clusterrun.submit.python_line import as_variables, split_python
from clusterrun.submit.script_launch import script_of
from clusterrun.submit.script_source import source_of, wanted_local_rank

Command = tuple[tuple[str, ...], dict[str, Value]]
"""The command that each rank runs, and the options that a launcher's line sets."""


def translate(words: Sequence[str], around: Around) -> Command:
    """Return the command that each rank runs, and the options that a launcher's line sets.

    With ``--launcher`` other than srun the command stays as it is. Raises RequestError, with
    the line to type, for a line that cannot be translated exactly.
    """
    words = _with_variables_of_python(words, around.notify)
    launcher = around.value("launcher") or ""
    if launcher == "none":
        return _with_variables(words, around)
    launch = find_launch(words, around)
    if launcher != "srun":  # with which the user knows what the program starts
        _refuse_own_ranks(words, launcher, around)
    if launch is None:
        return _with_variables(words, around)
    if launcher in ("torchrun", "accelerate", "deepspeed") and launch.program:
        line = format_line(join_options(around.given, job_options(launch, around)), launch.program)
        raise RequestError(f"--launcher {launcher} would start {launch.title} once per rank", hint=line)
    return _translated(launch, around)


def _with_variables_of_python(words: Sequence[str], notify: Callable[[str], None]) -> list[str]:
    """Return a command with the options of its Python as variables: ``-W ignore`` is PYTHONWARNINGS=ignore."""
    start = prefix_length(words)
    options, program = split_python(words[start:])
    if not options or not program:
        return list(words)
    variables, others = as_variables(options)
    if others:
        notify(f"ignoring {', '.join(others)} of {words[start]}: the ranks' Python gets no options")
    return [*(f"{name}={text}" for name, text in variables.items()), *words[: start + 1], *program]


def _refuse_own_ranks(words: Sequence[str], launcher: str, around: Around) -> None:
    """Raise RequestError for a program that starts a node's ranks, which ``--launcher`` would start once per rank."""
    title = starts_own_ranks(words)
    if not title or (not launcher_of(words).title and script_of(words, around.cwd)):  # which says what it starts
        return
    message = f"{title} starts the ranks of a node itself"
    if launcher:
        message = f"--launcher {launcher} would start {title} once per rank"
    raise RequestError(message, hint=line_instead(words, around))


def _with_variables(words: Sequence[str], around: Around) -> Command:
    """Return a program of the user's own, and its options; variables before it become --env."""
    start = prefix_length(words)
    assigned = assignments(words)
    if not assigned or start == len(words):
        return _own_program(words, around)
    variables = variables_before(words)
    around = around._replace(environ={**around.environ, **variables})
    if around.value("launcher") == "none":
        variables = {name: text for name, text in variables.items() if name not in STARTER_NUMBERS}
    env = {"env": Value(variables, "--env from the variables before the program")} if variables else {}
    program, options = _own_program(words[start:], around._replace(given=join_options(around.given, env)))
    if env:
        around.notify("environment variables before the program are passed as: " + format_options(env))
    ignored = sorted(assigned.keys() - variables.keys())
    if ignored:
        around.notify(f"ignoring {', '.join(ignored)}: set by the scheduler or by clusterrun")
    return program, options | env


def _own_program(words: Sequence[str], around: Around) -> Command:
    """Return a program of the user's own without variables before it, and the options that it needs."""
    launcher = around.value("launcher")
    options: dict[str, Value] = {}
    if not launcher:  # with --launcher srun the user knows that the script fits one rank per GPU
        options = script_options(words, around)
    if options:
        return tuple(words[prefix_length(words) :]), options
    if launcher in (None, "srun"):
        return with_local_rank(words, around), {}
    return tuple(words), {}


def _translated(launch: Launch, around: Around) -> Command:
    """Return the program and the options of a launcher's line, and say what they are."""
    if not launch.program:
        raise RequestError(f"{launch.title}: no script or program given", hint="clusterrun submit -- train.py")
    launch = _refuse_nested(launch, around)
    options = job_options(launch, around)
    all_options = join_options(around.given, options)
    if launch.refusal:
        raise RequestError(launch.refusal, hint=refused_line(launch, all_options, around))
    once = script_options(launch.program, around._replace(given=_explicit(launch, all_options)))
    if once:
        return tuple(launch.program), {**options, **once}
    own = f"   (left out: {', '.join(dict.fromkeys(launch.own))})" if launch.own else ""
    around.notify(f"translated {launch.title} to: {format_line(all_options, launch.program)}{own}")
    if launch.warning:
        around.notify(f"warning: {launch.warning}")
    if launch.sees_one_gpu:
        around.notify(one_gpu_each(launch))
    if not {"gpus-per-node", "gres", "tasks-per-node"} & {*all_options, *around.below}:
        around.notify(
            f"the {launch.title} command does not set the number of GPUs; to use more than one per node,"
            " add --gpus-per-node N"
        )
    return tuple(launch.program), options


def _refuse_nested(launch: Launch, around: Around) -> Launch:
    """Return a launch with the one inside it, which is then refused: ``srun torchrun …``."""
    title = starts_own_ranks(launch.program)
    if title:
        options = join_options(around.given, job_options(launch, around))
        options.pop("tasks-per-node", None)
        line = line_instead(launch.program, around._replace(given=options))
        raise RequestError(f"{launch.title} would start {title} once per rank", hint=line)
    while inner := find_launch(launch.program, around):
        outer_title = launch.title
        launch = combine(launch, inner)
        launch.refuse(f"{outer_title} around {launch.title} is not needed, since clusterrun starts the ranks")
    return launch


def _explicit(launch: Launch, options: Values) -> dict[str, Value]:
    """Return the options of a line that a launcher in its script must not contradict.

    That is without defaults such as "srun without --gres has no GPUs".
    """
    explicit = {name: value for name, value in options.items() if not value.source.startswith(("--gres:", "--nodes:"))}
    if launch.title == "srun" and number(explicit.get("tasks-per-node"), 0) == 1:
        del explicit["tasks-per-node"]  # a script with a launcher in it, once per node
    return explicit


def with_local_rank(words: Sequence[str], around: Around) -> tuple[str, ...]:
    """Return a command with the local rank as an argument, if its script needs it and there are several ranks."""
    program = split_python(words)[1]
    option = wanted_local_rank(source_of(program, around.cwd))
    if not option or _has_local_rank(program) or _is_one_rank(around):
        return tuple(words)
    python = words[: len(words) - len(program)]
    add_local_rank(program, option)
    around.notify(f"adding {option}={{local_rank}}: the script declares this option and does not read LOCAL_RANK")
    return (*python, *program)


def _has_local_rank(program: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in ("--local_rank", "--local-rank") for word in program)


def _is_one_rank(around: Around) -> bool:
    """Return whether a job has one rank, as far as its options say it."""
    gpus = around.value("gpus-per-node")
    if gpus is None or gpus > 1 or around.nodes != 1:
        return False
    return around.value("tasks-per-node") in (None, 1)
