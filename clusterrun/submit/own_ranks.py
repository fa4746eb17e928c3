"""Programs that start the ranks of a node themselves: whether those of several nodes meet, and the line that does it.

Such a program runs once per node (``--launcher none``). Without the number of its node it trains a model of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import Value
from clusterrun.submit.launch_shape import Around, Values, format_line
from clusterrun.submit.launcher_table import (
    LAUNCHERS,
    OF_ALL_NODES,
    STARTER_NUMBERS,
    Launcher,
    has_starter_variable,
    in_shell,
    launcher_of,
    on_each_node,
    prefix_length,
    program_in,
    variables_before,
)
from clusterrun.submit.launchers import Place
from clusterrun.submit.python_line import split_python
from clusterrun.submit.script_launch import Script, parse, script_of, text_of_all
from clusterrun.submit.script_source import source_of, started_launcher

#: Variables that differ by node, or lead to the first one, under --launcher none.
_NODE = r"(?:NODE_RANK|MACHINE_RANK|GROUP_RANK|NNODES|MASTER_ADDR|SLURM_NODEID|SLURM_PROCID|SLURM_(?:JOB_)?NODELIST)"
_NAMED = re.compile(rf"(?<![A-Z_]){_NODE}(?![A-Z_])|\{{(?:node_)?rank\}}")
#: An assignment in a shell script, or in Python; its right side says whether the variable is the job's.
_ASSIGNED = re.compile(
    rf"(?:(?<![\w-])(?P<shell>{_NODE})=|(?:\[|setdefault\()\s*[\"'](?P<python>{_NODE})[\"'](?:\]\s*=(?!=)|\s*,))\s*"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|\$\([^\n]*|[^\s;]*)"
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE)
#: A meeting place that is not on the node itself.
_MEETING = re.compile(r"rdzv[-_]endpoint[=\s]+[\"']?(?!localhost|127\.|0\.0\.0\.0|\$\(?hostname|\$HOSTNAME)[\w$]")
_INDEPENDENT = "; if separate groups of ranks are intended, add --independent"


def knows_node(text: str) -> bool:
    """Return whether a script or a line uses something that differs by node, or leads to the first node.

    A variable that the text sets itself, such as ``MASTER_ADDR=localhost``, does not count.
    """
    text = _COMMENT.sub("", text)
    if _MEETING.search(text):
        return True
    named = set(_NAMED.findall(text))
    for assigned in _ASSIGNED.finditer(text):
        if not _NAMED.search(assigned["value"]):
            named.discard(assigned["shell"] or assigned["python"])
    return bool(named)


def starts_own_ranks(words: Sequence[str]) -> str:
    """Return the name of a program that starts a node's ranks itself and whose line is not translated, else ``""``."""
    rest = words[prefix_length(words) :]
    started = launcher_of(rest)
    if started is not None:
        return "" if started.launcher.options else started.title
    return rest[0] if rest and has_starter_variable(words) else ""


def line_instead(words: Sequence[str], around: Around) -> str:
    """Return the line to type instead of a line that ``starts_own_ranks`` found."""
    line = words[prefix_length(words) :]
    started = launcher_of(line)
    launcher = started.launcher if started else Launcher(())
    variables = variables_before(words)
    options = {**_numbers_in(variables), **around.given}
    if launcher.needless:
        return _without_launcher(line, options, around.below)
    program = on_each_node(line, around._replace(given=options).nodes)
    if program is None:
        title = starts_own_ranks(words)
        return f"{title} starts the ranks of one node only: use --nodes 1, or a line that torchrun would start"
    others = {name: text for name, text in variables.items() if name not in STARTER_NUMBERS}
    typed = options["env"].value if "env" in options else {}
    env = {**typed, **others, **dict(launcher.env)}
    if env:
        options["env"] = Value(env, "")
    options["launcher"] = Value("none", "")
    return format_line(options, program)


