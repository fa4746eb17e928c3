"""Programs and scripts that start a node's ranks themselves: they run once, or are refused with the line to type.

Such a program runs once per node (``--launcher none``). Without the number of its node it trains a model of its own. A
shell script that starts ranks runs once on one node; on several it is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterrun.base.errors import RequestError
from clusterrun.base.units import plural
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.secrets import refuse_shapes
from clusterrun.submit.launch_shape import (
    Values,
    format_line,
    gpus_around,
    job_options,
    of_one_node,
    one_gpu_each,
)
from clusterrun.submit.launcher_table import (
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
from clusterrun.submit.launchers import Around, Launch, join_options
from clusterrun.submit.python_line import split_python
from clusterrun.submit.script_launch import ShellScript, launch_in, read, script_of, text_of_all
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
#: Options that a program which starts its own ranks sets itself.
_OF_RANKS = ("tasks-per-node", "env", "setup")
#: The options that are read from a script which runs as it is.
_SHAPE = ("nodes", "gpus-per-node", "gres", "tasks-per-node")


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
    launcher = launcher_of(words)
    if launcher.title:
        return "" if launcher.options else launcher.title
    rest = words[prefix_length(words) :]
    return rest[0] if rest and has_starter_variable(words) else ""


def line_instead(words: Sequence[str], around: Around) -> str:
    """Return the line to type instead of a line that ``starts_own_ranks`` found."""
    line, launcher = words[prefix_length(words) :], launcher_of(words)
    variables = variables_before(words)
    options = {**_numbers_in(variables), **around.given}
    if launcher.needless:
        return _without_launcher(line, options, around.below)
    program = on_each_node(line, around._replace(given=options).nodes)
    if program is None:
        return of_one_node(starts_own_ranks(words))
    others = {name: text for name, text in variables.items() if name not in STARTER_NUMBERS}
    env = {**options.get("env", Value({}, "")).value, **others, **dict(launcher.env)}
    if env:
        options["env"] = Value(env, "")
    options["launcher"] = Value("none", "")
    return format_line(options, program)


def _numbers_in(variables: Mapping[str, str]) -> dict[str, Value]:
    """Return the options for the numbers in variables such as NNODES."""
    options = {}
    for name, option in STARTER_NUMBERS.items():
        number = variables.get(name, "")
        if re.fullmatch(r"[1-9][0-9]*", number):
            options[option] = Value(int(number), "")
    return options


def _without_launcher(line: Sequence[str], options: Values, below: Values) -> str:
    """Return the line of the Python program that a launcher starts; the number of its ranks is not known."""
    if {"gpus-per-node", "gres", "tasks-per-node"}.isdisjoint([*options, *below]):
        options = {**options, "gpus-per-node": Value("N", "")}
    return format_line(options, program_in(line))


# --- with --launcher none, on several nodes ---


def refuse_separate(words: Sequence[str], typed: Values, around: Around) -> None:
    """Raise RequestError if a program that runs once on each of several nodes would start a group of ranks on each.

    This is for ``--launcher none``; with ``--independent`` nothing is refused. ``typed`` are the typed options, for the
    hint; those ``around`` the line are all.
    """
    nodes = around.nodes
    if nodes == 1 or around.value("independent"):
        return
    rest = list(words[prefix_length(words) :])
    script = script_of(rest, around.cwd)
    if launcher_of(rest).title:
        _refuse_launch("this command", rest, shlex.join(rest), nodes, _in_bash(in_shell(rest), typed))
    elif script is not None:
        line = wrapped_in_shell(rest, script) if script.wrapper else ""
        command = read(script, around).command
        _refuse_launch(script.name, command, text_of_all(script, around.cwd), nodes, _in_bash(line, typed))
    else:
        program = split_python(rest)[1]
        _refuse_source(program, source_of(program, around.cwd), nodes)


def _in_bash(command: str, options: Values) -> str:
    """Return the line that runs a shell command; empty if there is none."""
    return format_line(options, ["bash", "-c", command]) if command else ""


def wrapped_in_shell(words: Sequence[str], script: ShellScript) -> str:
    """Return a wrapper's line (``uv run torchrun …``) as a shell command whose ranks of all nodes are one group."""
    outside = words[: len(words) - len(shlex.split(script.text))]
    return f"{shlex.join(outside)} {in_shell(words[len(outside) :])}"


