"""The specification of a job: frozen, and valid by construction. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, get_args

from clusterrun.base.decode import Damaged, build
from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELD, FIELDS, NAME_BYTES, OF_JOB, Field
from clusterrun.base.job import is_reserved
from clusterrun.base.units import format_slurm_time, parse_duration, parse_time_limit
from clusterrun.jobspec.containers import read_mounts
from clusterrun.jobspec.fields import Value, check_value, gres_gpus, parse_hold


@dataclass(frozen=True, slots=True)
class Task:
    """A built-in task (``lm``) with its settings."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The user's Python script, an absolute path, run once per rank."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """The user's Python module (``-m pkg.train``), run once per rank."""

    name: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """Any other executable, an absolute path, run once per rank with torch's variables."""

    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A Python callable that submitit pickles into the run's folder and calls once per rank."""

    name: str


@dataclass(frozen=True, slots=True)
class Check:
    """The measurements of ``clusterrun check``, by every rank."""

    name: str = "check"


Work = Task | Script | Module | Command | Function | Check
ProcessGroup = Literal["expected", "required", "independent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What to run, and with which options.

    ``tasks_per_node`` is the number of ranks per node; ``gpus_per_node`` is None if ``gres`` requests the GPUs.
    ``directives`` are sbatch options in the order of ``FIELDS``, ``for_job`` those that only the job's supervisor and
    its ranks read. Times are in seconds. ``sources`` holds each value with its source. ``process_group`` is what a run
    of several ranks gets in which none joins a process group: a warning, a failure, or nothing.
    """

    work: Work
    nodes: int = 1
    gpus_per_node: int | None = None
    tasks_per_node: int
    job_name: str
    python: str = ""
    requeue: bool
    comment: str = ""
    directives: tuple[tuple[str, str], ...] = ()
    for_job: tuple[tuple[str, Any], ...] = ()
    in_job: str = ""  # the Slurm job whose nodes and GPUs it uses
    cpus_per_task: int | None = None
    time_limit: int | None = None
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()  # names of variables
    setup: tuple[str, ...] = ()
    template: str = ""
    sbatch_args: tuple[str, ...] = ()
    master_port: int | None = None
    process_group: ProcessGroup = "expected"
    stage_env: bool = False
    snapshot: bool | None = None  # None: where the code is in a git work tree
    shared: bool = False
    check: bool = False
    launcher: str = "srun"
    max_restarts: int = 0
    spare_nodes: int = 0
    resume_args: str = ""
    total_time: int = 0
    accelerate_config: str = ""
    container_image: str = ""
    container_mounts: tuple[str, ...] = ()  # SOURCE:TARGET[:FLAGS]
    container_runtime: str = ""
    container_python: str = "python3"
    sources: Mapping[str, Value] = field(default_factory=dict, compare=False)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.tasks_per_node

    @property
    def allocated_nodes(self) -> int:
        """The number of nodes that the job asks for, spare ones included."""
        return self.nodes + self.spare_nodes

    @property
    def workers_per_node(self) -> int:
        """The workers on a node, which write records: one per rank, or one if the program starts its own ranks."""
        return 1 if self.launcher == "none" else self.tasks_per_node

    @property
    def gpus_on_each_node(self) -> int:
        """The GPUs that were requested on each node; --gres gives one rank to each."""
        return self.tasks_per_node if self.gpus_per_node is None else self.gpus_per_node

    def directive(self, name: str) -> str:
        """Return the value of an sbatch option, or an empty text."""
        return dict(self.directives).get(name, "")

    def for_supervisor(self, option: Field) -> Any:
        """Return the value of an option that the job's supervisor takes."""
        if option.name in dict(self.for_job):
            return dict(self.for_job)[option.name]
        if option.directive:
            return self.directive(option.name)
        return getattr(self, option.attribute, option.default)


_ATTRIBUTES = frozenset(attribute.name for attribute in fields(JobSpec))


def build_spec(values: Mapping[str, Value], work: Work) -> JobSpec:
    """Build a specification from merged values and the work to run.

    ``values`` maps names of ``FIELDS`` to values. It must contain ``python``, and ``gpus-per-node`` unless there is a
    ``gres``: their defaults depend on the cluster and the shell, so the caller sets them. Raises RequestError with the
    source of a wrong value.
    """
    for name, value in values.items():
        check_value(FIELD[name], value)

    get = partial(_get, values)
    _check_launcher(values, work)
    limit = parse_time_limit(get("time", "UNLIMITED"))
    _check_signal(get("signal", ""), limit)
    _check_segment(get("sbatch-arg", ()), get("nodes", FIELD["nodes"].default), get("spare-nodes", 0))
    given = {FIELD[name].attribute: value.value for name, value in values.items()}
    plain = {attribute: value for attribute, value in given.items() if attribute in _ATTRIBUTES}
    computed = {
        "tasks_per_node": _tasks_per_node(values),
        "job_name": get("job-name") or default_name(work),
        # built-in tasks resume; a user's script may not
        "requeue": get("requeue", isinstance(work, Task) or "total-time" in values),
        "directives": _directives(values),
        "for_job": _for_job(values),
        "time_limit": limit,
        "env": tuple(sorted(get("env", {}).items())),
        "secrets": _secrets(get("secret", ()), get("env", {})),
        "setup": tuple(get("setup", ())),
        "sbatch_args": tuple(get("sbatch-arg", ())),
        "process_group": _process_group(work, get("require-group", False), get("independent", False)),
        "check": get("check", False) or isinstance(work, Check),
        "resume_args": check_resume_args(work, get("resume-args", "")),
        "total_time": parse_duration(get("total-time"), "--total-time") if "total-time" in values else 0,
        "container_mounts": read_mounts(values),
    }
    sources = {name: Value(value.value, value.source) for name, value in values.items()}
    return JobSpec(work=work, sources=sources, **(plain | computed))


def _get(values: Mapping[str, Value], name: str, default: Any = None) -> Any:
    return values[name].value if name in values else default


def _tasks_per_node(values: Mapping[str, Value]) -> int:
    """Return the number of ranks per node: as set, else one rank for each GPU.

    Raises RequestError for GPUs that are requested by two options.
    """
    in_gres, gpus = gres_gpus(_get(values, "gres", "")), _get(values, "gpus-per-node")
    if in_gres is not None and gpus is not None:
        hint = "keep one of them; --gpus-per-node is enough on most clusters"
        raise RequestError("--gres and --gpus-per-node both request GPUs", hint=hint)
    return _get(values, "tasks-per-node") or in_gres or gpus or 1


def _directives(values: Mapping[str, Value]) -> tuple[tuple[str, str], ...]:
    names = (option.name for option in FIELDS if option.directive and option.name in values)
    return tuple((name, _directive(name, values[name].value)) for name in names)


def _for_job(values: Mapping[str, Value]) -> tuple[tuple[str, Any], ...]:
    """Return the options that only the supervisor and the ranks read, as they read them."""
    given = {option.name: values[option.name].value for option in OF_JOB if option.name in values}
    if "on-failure" in given:
        given["on-failure"] = parse_hold(given["on-failure"])
    return tuple((name, value) for name, value in given.items() if not _is_kept_elsewhere(FIELD[name]))


def _is_kept_elsewhere(option: Field) -> bool:
    return option.directive or option.attribute in _ATTRIBUTES


def _directive(name: str, value: Any) -> str:
    """Return a value as sbatch takes it."""
    return format_slurm_time(value) if name == "time" else str(value)


def _check_signal(signal: str, limit: int | None) -> None:
    """Raise RequestError for a signal that would come when the job starts: Slurm sends it up to a minute early."""
    lead = int(signal.partition("@")[2] or 60)
    if signal and limit is not None and lead + 60 >= limit:
        raise RequestError(
            f"--signal {signal} would be sent at the start of a job with a time limit of {limit // 60} min",
            hint="Slurm may send the signal up to 60 s early; use fewer seconds or a longer --time",
        )


def with_directives(spec: JobSpec, changed: Mapping[str, str]) -> JobSpec:
    """Return a specification with other values of sbatch's own options. Raises RequestError for a wrong one."""
    for name, text in changed.items():
        check_value(FIELD[name], Value(text, f"--{name}"))
    limit = parse_time_limit(changed["time"]) if "time" in changed else spec.time_limit
    _check_signal(spec.for_supervisor(FIELD["signal"]), limit)
    new = {name: _directive(name, text) for name, text in changed.items()}
    return replace(spec, directives=tuple((dict(spec.directives) | new).items()), time_limit=limit)


_KINDS: dict[str, type[Work]] = {kind.__name__.lower(): kind for kind in (Task, Script, Module, Command)}


def load_spec(data: Mapping[str, Any]) -> JobSpec:
    """Return the specification of a run from its ``spec.json``; keys that are not known here are ignored.

    Raises RequestError for a file that is incomplete, and for work that is not a task, a script, a module or a command.
    """
    work, group = data.get("work"), data.get("process_group", "expected")
    kind = _KINDS.get(str(work.get("kind"))) if isinstance(work, dict) else None
    if kind is None or not isinstance(work, dict):
        raise RequestError("this run has no task, script, module or command", hint="submit the job again")
    try:
        if group not in get_args(ProcessGroup):
            raise Damaged("process_group is invalid")
        return build(JobSpec, data, work=build(kind, work), process_group=group, sources={})
    except Damaged as error:
        raise RequestError(f"the run's spec.json is invalid: {error}", hint="submit the job again") from None


def _secrets(names: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of --secret; raises RequestError for one whose value is given by --env."""
    if name := next((name for name in names if name in env), ""):
        raise RequestError(f"--secret and --env both set {name}", hint=f"remove --env {name}=…")
    return tuple(dict.fromkeys(names))


def check_resume_args(work: Work, text: str) -> str:
    """Return --resume-args; raises RequestError for bad quoting and for work that takes no arguments."""
    if text and not isinstance(work, Script | Module | Command):
        kind = type(work).__name__.lower()
        raise RequestError(
            f"--resume-args is not supported: the {kind} {work.name} resumes automatically",
            hint="remove --resume-args",
        )
    try:
        shlex.split(text)
    except ValueError as error:
        hint = "quote the whole value: --resume-args '--resume auto'"
        raise RequestError(f"--resume-args {text!r}: {error}", hint=hint) from None
    return text


def _process_group(work: Work, require: bool, independent: bool) -> ProcessGroup:
    if independent and isinstance(work, Task):
        raise RequestError(
            f"--independent is not supported: the task {work.name} trains one model on all ranks",
            hint="remove --independent",
        )
    if independent and require:
        raise RequestError("--require-group and --independent conflict", hint="keep one of them")
    return "independent" if independent else "required" if require or isinstance(work, Task) else "expected"


def _check_launcher(values: Mapping[str, Value], work: Work) -> None:
    """Raise RequestError for an option of another launcher, and for work that the launcher cannot run."""
    launcher = _get(values, "launcher", "srun")
    if _get(values, "spare-nodes"):
        _check_spare_nodes(values, launcher)
    _check_progress_interval(_get(values, "progress-interval"), _get(values, "hang-timeout"))
    if "accelerate-config" in values and launcher != "accelerate":
        source = values["accelerate-config"].source
        where = f" (--accelerate-config comes from {source})" if source != "--accelerate-config" else ""
        raise RequestError(
            f"--accelerate-config works only with --launcher accelerate, not {launcher}{where}",
            hint="add --launcher accelerate, or remove --accelerate-config",
        )
    if launcher == "none":
        _check_no_launcher(values, work)


def _check_progress_interval(interval: int | None, hang_timeout: int | None) -> None:
    """Raise RequestError if a rank between two records would look as if it hung."""
    if interval and hang_timeout and hang_timeout < 5 * interval:
        raise RequestError(
            f"--hang-timeout {hang_timeout} is too short for --progress-interval {interval}",
            hint=f"use --hang-timeout {5 * interval}, or remove --progress-interval",
        )


def _check_spare_nodes(values: Mapping[str, Value], launcher: str) -> None:
    if launcher == "torchrun":
        raise RequestError(
            "--spare-nodes does not work with --launcher torchrun, which restarts the ranks itself",
            hint="use --launcher srun",
        )
    if not _get(values, "max-restarts"):
        raise RequestError(
            "--spare-nodes needs --max-restarts: a spare node replaces a lost node when the ranks restart",
            hint="add --max-restarts 3",
        )
    if _get(values, "hang-timeout") == 0:
        raise RequestError("--spare-nodes does not work with --hang-timeout 0", hint="remove --hang-timeout 0")


def _check_segment(sbatch_args: Sequence[str], nodes: int, spare: int) -> None:
    """Raise RequestError for nodes, spare ones included, that are no multiple of a segment; sbatch counts them so."""
    sizes = [argument.removeprefix("--segment=") for argument in sbatch_args if argument.startswith("--segment=")]
    for size in filter(str.isdecimal, sizes):
        if int(size) and (nodes + spare) % int(size):
            count = f"{nodes} + {spare} spare nodes" if spare else f"{nodes} node{'s' * (nodes != 1)}"
            raise RequestError(
                f"--segment={size} does not fit {count}: the number of nodes must be a multiple of {size}",
                hint=f"use --nodes {-(-(nodes + spare) // int(size)) * int(size) - spare}, or another --segment",
            )


def _check_no_launcher(values: Mapping[str, Value], work: Work) -> None:
    if "require-group" in values:
        raise RequestError(
            "--require-group does not work with --launcher none",
            hint="remove --require-group, or use --launcher torchrun",
        )
    if isinstance(work, Task | Function):
        kind = type(work).__name__.lower()
        raise RequestError(
            f"--launcher none is not supported: the {kind} {work.name} does not start its own ranks",
            hint="remove --launcher none, or use --launcher torchrun",
        )


def default_name(work: Work) -> str:
    """Return a job name from the task, module or file name, without its suffix and cut to the maximum length.

    A module name that is too long loses its first packages.
    """
    text = (
        work.name
        if isinstance(work, Task | Module | Function | Check)
        else work.path.rsplit("/", 1)[-1].removesuffix(".py")
    )
    while isinstance(work, Module) and "." in text and len(text.encode("utf-8", "surrogateescape")) > NAME_BYTES:
        text = text.partition(".")[2]
    return fit_name(text)


def fit_name(text: str) -> str:
    """Return a text as a job name: without control characters, cut to the maximum length, and none that is reserved."""
    plain = re.sub(r"[\x00-\x1f\x7f]", "_", text)
    name = plain.encode("utf-8", "surrogateescape")[:NAME_BYTES].decode("utf-8", "ignore") or "job"
    return f"job-{name}"[:NAME_BYTES] if is_reserved(name) else name
