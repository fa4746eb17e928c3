"""Merge job file, profiles and flags into a request, and turn it into a specification.

Reads files and runs the job's Python to check its packages; writes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterrun.base.errors import CommandError, RequestError, from_source, nearest
from clusterrun.base.fields import FIELD, FIELDS
from clusterrun.base.units import minutes_and_seconds
from clusterrun.config import profiles
from clusterrun.config.files import is_file
from clusterrun.config.profiles import JobFile, Profiles
from clusterrun.config.rivals import drop_rivals
from clusterrun.config.sweep_request import SweepRequest
from clusterrun.jobspec.containers import is_file_name
from clusterrun.jobspec.fields import Value, check_text, check_value, gres_gpus
from clusterrun.jobspec.secrets import refuse_shapes
from clusterrun.jobspec.spec import Check, Command, Function, JobSpec, Module, Script, Task, Work, build_spec, fit_name
from clusterrun.scheduler import KILL_ON_INVALID_DEP
from clusterrun.submit.environments import OWN, expand, find_python, with_python
from clusterrun.submit.job_python import JobPython, Starts, choose_python
from clusterrun.submit.python_line import is_python, split_python
from clusterrun.system import shell

#: Variables of many guides that do nothing if they are 0.
_NO_EFFECT = {
    ("CUDA_LAUNCH_BLOCKING", "0"): "0 is the default",
    ("NCCL_TREE_THRESHOLD", "0"): "NCCL 2.5 and newer ignore it",
}
#: Options that take a time, the last after ``hold=``.
_DURATIONS = ("time", "total-time", "on-failure")
#: The condition that another job succeeds, and the source of a dependency that has it. It is no option: `why` would
#: repeat it in a command for later, when Slurm has forgotten the other job.
AFTER_OK, WAITS_FOR_SUCCESS = "afterok", "after-ok"
_NOT_SET = Value(None, "")
#: Options that stay out of the specification: the address of a webhook is a secret.
NOTIFY = ("notify", "notify-on")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitArgs:
    """The arguments of a submit: a job file's name, the words after ``--``, and the flags (names of ``FIELDS``).

    The words are a command, or further arguments for the job file's program.
    ``work``, if given, replaces the first two. With ``exact`` the flags are all values, those of a record but for the
    ``typed`` ones: profiles are not used.
    """

    job: str | None = None
    command: tuple[str, ...] = ()
    flags: Mapping[str, Value] = field(default_factory=dict)
    profile: str | None = None
    work: Work | None = None
    exact: bool = False
    typed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, *words: str, job: str | None = None, profile: str | None = None, **options: Any) -> SubmitArgs:
        """Return what ``submit JOB -- WORDS`` takes; ``options`` are its options: ``gpus_per_node=4``.

        Raises RequestError for an unknown option.
        """
        flags = {name.replace("_", "-"): Value(value, "SubmitArgs") for name, value in options.items()}
        unknown = sorted(flags.keys() - FIELD.keys())
        if unknown:
            name = unknown[0].replace("-", "_")
            raise RequestError(f"no such option: {name}", hint=nearest(unknown[0], list(FIELD)).replace("-", "_"))
        return cls(job=job, command=words, flags=flags, profile=profile)


class Levels(NamedTuple):
    """The levels of a request by who wrote them, highest first."""

    typed: list[dict[str, Value]]
    files: list[dict[str, Value]]
    own: list[dict[str, Value]]

    def highest_first(self) -> list[dict[str, Value]]:
        return [*self.typed, *self.files, *self.own]

    def merge(self) -> dict[str, Value]:
        return profiles.merge(self.highest_first())


@dataclass(frozen=True, slots=True)
class Request:
    """A merged request: values with their sources, the work, and lines for the user.

    ``python`` is the job's Python as checks may start it here; ``levels`` are what was merged.
    """

    root: Path
    values: dict[str, Value]
    work: Work
    notices: list[str]
    python: JobPython
    levels: Levels
    job: JobFile | None = None

    @property
    def scheduler(self) -> str:
        return str(self.values.get("scheduler", Value("auto", "default")).value)

    @property
    def in_job(self) -> str:
        """The Slurm job in which the run starts; empty if it gets a job of its own."""
        job = str(self.values.get("in-job", Value("none", "")).value)
        return "" if job == "none" else job

    @property
    def sweep(self) -> SweepRequest:
        """What the job file's table ``[sweep]`` requests; nothing without one."""
        return self.job.sweep if self.job is not None else SweepRequest()