def _refuse_launch(what: str, command: Sequence[str], text: str, nodes: int, hint: str) -> None:
    launcher = launcher_of(command)
    if launcher.on_nodes == "":
        return
    title = launcher.title
    if title in OF_ALL_NODES:
        message = f"{what} would start {title} on each of {plural(nodes, 'node')}, and each starts ranks on all of them"
        raise RequestError(message, hint="leave out --launcher none: clusterrun then translates the line, or prints it")
    if not knows_node(text):
        raise RequestError(_separate_groups(what, title, nodes), hint=hint or _options_on_nodes(launcher))


def _refuse_source(program: Sequence[str], source: str, nodes: int) -> None:
    starter = started_launcher(source)
    if starter and not knows_node(source):
        message = _separate_groups(program[1] if program[0] == "-m" else program[0], starter, nodes)
        hint = f"give {starter} the node's number from NODE_RANK (docs/launchers.md){_INDEPENDENT}"
        raise RequestError(message, hint=hint)


def _separate_groups(what: str, starter: str, nodes: int) -> str:
    """Return the message about ranks that would not meet."""
    return (
        f"{what} would start {starter} on each of {plural(nodes, 'node')} without NODE_RANK or MASTER_ADDR:"
        f" {nodes} separate groups of ranks, each with a model of its own"
    )


def _options_on_nodes(launcher: Launcher, then: str = "") -> str:
    """Return the hint with the options that make the ranks of several nodes one group; ``then`` is the line to type."""
    if launcher.on_nodes is None:
        return f"{launcher.title} starts the ranks of one node only: use --nodes 1{_INDEPENDENT}"
    return f"use in it: {launcher.title} {launcher.on_nodes}{then}{_INDEPENDENT}"


# --- a shell script ---


def script_options(words: Sequence[str], around: Around) -> dict[str, Value]:
    """Return the options with which a shell script that starts ranks runs once, on one node; none for other commands.

    Raises RequestError, with the line to type, for sbatch, a wrapper around a launcher, and a script on several nodes.
    """
    script = script_of(words, around.cwd)
    if script is None:
        return {}
    read(script, around)
    if script.sbatch is None and not script.command:
        return {}
    _refuse_groups(script)
    launch, options = _understand(script, around)
    starter = launcher_of(launch.line or launch.innermost or script.command)  # without srun around it
    after = around._replace(given=options)
    if after.nodes == 1 and _can_run_once(script, launch):
        once = _options_once(script, starter, options, around.given)
        advice = "" if gpus_around(after) else "   (for more than one GPU, add --gpus-per-node N)"
        line = format_line({**around.given, **once}, words)
        how = "so it runs once, with all GPUs of the job"
        around.notify(f"{script.name} starts {_title(starter)}, {how}: {line}{advice}")
        return once
    if _starts_ranks_itself(script, launch):
        once = _options_per_node(starter, options, around.given)
        raise _refusal(script, words, starter, once, after)
    raise _translation(script, launch, after)


def _title(launcher: Launcher) -> str:
    return launcher.title or "its own ranks"


def _refuse_groups(script: ShellScript) -> None:
    for word in ("hetjob", "packjob"):
        if word in script.directives:
            raise several_groups(script.name, f"`#SBATCH {word}`")
    if ":" in [*script.command, *(script.sbatch or ())]:
        raise several_groups(script.name, "`:`")


def several_groups(what: str, sign: str) -> RequestError:
    """Return the error for a heterogeneous job."""
    message = f"{what} asks for several groups of nodes ({sign}), a heterogeneous job, which clusterrun does not start"
    return RequestError(message, hint="submit one job for each group, or use sbatch without clusterrun")


def _understand(script: ShellScript, around: Around) -> tuple[Launch, Values]:
    """Return what a script asks for, a launch without a title if that is not understood, and the options with it."""
    try:
        launch = launch_in(script, around)
        return launch, join_options(around.given, job_options(launch, around))
    except RequestError:
        if script.sbatch is not None:
            raise
        return Launch(""), around.given


def _titles(script: ShellScript, launch: Launch) -> set[str]:
    """Return the names of the launchers that a script starts."""
    return launch.titles | {launcher_of(script.command).title}


