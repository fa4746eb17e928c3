"""Render the sbatch script of a specification. The result depends on the arguments alone, not on the machine.

Templates have two filters for quoting: ``directive`` for ``#SBATCH`` lines, which sbatch reads with its own tokenizer,
and ``sh`` for the body. Output that went through no filter is an error.
"""

from __future__ import annotations

import functools
import json
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterrun.base.errors import RequestError, TemplateError
from clusterrun.base.fields import OF_JOB
from clusterrun.base.job import PICKLES
from clusterrun.jobspec.containers import PYXIS
from clusterrun.jobspec.spec import Check, Command, Function, JobSpec, Module, Script, Task
from clusterrun.run_folder.safe_files import read_plain

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "sbatch.j2"
_TEMPLATES = Path(__file__).parents[1] / "templates"


class RunIdentity(NamedTuple):
    """The ids of the run that a script belongs to; only they differ between ``render`` and ``submit``.

    With ``in_array`` the run is a task of an array, whose other runs have the same token.
    """

    run_id: str
    run_dir: Path
    token: str
    in_array: bool = False


class Places(NamedTuple):
    """The absolute paths in a script, and the submitter's umask (an int, 0o022)."""

    workdir: Path
    logs: Path
    worker: Path
    umask: int


class Quoted(str):
    """A text that has been quoted by a filter."""

    __slots__ = ()