def load_request(
    args: SubmitArgs, cwd: Path, environ: Mapping[str, str], find_cluster: Callable[[], str | None] | None = None,
    starts: Starts = Starts.ANY,
) -> Request:  # fmt: skip
    """Merge job file, profiles and flags (flag > job file > project > user > environment). Raises RequestError.

    ``find_cluster`` returns the cluster at hand, as for :func:`profiles.load_profiles`; ``starts`` is which Python the
    command may start.
    """
    known = (
        profiles.no_profiles(cwd) if args.exact else profiles.load_profiles(cwd, environ, args.profile, find_cluster)
    )
    levels = _levels(args, known, cwd, environ)
    job = _load_job(args, known, cwd, environ)
    below = profiles.merge([*levels.files, *levels.own])
    in_file = with_python(job.values, known.root, environ) if job else {}
    levels.files.insert(0, in_file)
    folder, notices = known.root if job else cwd, list(known.notices)

    def job_python(value: Value | None) -> JobPython:
        return choose_python(levels.typed, levels.files, value, known.root, environ, starts)

    def work_of(words: Sequence[str]) -> Work:
        _check_words(words)
        given = profiles.merge([*levels.typed, in_file])
        python = job_python(given.get("python") or below.get("python"))
        # the tables of other launchers, which a job file without a command does not need
        from clusterrun.submit.launchers import Around
        from clusterrun.submit.typed_launch import translate

        around = Around(given, below, folder, environ, notices.append, python)
        command, options = translate(words, around)
        if job is None:
            levels.typed.append(options)
        else:
            levels.files.insert(0, options)
        return parse_work(command, folder, environ, notices.append)

    work = _find_work(args, job, work_of)
    values = levels.merge()
    notices += drop_rivals(levels.highest_first(), values)
    expand(values, environ)
    if isinstance(work, Check):
        values = _of_check(values)
    work = _with_settings(work, values, args)
    if job is not None:
        values.setdefault("job-name", Value(fit_name(job.name), "default"))
    values |= {name: replace(args.flags[name], value=path) for name, path in typed_files(args.flags, cwd).items()}
    python = job_python(values.get("python"))
    values["python"] = find_python(values.get("python"), environ)
    _refuse_separate_groups(args, work, values, folder, environ)
    return Request(known.root, values, work, notices, python, levels, job)


def _levels(args: SubmitArgs, known: Profiles, cwd: Path, environ: Mapping[str, str]) -> Levels:
    """Return the levels below and above a job file, each with the Python of its environment."""
    if args.exact:  # recorded values: a record may have come with the project
        recorded = dict(args.flags)
        typed = {name: recorded.pop(name) for name in args.flags if name in args.typed}
        return Levels([with_python(typed, cwd, environ)], [with_python(recorded, cwd, environ)], [])
    typed = with_python(args.flags, cwd, environ)
    below = [with_python(level, known.root, environ) for level in known.levels]
    return Levels([typed], below[: known.of_project], below[known.of_project :])


def _load_job(args: SubmitArgs, known: Profiles, cwd: Path, environ: Mapping[str, str]) -> JobFile | None:
    """Return the job file of a submit, the words after ``--`` added to its arguments; None for a typed command."""
    if args.work is not None or (args.command and not args.job):
        return None
    job = profiles.load_job(args.job or known.default_job.value, known.root, cwd=cwd, environ=environ)
    return _with_arguments(job, args.command, environ) if args.command else job


def _with_arguments(job: JobFile, words: Sequence[str], environ: Mapping[str, str]) -> JobFile:
    """Return the job with more arguments; raises RequestError for a task, and if the words name another program."""
    first = words[0]
    if first == "-m" or first.endswith((".py", ".sh")) or shutil.which(first, path=environ.get("PATH")):
        hint = "use only one: `clusterrun submit JOB` or `clusterrun submit -- SCRIPT`"
        raise RequestError("both a job file and a script were given", hint=hint)
    if job.kind == "task":
        hint = f"clusterrun submit {shlex.quote(job.name)} --set lr=1e-4"
        raise RequestError(f"{job.target} takes settings, not arguments", hint=hint)
    return job._replace(args=(*job.args, *words))


