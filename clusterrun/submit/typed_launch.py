"""Translate another launcher's line into options of clusterrun and the program of each rank, or refuse it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launch_shape import Values, format_line, format_options, job_options, refused_line
from clusterrun.submit.launchers import (
    Place,
    add_local_rank,
    find_launch,
    join_options,
    prefix_length,
    variables_before,
    without_python,
)
from clusterrun.submit.script_launch import refuse_scripts
from clusterrun.submit.script_source import has_subcommands, knows_local_rank, local_rank_option, source_of


def translate(
    words: Sequence[str], given: Values, below: Values, place: Place, notify: Callable[[str], None]
) -> tuple[tuple[str, ...], dict[str, Value]]:
    """Return the command that each rank runs, and the options that a launcher's line sets.

    ``given`` are the typed options and those of the job file, which a launcher's line must not contradict; ``below``
    are those of the profiles. With ``--launcher`` other than srun the command stays as it is. Raises RequestError, with
    the line to type, for a line that cannot be translated exactly.
    """
    launcher = given.get("launcher") or below.get("launcher")
    other = "" if launcher is None or launcher.value == "srun" else str(launcher.value)
    before, program = words[: prefix_length(words)], words[prefix_length(words) :]
    if program and before and "=" in before[0] and (other or find_launch(words, place) is None):
        variables = variables_before(words)
        env = {"env": Value(variables, "--env before the program")} if variables else {}
        rest, options = translate(program, join_options(given, env), below, place, notify)
        if env:
            notify("environment variables before the program are passed as: " + format_options(env))
        if ignored := {word.partition("=")[0] for word in before if "=" in word} - variables.keys():
            notify(f"ignoring {', '.join(sorted(ignored))}: the scheduler or clusterrun sets it")
        return rest, {**options, **env}
    if other:
        if other != "none" and (nested := find_launch(list(words), place)) is not None and nested.program:
            line = format_line(join_options(given, job_options(nested, given, below)), nested.program)
            raise RequestError(f"--launcher {other} would start {nested.title} once per rank", hint=line)
        return tuple(words), {}
    launch = find_launch(list(words), place)
    if launch is None:
        if launcher is None:  # with --launcher srun the user knows that the script fits one rank per GPU
            refuse_scripts(words, given, below, place)
        return (tuple(words) if _is_single(given, below) else _with_local_rank(words, place, notify)), {}
    if not launch.program:
        raise RequestError(f"{launch.title}: no script or program", hint="clusterrun submit -- train.py")
    options = job_options(launch, given, below)
    all_options = join_options(given, options)
    if launch.refusal:
        raise RequestError(launch.refusal, hint=refused_line(launch, all_options, given))
    # without defaults such as "srun without --gres has no GPUs", which a launcher in the script may contradict
    explicit = {name: one for name, one in all_options.items() if not one.source.startswith(("--gres:", "--nodes:"))}
    if launch.title == "srun" and "tasks-per-node" in explicit and explicit["tasks-per-node"].value == 1:
        del explicit["tasks-per-node"]  # a script with a launcher in it, once per node
    refuse_scripts(launch.program, explicit, below, place, (launch, given) if launch.title == "srun" else None)
    own = f"   (left out: {', '.join(dict.fromkeys(launch.own))})" if launch.own else ""
    notify(f"{launch.title} became: {format_line(all_options, launch.program)}{own}")
    if not {"gpus-per-node", "gres", "tasks-per-node"} & {*all_options, *below}:
        notify(f"{launch.title} does not say how many GPUs: add --gpus-per-node N for more than one per node")
    return tuple(launch.program), options


def _is_single(given: Values, below: Values) -> bool:
    """Return whether the options ask for one rank in all."""

    def number(name: str, default: int) -> object:
        value = given.get(name) or below.get(name)
        return default if value is None else value.value

    nodes, gpus = number("nodes", 1), number("gpus-per-node", -1)
    return nodes == 1 and number("tasks-per-node", 1) == 1 and gpus in (0, 1)


def _with_local_rank(words: Sequence[str], place: Place, notify: Callable[[str], None]) -> tuple[str, ...]:
    """Return a command with the local rank as an argument, if its script declares that option and reads no variable."""
    program = without_python(words)
    source = source_of(program, place.cwd)
    option = local_rank_option(source)
    if (
        not option
        or knows_local_rank(source)
        or has_subcommands(source)
        or any(word.partition("=")[0] in ("--local_rank", "--local-rank") for word in program)
    ):
        return tuple(words)
    python = words[: len(words) - len(program)]
    add_local_rank(program, option)
    notify(f"adding {option}={{local_rank}}: the script declares this option and does not read LOCAL_RANK")
    return (*python, *program)