def _can_run_once(script: ShellScript, launch: Launch) -> bool:
    """Return whether a script can run as it is on one node, which srun in it could not: it waits for its job."""
    typed_for_slurm = script.sbatch is not None or "srun" in _titles(script, launch)
    return not typed_for_slurm and not script.wrapper


def _options_once(script: ShellScript, starter: Launcher, options: Values, given: Values) -> dict[str, Value]:
    """Return the options with which a script runs once, on one node with the GPUs that its line names."""
    shape = {name: options[name] for name in _SHAPE if name in options.keys() - given.keys()}
    return {**shape, "launcher": Value("none", f"--launcher: {script.name} starts {_title(starter)}")}


def _options_per_node(starter: Launcher, options: Values, given: Values) -> dict[str, Value]:
    """Return the options with which a script runs once per node."""
    kept = {name: value for name, value in options.items() if name not in _OF_RANKS}
    if starter.env:
        kept["env"] = Value(dict(starter.env), "")
    return {**join_options(kept, given), "launcher": Value("none", "")}


def _starts_ranks_itself(script: ShellScript, launch: Launch) -> bool:
    """Return whether no line of clusterrun is known to do the same, so that a script must run once per node."""
    if script.wrapper or not launch.title:
        return True
    if script.sbatch is not None or not _titles(script, launch).isdisjoint(OF_ALL_NODES):
        return False
    if launch.refusal or _has_unknown(launch) or starts_own_ranks(launch.innermost):
        return True
    return bool(script.lost) or not script.exact


def _refusal(
    script: ShellScript, words: Sequence[str], starter: Launcher, once: Values, around: Around
) -> RequestError:  # fmt: skip
    """Return the error with the line that runs a script once per node, if its ranks then meet."""
    line = format_line(once, words)
    if around.nodes == 1 or starter.on_nodes == "" or knows_node(text_of_all(script, around.cwd)):
        return RequestError(_reason(script), hint=line)
    if script.wrapper and starter.on_nodes:
        return RequestError(_reason(script), hint=_in_bash(wrapped_in_shell(words, script), once))
    hint = _options_on_nodes(starter, f"; then: {line}")
    return RequestError(_separate_groups(script.name, starter.title, around.nodes), hint=hint)


def _translation(script: ShellScript, launch: Launch, around: Around) -> RequestError:
    """Return the error with the line that does what a script does."""
    refuse_shapes(" ".join(launch.program), f"the launch command in {script.name}")
    message = "; ".join([_reason(script), *_differences(script, launch)])
    options = dict(around.given)
    if starts_own_ranks(launch.innermost):
        options.pop("tasks-per-node", None)  # the one process of the script
        return RequestError(message, hint=line_instead(launch.innermost, around._replace(given=options, below={})))
    if launch.refusal and launch.instead.get("launcher") != "none":
        options |= launch.alternative
    return RequestError(message, hint=format_line(options, launch.program, quote))


def _reason(script: ShellScript) -> str:
    """Return why a script is refused."""
    if script.sbatch is not None:
        message = f"`sbatch {script.name}` is not supported, since clusterrun submits the job itself"
        return message if script.command else f"{message}; no line of the script starts the training"
    what = f"the {script.name} command" if script.wrapper or " -" in script.name else script.name
    return f"{what} starts {_title(launcher_of(script.command))}, but clusterrun would run {what} once per rank"


def _differences(script: ShellScript, launch: Launch) -> Iterator[str]:
    """Yield what the line does not do as a script does."""
    if script.late:
        late = _lines(map(str, script.late))
        yield f"Slurm ignores {late}, which stand after the first command; the command below follows them"
    if script.loop:
        yield f"the ranks are started in a loop (line {script.loop}), but the command below starts them once"
    own_ranks = starts_own_ranks(launch.innermost)
    if own_ranks:
        yield f"{own_ranks} starts the ranks of a node itself"
    if launch.refusal:
        yield launch.refusal
    if launch.sees_one_gpu:
        yield one_gpu_each(launch)
    if script.lost:
        yield f"the command below leaves out {_lines(script.lost)}"
    left_out = dict.fromkeys(filter(None, [*launch.own, script.output]))
    if left_out:
        yield f"left out: {', '.join(left_out)}"


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