def _find_work(args: SubmitArgs, job: JobFile | None, work_of: Callable[[Sequence[str]], Work]) -> Work:
    """Return what a submit runs; ``work_of`` reads a command."""
    if args.work is not None:
        _check_words(getattr(args.work, "args", ()))
        return args.work
    if job is None:
        return work_of(args.command)
    if job.kind == "task":
        return Task(job.target)
    return work_of(("-m", job.target, *job.args) if job.kind == "module" else (job.target, *job.args))


def _with_settings(work: Work, values: dict[str, Value], args: SubmitArgs) -> Work:
    """Return the work with the settings of the merged values; only a built-in task has some."""
    settings, fp16 = values.pop("set", Value({}, "default")), values.pop("fp16", None)
    if not isinstance(work, Task):
        for name in ("set", "fp16"):
            if name in args.flags:
                hint = "pass arguments to your script: -- train.py --lr 1e-4"
                raise RequestError(f"--{name} is only for built-in tasks", hint=hint)
        return work
    values["set"] = _with_precision(settings, fp16, args)
    return Task(work.name, tuple(values["set"].value.items()))


def depend(request: Request, conditions: Sequence[str]) -> Request:
    """Return the request with conditions such as ``afterok:12`` added to its ``--dependency``.

    A job that waits for the success of another is cancelled if that one fails. Raises RequestError if the conditions
    cannot be combined.
    """
    if not conditions:
        return request
    old = str(request.values.get("dependency", Value("", "")).value)
    if "?" in old:
        raise RequestError(
            f"--dependency {old} starts the job as soon as one condition is met, so it cannot be combined with"
            " --after, --after-ok or --chain",
            hint="put all conditions into --dependency",
        )
    text = ",".join(conditions)
    source = WAITS_FOR_SUCCESS if AFTER_OK in text else "after"
    value = Value(f"{old},{text}" if old else text, source)
    return replace(request, values={**request.values, "dependency": value})