def _numbers_in(variables: Mapping[str, str]) -> dict[str, Value]:
    """Return the options for the numbers in variables such as NNODES."""
    options = {}
    for name, option in STARTER_NUMBERS.items():
        number = variables.get(name, "")
        if number.isdecimal() and number != "0":
            options[option] = Value(int(number), "")
    return options


def _without_launcher(line: Sequence[str], options: Values, below: Values) -> str:
    """Return the line of the Python program that a launcher starts; the number of its ranks is not known."""
    if {"gpus-per-node", "gres", "tasks-per-node"}.isdisjoint([*options, *below]):
        options = {**options, "gpus-per-node": Value("N", "")}
    return format_line(options, program_in(line))


def refuse_separate(words: Sequence[str], given: Values, values: Values, place: Place) -> None:
    """Raise RequestError if a program that runs once on each of several nodes would start a group of ranks on each.

    This is for ``--launcher none``; with ``--independent`` nothing is refused. ``given`` are the typed options, for the
    hint, and ``values`` are all.
    """
    around = Around(values, {}, place)
    nodes = around.nodes
    if nodes == 1 or around.value("independent"):
        return
    rest = list(words[prefix_length(words) :])
    script = script_of(rest, place.cwd)
    if launcher_of(rest) is not None:
        line = in_shell(rest)
        hint = _in_bash(line, given) if line else ""
        _refuse_launch("this command", rest, shlex.join(rest), nodes, hint)
    elif script is not None:
        command = parse(script, place).command
        hint = _in_bash(wrapped_in_shell(rest, script), given) if script.wrapper else ""
        _refuse_launch(script.name, command, text_of_all(script, place.cwd), nodes, hint)
    else:
        _refuse_source(split_python(rest)[1], nodes, place)


def _in_bash(command: str, options: Values) -> str:
    return format_line(options, ["bash", "-c", command])


def wrapped_in_shell(words: Sequence[str], script: Script) -> str:
    """Return a wrapper's line (``uv run torchrun …``) as a shell command whose ranks of all nodes are one group."""
    outside = words[: len(words) - len(shlex.split(script.text))]
    return f"{shlex.join(outside)} {in_shell(words[len(outside) :])}"


def _refuse_launch(what: str, command: Sequence[str], text: str, nodes: int, hint: str) -> None:
    started = launcher_of(command[prefix_length(command) :])
    if started is None or started.launcher.on_nodes == "":
        return
    title = started.title
    if title in OF_ALL_NODES:
        message = f"{what} would start {title} on each of {plural(nodes, 'node')}, and each starts ranks on all of them"
        raise RequestError(message, hint="leave out --launcher none: clusterrun then translates the line, or prints it")
    if not knows_node(text):
        raise RequestError(separate_groups(what, title, nodes), hint=hint or options_on_nodes(title))


def _refuse_source(program: Sequence[str], nodes: int, place: Place) -> None:
    source = source_of(program, place.cwd)
    starter = started_launcher(source)
    if starter and not knows_node(source):
        message = separate_groups(program[1] if program[0] == "-m" else program[0], starter, nodes)
        hint = f"give {starter} the node's number from NODE_RANK (docs/launchers.md){_INDEPENDENT}"
        raise RequestError(message, hint=hint)


def separate_groups(what: str, starter: str, nodes: int) -> str:
    """Return the message about ranks that would not meet."""
    return (
        f"{what} would start {starter} on each of {plural(nodes, 'node')} without NODE_RANK or MASTER_ADDR:"
        f" {nodes} separate groups of ranks, each with a model of its own"
    )


def options_on_nodes(title: str, line: str = "") -> str:
    """Return the hint with the options that make the ranks of several nodes one group, and the line to type then."""
    options = LAUNCHERS[title].on_nodes
    if options is None:
        return f"{title} starts the ranks of one node only: use --nodes 1{_INDEPENDENT}"
    then = f"; then: {line}" if line else ""
    return f"use in it: {title} {options}{then}{_INDEPENDENT}"
