"""Translate another launcher's line into options of clusterrun and the program of each rank, or refuse it.

A shell script or batch script that starts ranks itself is refused with the line that does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launch_shape import (
    Values,
    format_line,
    format_options,
    gpus_of,
    job_options,
    one_gpu_each,
    refused_line,
)
from clusterrun.submit.launchers import (
    STARTER_NUMBERS,
    Launch,
    Place,
    add_local_rank,
    find_launch,
    join_options,
    prefix_length,
    variables_before,
)
from clusterrun.submit.python_line import as_variables, split_python
from clusterrun.submit.script_source import source_of, wanted_local_rank


def translate(
    words: Sequence[str], given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Return the command that each rank runs, and the options that a launcher's line sets.

    ``given`` are the typed options and those of the job file, which a launcher's line must not contradict; ``below``
    are those of the profiles. With ``--launcher`` other than srun the command stays as it is. Raises RequestError, with
    the line to type, for a line that cannot be translated exactly.
    """
    words = _with_variables_of_python(words, notify)
    launcher = _launcher(given, below)
    other = "" if launcher == "srun" else launcher
    launch = None if other == "none" else find_launch(words, place)
    if launch is not None and launch.own_ranks and not other:
        # --launcher srun: the user knows; a script says itself what it starts
        launch = None if launcher or _is_single(launch, given, below) or _is_script(launch, place) else launch
    before, program = words[: prefix_length(words)], words[prefix_length(words) :]
    if launch is not None and launch.own_ranks and other:
        _check_other(other, launch, given, below)
    if program and any("=" in word for word in before) and (other or launch is None):
        return _with_variables(words, given, below, place, notify)
    if other:
        _check_other(other, launch, given, below)
        return tuple(words), {}
    if launch is None:
        if not launcher:  # with --launcher srun the user knows that the script fits one rank per GPU
            _refuse_scripts(words, given, below, place)
        return with_local_rank(words, given, below, place, notify), {}
    return _translated(launch, given, below, place, notify)


def _launcher(given: Values, below: Values) -> str:
    """Return the value of --launcher; empty if it is not set."""
    value = given.get("launcher") or below.get("launcher")
    return str(value.value) if value is not None else ""


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


def _with_variables(
    words: Sequence[str], given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Translate a command with variables before it, which become --env."""
    start = prefix_length(words)
    variables = variables_before(words)
    if _launcher(given, below) == "none":
        variables = {name: text for name, text in variables.items() if name not in STARTER_NUMBERS}
    env = {"env": Value(variables, "--env from the variables before the program")} if variables else {}
    place = place._replace(environ={**place.environ, **variables})
    rest, options = translate(words[start:], join_options(given, env), below, place, notify)
    if env:
        notify("environment variables before the program are passed as: " + format_options(env))
    if ignored := sorted({word.partition("=")[0] for word in words[:start] if "=" in word} - {*variables}):
        notify(f"ignoring {', '.join(ignored)}: set by the scheduler or by clusterrun")
    return rest, {**options, **env}


def _check_other(other: str, launch: Launch | None, given: Values, below: Values) -> None:
    """Raise RequestError if ``--launcher`` would start a launcher once per rank."""
    if launch is not None and launch.program:
        options = join_options(given, job_options(launch, given, below))
        line = format_line(options, launch.program)
        if launch.own_ranks:
            line = refused_line(launch, options, given, below)
        raise RequestError(f"--launcher {other} would start {launch.title} once per rank", hint=line)


def _refuse_scripts(words: Sequence[str], given: Values, below: Values, place: Place) -> None:
    from clusterrun.submit.refused_scripts import refuse_scripts  # most commands start no script

    refuse_scripts(words, given, below, place)


def _translated(
    launch: Launch, given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Return the program and the options of a launcher's line, and say what they are."""
    if not launch.program:
        raise RequestError(f"{launch.title}: no script or program given", hint="clusterrun submit -- train.py")
    options = job_options(launch, given, below)
    all_options = join_options(given, options)
    if launch.refusal:
        raise RequestError(launch.refusal, hint=refused_line(launch, all_options, given, below))
    _refuse_scripts(launch.program, _explicit(launch, all_options), below, place)
    own = f"   (left out: {', '.join(dict.fromkeys(launch.own))})" if launch.own else ""
    notify(f"translated {launch.title} to: {format_line(all_options, launch.program)}{own}")
    if launch.warning:
        notify(f"warning: {launch.warning}")
    if launch.sees_one_gpu:
        notify(one_gpu_each(launch))
    if not {"gpus-per-node", "gres", "tasks-per-node"} & {*all_options, *below}:
        notify(
            f"the {launch.title} command does not set the number of GPUs; to use more than one per node,"
            " add --gpus-per-node N"
        )
    return tuple(launch.program), options


def _is_script(launch: Launch, place: Place) -> bool:
    """Return whether a program of the user's own is a shell script."""
    from clusterrun.submit.script_launch import script_of  # most commands start no script

    return launch.launcher is None and script_of(launch.line, place.cwd) is not None


def _explicit(launch: Launch, options: Values) -> dict[str, Value]:
    """Return the options of a line that a launcher in its script must not contradict.

    That is without defaults such as "srun without --gres has no GPUs".
    """
    explicit = {name: one for name, one in options.items() if not one.source.startswith(("--gres:", "--nodes:"))}
    if launch.title == "srun" and "tasks-per-node" in explicit and explicit["tasks-per-node"].value == 1:
        del explicit["tasks-per-node"]  # a script with a launcher in it, once per node
    return explicit


def _is_single(launch: Launch, given: Values, below: Values) -> bool:
    """Return whether a job has one rank on one GPU at most."""
    levels = {**below, **given}
    shape = [launch.nodes or levels.get("nodes"), launch.ranks or levels.get("tasks-per-node"), gpus_of(levels)]
    return all(one is None or one.value in (0, 1) for one in shape)


def with_local_rank(
    words: Sequence[str], given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[str, ...]:
    """Return a command with the local rank as an argument, if its script needs it and there are several ranks."""
    nodes, gpus, tasks = (
        (given.get(name) or below.get(name) or Value(default, "")).value
        for name, default in (("nodes", 1), ("gpus-per-node", -1), ("tasks-per-node", 1))
    )
    program = split_python(words)[1]
    option = wanted_local_rank(source_of(program, place.cwd))
    typed = any(word.partition("=")[0] in ("--local_rank", "--local-rank") for word in program)
    if not option or typed or (nodes == tasks == 1 and gpus in (0, 1)):
        return tuple(words)
    python = words[: len(words) - len(program)]
    add_local_rank(program, option)
    notify(f"adding {option}={{local_rank}}: the script declares this option and does not read LOCAL_RANK")
    return (*python, *program)