def _of_check(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the options that a check takes; those for training are the profile's."""
    return {name: value for name, value in values.items() if not FIELD[name].training}


def _refuse_separate_groups(
    args: SubmitArgs, work: Work, values: Mapping[str, Value], cwd: Path, environ: Mapping[str, str]
) -> None:
    """Raise RequestError if a program runs once on each of several nodes and its ranks would not meet."""
    if values.get("launcher", _NOT_SET).value != "none" or values.get("nodes", _NOT_SET).value in (None, 1):
        return
    from clusterrun.submit.launchers import Around  # the tables of launchers
    from clusterrun.submit.own_ranks import refuse_separate

    is_whole = not args.job  # after a job file's name the typed words are only arguments
    words = (is_whole and args.command) or command_of(work)
    if words:
        refuse_separate(words, args.flags, Around(values, {}, cwd, environ))


def command_of(work: Work) -> tuple[str, ...]:
    """Return a script, a module or a command as it is typed; empty for other work."""
    if isinstance(work, Module):
        return ("-m", work.name, *work.args)
    return (work.path, *work.args) if isinstance(work, Script | Command) else ()


def typed_files(flags: Mapping[str, Value], folder: Path) -> dict[str, str]:
    """Return the absolute paths of the files that options name, typed in a folder."""
    files = ["template", "accelerate-config"]
    if is_file_name(str(flags.get("container-image", _NOT_SET).value)):
        files.append("container-image")
    return {name: str(folder / flags[name].value) for name in files if name in flags}


def _with_precision(settings: Value, fp16: Value | None, args: SubmitArgs) -> Value:
    """Return the task's settings with the precision of --fp16 or --no-fp16."""
    if fp16 is None:
        return settings
    check_value(FIELD["fp16"], fp16)
    is_typed = "fp16" in args.flags
    if is_typed and "precision" in args.flags.get("set", Value({}, "")).value:
        raise RequestError("--fp16 conflicts with --set precision", hint="keep one of them")
    if "precision" in settings.value and not is_typed:
        return settings
    # a flag comes first: `why` repeats only flags in its command line
    sources = ", ".join(dict.fromkeys([fp16.source, settings.source] if settings.value else [fp16.source]))
    return Value(settings.value | {"precision": "fp16" if fp16.value else "fp32"}, sources)


def resolve_spec(request: Request, *, has_gpus: bool | None, local: bool) -> tuple[JobSpec, list[str]]:
    """Return the specification for a scheduler, and notices about options that it ignores.

    ``has_gpus`` is whether the cluster (or this machine) has GPUs, or None if unknown.
    """
    values, notices = {name: value for name, value in request.values.items() if name not in NOTIFY}, []
    if not request.in_job:
        values.pop("in-job", None)
    if local and not {"gres", "gpus-per-node"} <= values.keys():  # build_spec refuses both
        if "gres" in values:
            gres = values["gres"]
            values["gpus-per-node"] = Value(gres_gpus(str(gres.value)) or 0, gres.source)
        notices += _drop_slurm_options(values)
    if not _asks_for_gpus(values):
        values["gpus-per-node"] = Value(int(bool(has_gpus)), _WHY_GPUS[has_gpus])
    spec = build_spec(values, request.work)
    notices += time_notices(values)
    notices += [*_env_notices(spec), *memory_notices(spec.directive("mem")), *_resume_notices(spec)]
    return spec, notices


def _env_notices(spec: JobSpec) -> Iterator[str]:
    """Yield notices about variables that do nothing if they are 0, and about two that were given as one."""
    for name, text in spec.env:
        if (name, text) in _NO_EFFECT:
            yield f"--env {name}={text} has no effect: {_NO_EFFECT[name, text]}"
        if _TWO_VARIABLES.fullmatch(text):
            yield _as_two(name, text)


def _resume_notices(spec: JobSpec) -> list[str]:
    """Return a notice about a script that is started again without a word that says so."""
    if isinstance(spec.work, Task) or spec.resume_args or not (spec.max_restarts or spec.total_time):
        return []
    again = "--max-restarts" if spec.max_restarts else "--total-time"
    return [f"{again} without --resume-args: unless the script finds its checkpoint, it starts again from step 0"]


def memory_notices(mem: str) -> list[str]:
    """Return a notice about a few megabytes, which were meant to be gigabytes."""
    if not re.fullmatch(r"[1-9][0-9]{0,2}", mem, re.ASCII):
        return []
    return [f"--mem {mem} is {mem} MB per node, too little to import torch; for gigabytes: --mem {mem}G"]


_WHY_GPUS = {
    True: "default: GPUs found",
    False: "default: no GPUs found",
    None: "default: no cluster reachable",
}


def _asks_for_gpus(values: Mapping[str, Value]) -> bool:
    gres = str(values.get("gres", _NOT_SET).value)
    return "gpus-per-node" in values or gres_gpus(gres) is not None


def _drop_slurm_options(values: dict[str, Value]) -> list[str]:
    """Remove what the local scheduler ignores; return a notice about what was typed."""
    dropped = {field.name: values.pop(field.name) for field in FIELDS if field.slurm and field.name in values}
    arguments = dropped.get("sbatch-arg")
    if arguments is not None and KILL_ON_INVALID_DEP in arguments.value:  # which it knows
        values["sbatch-arg"] = replace(arguments, value=[KILL_ON_INVALID_DEP])
        if len(arguments.value) == 1:
            del dropped["sbatch-arg"]
    typed = [name for name, value in dropped.items() if not value.source.startswith(("SBATCH_", "SLURM_"))]
    return [f"{_ignorer(values)} ignores --{', --'.join(typed)}"] if typed else []


def _ignorer(values: Mapping[str, Value]) -> str:
    return "a run inside a job" if "in-job" in values else "the local scheduler"


#: The value in ``--env A=1,B=2``, which looks like two variables; ``x=1,y=2`` is an option's own list.
_TWO_VARIABLES = re.compile(r"[^=,]*(,[A-Za-z_][A-Za-z0-9_]*=[^,]*)+", re.ASCII)


def _as_two(name: str, text: str) -> str:
    line = " ".join(f"--env {shlex.quote(one)}" for one in f"{name}={text}".split(","))
    return f"--env sets one variable, {name}, to {text[:200]}; for several variables: {line[:200]}"


def time_notices(values: Mapping[str, Value]) -> Iterator[str]:
    """Yield a notice for each ``MM:SS``, which is easily meant as hours and minutes."""
    for name in _DURATIONS:
        text = str(values.get(name, _NOT_SET).value).rpartition("=")[2]
        if parts := minutes_and_seconds(text):
            first, second = parts
            source = from_source(values[name].source, f"--{name}")
            meant = f"{first}h{second}m" if second else f"{first}h"
            yield f"--{name} {text} is {first} min {second} s, as in sbatch{source}; use {meant} for hours"


def notify_settings(values: Mapping[str, Value], name: str) -> dict[str, Any] | None:
    """Return the content of ``notify.json``, None without --notify. Raises RequestError for events without a target."""
    if "notify-on" in values and "notify" not in values:
        raise RequestError("--notify-on needs --notify", hint="--notify https://… or --notify 'command …'")
    for option in NOTIFY:
        if option in values:
            check_value(FIELD[option], values[option])
    if "notify" not in values:
        return None
    settings: dict[str, Any] = {"name": name, "target": values["notify"].value}
    if "notify-on" in values:
        settings["on"] = values["notify-on"].value
    return settings


def parse_work(words: Sequence[str], cwd: Path, environ: Mapping[str, str], notify: Callable[[str], None]) -> Work:
    """Parse the command after ``--``: a script, ``-m MODULE``, or another executable."""
    _check_words(words)
    first, *rest = _without_python(words, notify) if is_python(words[0]) else words
    if first == "-m":
        if not rest:
            raise RequestError("-m needs a module name", hint="clusterrun submit -- -m package.train")
        return Module(rest[0], tuple(rest[1:]))
    if is_file(cwd / first):
        return _program(first, cwd, tuple(rest))
    program = shutil.which(first, path=environ.get("PATH"))
    if program and "/" not in first:
        return Command(str(Path(program).absolute()), tuple(rest))
    near = nearest(first, (path.name for path in cwd.glob("*.py")))
    raise RequestError(f"no such script: {first}", hint=near or f"searched in {cwd}")


def _check_words(words: Sequence[str]) -> None:
    refuse_shapes(" ".join(words), "the script's arguments")
    for word in words:
        check_text(word, "the script's arguments", "after --")
    if ":" not in words:
        return
    if words[0] in ("srun", "sbatch"):
        from clusterrun.submit.own_ranks import several_groups  # most commands have no groups

        raise several_groups(f"this {words[0]} command", "`:`")
    raise RequestError(  # srun takes it as the start of another command, at any position (observed on 22.05)
        "the argument ':' is not supported, because srun treats it as a separator between job components",
        hint="join the ':' to another argument, or pass it in a variable with --env",
    )


_NEEDS: dict[type[Work], tuple[str, ...]] = {Task: ("transformers",), Function: ("submitit",)}

#: Older versions cannot serve the run's store on a socket that is open already (pytorch/pytorch#150215).
OLDEST_TORCH = (2, 8)
_FIND_PACKAGES = """
import os, sys  # importlib.util would take longer than all of this
script, *needs = sys.argv[1:]
finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
found = {name: next(filter(None, (one.find_spec(name, None) for one in finders)), None) for name in needs}
print(*(name for name, spec in found.items() if spec is None))
if found["torch"] and found["torch"].origin:
    file = os.path.join(os.path.dirname(found["torch"].origin), "version.py")
    print(open(file).read() if os.path.exists(file) else "")
try:
    source = open(script, "rb").read() if script else b""
    compile(source if source[:2] != b"PK" else b"", script, "exec", dont_inherit=True)
except SyntaxError as error:
    print(f"syntax error: {error.lineno}: {ascii(error.msg)[1:-1]}")
except Exception:
    pass
"""


def _without_python(words: Sequence[str], notify: Callable[[str], None]) -> Sequence[str]:
    """Return a command without the Python before its script; raises RequestError if there is no script."""
    rest = split_python(words)[1]
    if not rest or (rest[0].startswith("-") and rest[0] != "-m"):
        raise RequestError(f"no script in: {shlex.join(words)}", hint="clusterrun submit -- train.py --lr 1e-4")
    what = shlex.join(rest[:2] if rest[0] == "-m" else rest[:1])
    notify(f"ignoring {words[0]}: each rank runs {what} with the Python from --python or the active environment")
    return rest


def _program(name: str, cwd: Path, args: tuple[str, ...]) -> Work:
    """Return the work of a file in a folder: a script or an executable; raises RequestError if it is neither."""
    full = os.path.abspath(cwd / name)  # noqa: PTH100 - resolve() would follow links, which may change later
    if name.endswith(".py"):
        return Script(full, args)
    if os.access(full, os.X_OK):
        return Command(full, args)
    raise RequestError(
        f"neither a Python script nor an executable: {name}",
        hint=f"chmod +x {shlex.quote(name)}, or give a .py file",
    )


def check_python(spec: JobSpec, python: JobPython, environ: Mapping[str, str]) -> None:
    """Check that the job's Python has the packages that the ranks need, and that it can compile the script.

    In a container the image's Python needs them; outside, torch serves the run's store. Raises RequestError, also
    NotStarted.
    """
    inside = bool(spec.container_image)
    script = spec.work.path if isinstance(spec.work, Script) and not inside else ""
    try:
        found = python.read(["-c", _FIND_PACKAGES, script, *_packages(spec)], environ=environ)
    except CommandError as error:
        raise RequestError(
            f"--python: cannot run {spec.python}",
            detail=error.detail,
            hint="give the path of a working Python interpreter",
        ) from error
    first_line, _, torch_version = found.partition("\n")
    missing = first_line.split()
    if missing:
        raise RequestError(
            f"{spec.python} does not have {' or '.join(missing)}",
            hint=_how_to_get(" ".join(missing), spec.python, environ),
        )
    _check_torch(spec.python, torch_version, environ)
    if wrong := re.search(r"^syntax error: (.*)", torch_version, re.MULTILINE):
        hint = f"{spec.python} cannot compile the script; fix the script or choose another --python"
        raise RequestError(f"syntax error in {script}:{wrong[1]}", hint=hint)
    if spec.accelerate_config and not inside:
        from clusterrun.submit.accelerate_yaml import check_shape

        check_shape(spec, python, environ)


def _how_to_get(packages: str, python: str, environ: Mapping[str, str]) -> str:
    """Return the hint of how the job gets packages; what pipx or uv made for clusterrun alone is not to be filled."""
    default = find_python(None, environ)
    if python == default.value and default.source == OWN:
        return "activate the environment that has it, or choose it with --venv, --conda or --python"
    return f"{shlex.quote(python)} -m pip install {packages}   (or choose another --python)"


def _packages(spec: JobSpec) -> list[str]:
    """Return the packages that the job's Python needs outside a container, or with which it serves one."""
    if spec.container_image:
        return ["torch"]
    launcher = {"accelerate", "deepspeed"} & {spec.launcher}
    return ["torch", *_NEEDS.get(type(spec.work), ()), *launcher]


def _check_torch(python: str, text: str, environ: Mapping[str, str]) -> None:
    """Raise RequestError for a version of torch that is too old; ``text`` holds its version.py."""
    version = re.search(r"^__version__ = '(\d+)\.(\d+)", text, re.MULTILINE)
    if version and (int(version[1]), int(version[2])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RequestError(
            f"{python} has torch {version[1]}.{version[2]}; clusterrun needs {oldest} or newer",
            hint=_how_to_get(f"'torch>={oldest}'", python, environ),
        )


def check_setup(spec: JobSpec, script: str, environ: Mapping[str, str]) -> None:
    """Check with bash the syntax of each setup line, then of the whole script. Raises RequestError with the line."""
    refuse_shapes(script, "the rendered script", spec.template or "in a path or name")
    clean, _ = shell.scrub(environ)
    for number, line in enumerate(spec.setup, 1):
        # alone: a line that opens a quote or a here-document would swallow the rest of the script
        done = shell.run(["bash", "-n"], env=clean, stdin=line + "\n")
        if done.status != 0 or done.stderr:
            raise RequestError(
                f"--setup: syntax error in line {number}: {line}",
                detail=done.stderr.strip(),
                hint="make each --setup line a complete command",
            )
    done = shell.run(["bash", "-n"], env=clean, stdin=script)
    if done.status != 0:
        raise RequestError(
            "syntax error in the rendered script", detail=done.stderr.strip(), hint="check --template and --setup"
        )
