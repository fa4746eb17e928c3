"""A shell script that starts ranks itself: it runs once on one node, or is refused with the line that does the same."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.secrets import refuse_shapes
from clusterrun.submit.launch_shape import Around, Values, format_line, gpus_of, job_options, one_gpu_each
from clusterrun.submit.launcher_table import LAUNCHERS, OF_ALL_NODES, launcher_of, prefix_length
from clusterrun.submit.launchers import Launch, join_options
from clusterrun.submit.own_ranks import (
    knows_node,
    line_instead,
    options_on_nodes,
    separate_groups,
    starts_own_ranks,
    wrapped_in_shell,
)
from clusterrun.submit.script_launch import Script, launch_in, parse, script_of, text_of_all

if TYPE_CHECKING:
    from clusterrun.submit.shell_scripts import ShellScript

#: Options that a program which starts its own ranks sets itself.
_OF_RANKS = ("tasks-per-node", "env", "setup")
#: The options that are read from a script which runs as it is.
_SHAPE = ("nodes", "gpus-per-node", "gres", "tasks-per-node")


def script_options(words: Sequence[str], around: Around) -> dict[str, Value]:
    """Return the options with which a shell script that starts ranks runs once, on one node; none for other commands.

    Raises RequestError, with the line to type, for sbatch, a wrapper around a launcher, and a script on several nodes.
    """
    given, place = around.given, around.place
    script = script_of(words, place.cwd)
    if script is None:
        return {}
    parsed = parse(script, place)
    if script.sbatch is None and not parsed.command:
        return {}
    _refuse_groups(script, parsed)
    launch, options = None, dict(given)
    try:
        launch = launch_in(script, parsed, place)
        options = join_options(given, job_options(launch, around))
    except RequestError:
        if script.sbatch is not None:
            raise
        launch = None
        parsed.titles.clear()
    command = _ScriptCommand(script, parsed, words, launch, options, around)
    nodes = around._replace(given=options).nodes
    if nodes == 1 and command.can_run_once():
        around.notify(command.notice(around.below))
        return command.options_once()
    raise command.refusal(nodes, text_of_all(script, place.cwd))


def _refuse_groups(script: Script, parsed: ShellScript) -> None:
    for word in parsed.directives:
        if word in ("hetjob", "packjob"):
            raise several_groups(script.name, f"`#SBATCH {word}`")
    if ":" in parsed.command or ":" in (script.sbatch or ()):
        raise several_groups(script.name, "`:`")


def several_groups(what: str, sign: str) -> RequestError:
    """Return the error for a heterogeneous job."""
    message = f"{what} asks for several groups of nodes ({sign}), a heterogeneous job, which clusterrun does not start"
    return RequestError(message, hint="submit one job for each group, or use sbatch without clusterrun")


@dataclass(frozen=True, slots=True)
class _ScriptCommand:
    """A command that is a script: what it is, what it asks for, and the options of the line that does the same.

    ``launch`` is None if the script was not understood; ``options`` include those that are given ``around`` it.
    """

    script: Script
    parsed: ShellScript
    words: Sequence[str]
    launch: Launch | None
    options: Values
    around: Around

    @property
    def titles(self) -> set[str]:
        """The names of the launchers that the script starts."""
        outer = launcher_of(self.parsed.command[prefix_length(self.parsed.command) :])
        return self.parsed.titles | {outer.title} if outer else self.parsed.titles

    def starter(self) -> str:
        """Return the name of the launcher that starts the ranks."""
        command: Sequence[str] = self.parsed.command
        if self.launch is not None:
            command = self.launch.line or self.parsed.innermost  # without srun around it
        started = launcher_of(command[prefix_length(command) :])
        return started.title if started else "its own ranks"

    def can_run_once(self) -> bool:
        """Return whether the script can run as it is on one node, which srun in it could not: it waits for its job."""
        typed_for_slurm = self.script.sbatch is not None or "srun" in self.titles
        return not typed_for_slurm and not self.script.wrapper

    def options_once(self) -> dict[str, Value]:
        """Return the options with which the script runs once, on one node with the GPUs that its line names."""
        source = f"--launcher: {self.script.name} starts {self.starter()}"
        shape = {
            name: value for name, value in self.options.items() if name in _SHAPE and name not in self.around.given
        }
        return {**shape, "launcher": Value("none", source)}

    def notice(self, below: Values) -> str:
        """Return the line that says how the script runs."""
        line = format_line({**self.around.given, **self.options_once()}, self.words)
        what = f"{self.script.name} starts {self.starter()}, so it runs once, with all GPUs of the job: {line}"
        if gpus_of(self.options) or gpus_of(below):
            return what
        return f"{what}   (for more than one GPU, add --gpus-per-node N)"

    def refusal(self, nodes: int, text: str) -> RequestError:
        """Return the error with the line to type; ``text`` is that of all scripts."""
        if self.launch is None or self.starts_ranks_itself(self.launch):
            return self.as_it_is(nodes, text)
        return self.translated(self.launch)

    def starts_ranks_itself(self, launch: Launch) -> bool:
        """Return whether no line of clusterrun is known to do the same, so that the script must run once per node."""
        if self.script.wrapper:
            return True
        if self.script.sbatch is not None or not self.titles.isdisjoint(OF_ALL_NODES):
            return False
        if launch.refusal or _has_unknown(launch) or starts_own_ranks(self.parsed.innermost):
            return True
        return bool(self.parsed.lost) or not self.parsed.exact

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
        """Return the line that runs a command once per node."""
        kept = {name: value for name, value in self.options.items() if name not in _OF_RANKS}
        launcher = LAUNCHERS.get(self.starter())
        if launcher is not None and launcher.env:
            kept["env"] = Value(dict(launcher.env), "")
        return format_line({**join_options(kept, self.around.given), "launcher": Value("none", "")}, words)

    def translated(self, launch: Launch) -> RequestError:
        """Return the error with the line that does what the script does."""
        refuse_shapes(" ".join(launch.program), f"the launch command in {self.script.name}")
        message = "; ".join([self.reason(), *self.differences(launch)])
        options = dict(self.options)
        if starts_own_ranks(self.parsed.innermost):
            options.pop("tasks-per-node", None)  # the one process of the script
            return RequestError(
                message, hint=line_instead(self.parsed.innermost, Around(options, {}, self.around.place))
            )
        if launch.refusal and launch.instead.get("launcher") != "none":
            options |= {name: Value(value, "") for name, value in launch.instead.items()}
        return RequestError(message, hint=format_line(options, launch.program, quote))

    def reason(self) -> str:
        """Return why the script is refused."""
        name, command = self.script.name, self.parsed.command
        if self.script.sbatch is not None:
            message = f"`sbatch {name}` is not supported, since clusterrun submits the job itself"
            return message if command else f"{message}; no line of the script starts the training"
        what = f"the {name} command" if self.script.wrapper or " -" in name else name
        started = launcher_of(command[prefix_length(command) :])
        title = started.title if started else "its own ranks"
        return f"{what} starts {title}, but clusterrun would run {what} once per rank"

    def differences(self, launch: Launch) -> Iterator[str]:
        """Yield what the line does not do as the script does."""
        parsed = self.parsed
        if parsed.late:
            late = _lines(map(str, parsed.late))
            yield f"Slurm ignores {late}, which stand after the first command; the command below follows them"
        if parsed.loop:
            yield f"the ranks are started in a loop (line {parsed.loop}), but the command below starts them once"
        own_ranks = starts_own_ranks(parsed.innermost)
        if own_ranks:
            yield f"{own_ranks} starts the ranks of a node itself"
        if launch.refusal:
            yield launch.refusal
        if launch.sees_one_gpu:
            yield one_gpu_each(launch)
        if parsed.lost:
            yield f"the command below leaves out {_lines(parsed.lost)}"
        left_out = [*launch.own, parsed.output] if parsed.output else launch.own
        if left_out:
            yield f"left out: {', '.join(dict.fromkeys(left_out))}"


def _has_unknown(launch: Launch) -> bool:
    """Return whether a value of the line is known on the node only."""
    values = [str(value.value) for name, value in launch.options.items() if name != "setup"]
    return any("$" in word for word in [*launch.program, *launch.env.values(), *values])


def _lines(numbers: Iterable[str]) -> str:
    distinct = dict.fromkeys(numbers)
    return f"{'line' if len(distinct) == 1 else 'lines'} {', '.join(distinct)}"


_NOT_QUOTED = re.compile(r"\$\([^()]*\)")


def quote(word: str) -> str:
    """Quote a word for the shell; a variable of the environment and ``$(…)`` stay what they are."""
    outside = _NOT_QUOTED.sub("", word)
    has_variable = re.search(r"\$[{(]?[A-Za-z_]", word) is not None
    if has_variable and not re.search(r"[\"\\`!']", outside):
        return f'"{word}"'
    return shlex.quote(word)
