"""Refuse a command that would start ranks more than once, with the line that starts them as one group."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.secrets import refuse_shapes
from clusterrun.submit.launch_shape import Values, format_line, job_options, one_gpu_each, refused_line
from clusterrun.submit.launcher_options import LAUNCHERS
from clusterrun.submit.launchers import Launch, Place, join_options, launcher_of, prefix_length
from clusterrun.submit.own_ranks import in_shell, knows_node
from clusterrun.submit.python_line import split_python
from clusterrun.submit.script_launch import Script, launch_in, parse, script_of, text_of_all
from clusterrun.submit.script_source import source_of, started_launcher

if TYPE_CHECKING:
    from clusterrun.submit.shell_scripts import ShellScript

_OF_RANKS = ("tasks-per-node", "env", "setup")  # options that a program which starts its own ranks sets itself
_OF_ALL_NODES = ("srun", "mpirun", "horovodrun")
_ONE = Value(1, "default")
_BY_ITSELF = "; if separate groups of ranks are intended, add --independent"


def nodes_of(*levels: Values) -> int:
    """Return the number of nodes that the first of some levels of options sets; 1 if none does."""
    return int(next((level["nodes"] for level in levels if "nodes" in level), _ONE).value)


def refuse_separate(words: Sequence[str], given: Values, values: Values, place: Place) -> None:
    """Raise RequestError if a program that runs once on each of several nodes would start a group of ranks on each.

    This is for ``--launcher none``; with ``--independent`` nothing is refused. ``given`` are the typed options, for the
    hint, and ``values`` are all.
    """
    nodes = nodes_of(values)
    independent = values.get("independent")
    if nodes == 1 or (independent is not None and independent.value):
        return
    rest = list(words[prefix_length(words) :])
    script = script_of(rest, place.cwd)
    if launcher_of(rest) is not None:
        _refuse_launch(
            "this command", rest, shlex.join(rest), nodes, in_shell(rest) and _in_bash(in_shell(rest), given)
        )
    elif script is not None:
        command = parse(script, place).command
        wrapped = _in_bash(wrapped_in_shell(rest, script), given) if script.wrapper else ""
        _refuse_launch(script.name, command, text_of_all(script, place.cwd), nodes, wrapped)
    else:
        _refuse_source(split_python(rest)[1], nodes, place)


def _in_bash(command: str, options: Values) -> str:
    return format_line(options, ["bash", "-c", command])


def wrapped_in_shell(words: Sequence[str], script: Script) -> str:
    """Return a wrapper's line (``uv run torchrun …``) as a shell command whose ranks of all nodes are one group."""
    outside = words[: len(words) - len(shlex.split(script.text))]
    return f"{shlex.join(outside)} {in_shell(words[len(outside) :])}"


def _refuse_launch(what: str, command: Sequence[str], text: str, nodes: int, hint: str) -> None:
    named = launcher_of(command[prefix_length(command) :])
    if named is None or LAUNCHERS[named[0]].on_nodes == "" or (named[0] not in _OF_ALL_NODES and knows_node(text)):
        return
    title = named[0]
    if title in _OF_ALL_NODES:
        message = f"{what} would start {title} on each of {plural(nodes, 'node')}, and each starts ranks on all of them"
        raise RequestError(message, hint="leave out --launcher none: clusterrun then translates the line, or prints it")
    raise RequestError(separate_groups(what, title, nodes), hint=hint or options_on_nodes(title))


def _refuse_source(program: Sequence[str], nodes: int, place: Place) -> None:
    source = source_of(program, place.cwd)
    starter = started_launcher(source)
    if starter and not knows_node(source):
        message = separate_groups(program[1] if program[0] == "-m" else program[0], starter, nodes)
        raise RequestError(
            message, hint=f"give {starter} the node's number from NODE_RANK (docs/launchers.md){_BY_ITSELF}"
        )


def separate_groups(what: str, starter: str, nodes: int) -> str:
    """Return the message about ranks that would not meet."""
    return (
        f"{what} would start {starter} on each of {plural(nodes, 'node')} without NODE_RANK or MASTER_ADDR:"
        f" {nodes} separate groups of ranks, each with a model of its own"
    )


def options_on_nodes(title: str, line: str = "") -> str:
    """Return the hint with the options that make the ranks of several nodes one group, and the line to type then."""
    if LAUNCHERS[title].on_nodes is None:
        return f"{title} starts the ranks of one node only: use --nodes 1{_BY_ITSELF}"
    then = f"; then: {line}" if line else ""
    return f"use in it: {title} {LAUNCHERS[title].on_nodes}{then}{_BY_ITSELF}"


def refuse_scripts(words: Sequence[str], given: Values, below: Values, place: Place) -> None:
    """Raise RequestError if a command is sbatch, a shell script that starts a launcher, or a wrapper around one."""
    script = script_of(words, place.cwd)
    if script is None:
        return
    parsed = parse(script, place)
    if script.sbatch is None and not parsed.command:
        return
    _refuse_groups(script, parsed)
    launch, options = None, dict(given)
    try:
        launch = launch_in(script, parsed, place)
        options = join_options(given, job_options(launch, given, below))
    except RequestError:
        if script.sbatch is not None:
            raise
        launch = None
    refused = _Refused(script, parsed, words, launch, options, given)
    if launch is None or refused.starts_ranks_itself(launch):
        nodes = nodes_of(options, below)
        raise refused.as_it_is(nodes, text_of_all(script, place.cwd))
    raise refused.translated(launch)


def _refuse_groups(script: Script, parsed: ShellScript) -> None:
    signs = [word for word in parsed.directives if word in ("hetjob", "packjob")]
    if signs:
        raise several_groups(script.name, f"`#SBATCH {signs[0]}`")
    if ":" in parsed.command or ":" in (script.sbatch or ()):
        raise several_groups(script.name, "`:`")