def directive(value: object) -> Quoted:
    r"""Quote a value for a ``#SBATCH`` line.

    sbatch's tokenizer (``get_argument`` in its opt.c) takes ``\`` as an escape even inside single quotes, and ``#`` as
    a comment outside quotes. So shlex.quote is unsafe here; double quotes with ``\`` and ``"`` escaped are exact.
    """
    text = _one_line(str(value))
    return Quoted('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


def sh(value: object) -> Quoted:
    """Quote a value for the shell; also one with a comma, which shellcheck takes for a mistake in an array."""
    quoted = shlex.quote(_one_line(str(value)))
    return Quoted(f"'{quoted}'" if "," in quoted and not quoted.startswith("'") else quoted)


def code(value: object) -> Quoted:
    """Return a setup line unquoted: the only field that is code."""
    return Quoted(_one_line(str(value)))


def pattern(path: Path) -> str:
    """Return a folder as the start of a Slurm file name pattern, with ``%`` doubled.

    Raises RequestError for a backslash: it turns patterns off and cannot be escaped.
    """
    text = str(path)
    if "\\" in text:
        hint = "use a folder without a backslash in its path"
        raise RequestError(f"Slurm cannot write logs to a path that contains a backslash: {text!r}", hint=hint)
    return text.replace("%", "%%")


def render(spec: JobSpec, identity: RunIdentity, places: Places, *, local: bool = False) -> str:
    """Return the script that runs ``spec`` as the run ``identity``.

    ``local`` selects the launch line of the local scheduler. Raises TemplateError, with the line, if the template is
    missing, does not render, or omits the run's token.
    """
    import jinja2

    source, name = _template(spec)
    values = variables(spec, identity, places, local=local)
    try:
        text = _compile(source).render(**values)
    except jinja2.TemplateSyntaxError as error:
        hint = f"compare your template with the shipped template, {_TEMPLATES / TEMPLATE}"
        raise TemplateError(f"{name}:{error.lineno}: {error.message}", hint=hint) from error
    except Exception as error:  # a template may raise anything: it may divide by zero
        hint = "the variables are listed in docs/template.md"
        raise TemplateError(f"{name}:{_line_of(error)}: {error}", hint=hint) from error
    if identity.token not in text:
        raise TemplateError(
            f"{name}: the rendered script does not contain the run's token",
            hint="keep the job-name and CLUSTERRUN_TOKEN lines of the shipped template",
        )
    return text


@functools.lru_cache(maxsize=4)  # compiling is nine tenths of the work, and tests and sweeps render many scripts
def _compile(source: str) -> jinja2.Template:
    import jinja2.sandbox

    environment = jinja2.sandbox.SandboxedEnvironment(
        undefined=jinja2.StrictUndefined,
        finalize=_only_quoted,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # "{#" is bash's ${#array[@]}
        comment_end_string="##}",
        autoescape=False,  # shell and sbatch, not HTML: finalize raises for unquoted values
    )
    environment.filters.update(directive=directive, sh=sh, code=code)
    return environment.from_string(source)


def variables(spec: JobSpec, identity: RunIdentity, places: Places, *, local: bool) -> dict[str, Any]:
    """Return the template's variables; docs/template.md documents them."""
    log = f"{pattern(places.logs)}/train_{'%A_%a' if identity.in_array else '%j'}"
    return {
        "spec": spec,
        "local": local,
        "job_name": f"{spec.job_name}.{identity.token[:8]}",
        "comment": spec.comment,
        "requests": tuple((name, value) for name, value in spec.directives if name != "gpus-per-node"),
        "output": f"{log}.out",
        "error": f"{log}.err",
        "run_id": identity.run_id,
        "run_dir": str(identity.run_dir),
        "token": identity.token,
        "workdir": str(places.workdir),
        "worker": str(places.worker),
        "umask": f"{places.umask:04o}",
        "supervise": (*supervise_argv(spec, local=local), *_container_words(spec, places.workdir)),
        "work": (*launch_argv(spec), *work_argv(spec, identity.run_dir, places.worker.parent)),
        "what": describe(spec),
    }


def _container_words(spec: JobSpec, workdir: Path) -> list[str]:
    """Return the supervisor's options that start the ranks in the container; the supervisor stays outside."""
    if not spec.container_image:
        return []
    mounts = ",".join(spec.container_mounts)
    words = ["--rank-python", spec.container_python]
    if spec.container_runtime == PYXIS:
        options = {"image": spec.container_image, "mounts": mounts, "workdir": str(workdir)}
        return [*words, *(f"--srun-arg=--container-{name}={value}" for name, value in options.items())]
    gpus = ["--nv"] if spec.gpus_on_each_node else []
    prefix = ["apptainer", "exec", *gpus, "--bind", mounts, "--pwd", str(workdir), spec.container_image]
    return [*words, *(f"--rank-prefix={word}" for word in prefix)]


def work_argv(spec: JobSpec, run_dir: Path = Path(), worker: Path = Path()) -> Sequence[str]:
    """Return the worker's arguments: the kind of work, then the work; ``worker`` is the folder of its files."""
    match spec.work:
        case Task(name, settings):
            return ("task", name, *(f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in settings))
        case Script(target, args) | Module(target, args) | Command(target, args):
            return (type(spec.work).__name__.lower(), "--", target, *args)
        case Check(name):
            return (name,)
        case Function(_):
            python = spec.container_python if spec.container_image else spec.python
            return ("command", "--", python, "-u", str(worker / "rank" / "callable.py"), str(run_dir / PICKLES))


def supervise_argv(spec: JobSpec, *, local: bool) -> Sequence[str]:
    """Return the options of the job's supervisor (worker/job/supervisor.py)."""
    words = []
    for option in OF_JOB:
        is_torchruns = option.name == "max-restarts" and spec.launcher == "torchrun"  # which restarts its ranks itself
        if not is_torchruns and not (local and option.slurm):
            words += option.words(spec.for_supervisor(option))
    words += ["--process-group", spec.process_group]
    if spec.check:
        words += ["--check-gpus", str(spec.gpus_on_each_node)]
    return (*words, *_place_options(spec)) if local else words


def _place_options(spec: JobSpec) -> Sequence[str]:
    """Return the supervisor's options for a local job, on this machine or inside a Slurm job."""
    limit = ["--time-limit", str(spec.time_limit)] if spec.time_limit else []
    if spec.in_job:
        return (*limit, "--in-job", *(f"--srun-arg={word}" for word in _of_ranks_step(spec)))
    return (*limit, "--local")


def _of_ranks_step(spec: JobSpec) -> tuple[str, ...]:
    """Return srun's options for ranks in a job that exists: GPUs that no other step has, or none and shared CPUs.

    Only --exact gives two steps different GPUs (seen on 22.05, 24.11 and 26.05); --overlap gives both the same.
    """
    if spec.gpus_per_node:
        return "--exact", f"--gpus-per-node={spec.gpus_per_node}", "--mem=0"
    return "--overlap", "--gres=none", "--mem=0"


def launch_argv(spec: JobSpec) -> Sequence[str]:
    """Return the worker's arguments that start a node's ranks; empty if srun starts them."""
    if spec.launcher == "srun":
        return ()
    words = ["launch", spec.launcher, "--ranks", str(spec.tasks_per_node)]
    if spec.launcher == "torchrun" and spec.max_restarts:
        words += ["--max-restarts", str(spec.max_restarts)]
    if spec.accelerate_config:
        words += ["--config", spec.accelerate_config]
    return (*words, "--")


def describe(spec: JobSpec) -> str:
    """Return what the job runs, as a command line; safe in a comment line."""
    if isinstance(spec.work, Function | Check):
        return spec.work.name
    return shlex.join(work_argv(spec)[1 if isinstance(spec.work, Task) else 2 :]).replace("\n", " ").replace("\r", " ")


def _template(spec: JobSpec) -> tuple[str, str]:
    if not spec.template:
        return (_TEMPLATES / TEMPLATE).read_text("utf-8"), TEMPLATE
    path = Path(spec.template)
    try:
        return read_plain(path).decode(), str(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        hint = "give the path of a Jinja template"
        if isinstance(error, PermissionError):
            hint = f"check the template, then run chmod go-w {shlex.quote(str(path))}, or use your own copy"
        raise TemplateError(f"--template: {path}: {reason}", hint=hint) from error


def _only_quoted(value: Any) -> Any:
    if isinstance(value, Quoted) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    import jinja2

    if isinstance(value, jinja2.Undefined):
        return str(value)  # StrictUndefined raises here, with the variable's name
    raise TypeError(f"{value!r} is not quoted: use the `sh` filter (in an #SBATCH line, the `directive` filter)")


def _one_line(text: str) -> str:
    if "\n" in text or "\0" in text:
        raise ValueError(f"a newline or NUL is not allowed in {text[:40]!r}")
    return text


def _line_of(error: BaseException) -> int | str:
    """Return the template line of an error: jinja's frames carry the template's line numbers."""
    frames = traceback.walk_tb(error.__traceback__)
    return next((line for frame, line in reversed([*frames]) if frame.f_code.co_filename == "<template>"), "?")