def several_groups(what: str, sign: str) -> RequestError:
    """Return the error for a heterogeneous job."""
    message = f"{what} asks for several groups of nodes ({sign}), a heterogeneous job, which clusterrun does not start"
    return RequestError(message, hint="submit one job for each group, or use sbatch without clusterrun")


@dataclass(frozen=True, slots=True)
class _Refused:
    """A script that is refused: what it is, what it asks for, and the options of the line that does the same."""

    script: Script
    parsed: ShellScript
    words: Sequence[str]
    launch: Launch | None
    options: Values
    given: Values

    def starts_ranks_itself(self, launch: Launch) -> bool:
        """Return whether no line of clusterrun is known to do the same, so that the script must run once per node."""
        if self.script.wrapper:
            return True
        if self.script.sbatch is not None or self.starts_all_nodes(launch):
            return False
        return bool(launch.refusal or self.parsed.lost or not self.parsed.exact or _has_unknown(launch))

    def starts_all_nodes(self, launch: Launch) -> bool:
        """Return whether the script is to run once, on the first node: it starts the ranks of all nodes from there."""
        command = self.parsed.command
        named = launcher_of(command[prefix_length(command) :])
        return launch.title.split()[0] in _OF_ALL_NODES or (named is not None and named[0] in _OF_ALL_NODES)

    def as_it_is(self, nodes: int, text: str) -> RequestError:
        """Return the error with the line that runs the script once per node, if its ranks then meet."""
        title = self.starter()
        launcher = LAUNCHERS.get(title)
        if nodes == 1 or launcher is None or launcher.on_nodes == "" or knows_node(text):
            return RequestError(self.reason(), hint=self.once_per_node(self.words))
        if self.script.wrapper and launcher.on_nodes:
            command = wrapped_in_shell(self.words, self.script)
            return RequestError(self.reason(), hint=self.once_per_node(["bash", "-c", command]))
        hint = options_on_nodes(title, self.once_per_node(self.words))
        return RequestError(separate_groups(self.script.name, title, nodes), hint=hint)

    def once_per_node(self, words: Sequence[str]) -> str:
        kept = {name: value for name, value in self.options.items() if name not in _OF_RANKS}
        if self.launch is not None and self.launch.launcher is not None and self.launch.launcher.env:
            kept |= {"env": Value(dict(self.launch.launcher.env), "")}
        return format_line({**join_options(kept, self.given), "launcher": Value("none", "")}, words)

    def translated(self, launch: Launch) -> RequestError:
        """Return the error with the line that does what the script does."""
        refuse_shapes(" ".join(launch.program), f"the launch command in {self.script.name}")
        parts = [self.reason(), *self.differences(launch)]
        if launch.own_ranks:
            return RequestError("; ".join(parts), hint=refused_line(launch, self.options, self.given, {}))
        options = dict(self.options)
        if launch.refusal and launch.instead.get("launcher") != "none":
            options |= {name: Value(value, "") for name, value in launch.instead.items()}
        return RequestError("; ".join(parts), hint=format_line(options, launch.program, quote))

    def starter(self) -> str:
        """Return the name of the launcher that starts the ranks."""
        if self.launch is not None and self.launch.launcher is not None:
            return next(title for title, one in LAUNCHERS.items() if one is self.launch.launcher)
        command = self.parsed.command
        named = launcher_of(command[prefix_length(command) :])
        return named[0] if named else "its own ranks"

    def reason(self) -> str:
        """Return why the script is refused."""
        name, command = self.script.name, self.parsed.command
        if self.script.sbatch is not None:
            message = f"`sbatch {name}` is not supported, since clusterrun submits the job itself"
            return message if command else f"{message}; no line of the script starts the training"
        what = f"the {name} command" if self.script.wrapper or " -" in name else name
        named = launcher_of(command[prefix_length(command) :])
        return f"{what} starts {named[0] if named else 'its own ranks'}, but clusterrun would run {what} once per rank"

    def differences(self, launch: Launch) -> Iterator[str]:
        """Yield what the line does not do as the script does."""
        parsed = self.parsed
        if parsed.late:
            late = _lines(map(str, parsed.late))
            yield f"Slurm ignores {late}, which stand after the first command; the command below follows them"
        if parsed.loop:
            yield f"the ranks are started in a loop (line {parsed.loop}), but the command below starts them once"
        if launch.refusal:
            yield launch.refusal
        if launch.sees_one_gpu:
            yield one_gpu_each(launch)
        if parsed.lost:
            yield f"the command below leaves out {_lines(parsed.lost)}"
        if own := [*launch.own, *([parsed.output] if parsed.output else [])]:
            yield f"left out: {', '.join(dict.fromkeys(own))}"


def _has_unknown(launch: Launch) -> bool:
    """Return whether a value of the line is known on the node only."""
    values = [str(value.value) for name, value in launch.options.items() if name != "setup"]
    return any("$" in word for word in [*launch.program, *launch.env.values(), *values])


def _lines(numbers: Iterable[str]) -> str:
    numbers = list(dict.fromkeys(numbers))
    return f"line{'s'[: len(numbers) > 1]} {', '.join(numbers)}"


_NOT_QUOTED = re.compile(r"\$\([^()]*\)")


def quote(word: str) -> str:
    """Quote a word for the shell; a variable of the environment and ``$(…)`` stay what they are."""
    outside = _NOT_QUOTED.sub("", word)
    if re.search(r"\$[{(]?[A-Za-z_]", word) and not re.search(r"[\"\\`!']", outside):
        return f'"{word}"'
    return shlex.quote(word)
