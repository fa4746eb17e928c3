"""Settings from profiles, job files and the environment, and how they are merged with flags.

The files are data: nothing in them is executed or imported. The keys at the top of a file are those of
``fields.FIELDS``, named like the flags (``gpus-per-node = 4``). Each value carries its source.

The precedence, highest first: flag, job file, project profile (``clusterrun.toml``), user profile
(``~/.config/clusterrun/config.toml``), environment (``SBATCH_ACCOUNT`` …), default. In a profile file the
selected ``[profile.NAME]`` takes precedence over the top of the same file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from clusterrun.base.errors import RequestError, nearest
from clusterrun.base.job import covers
from clusterrun.config.files import (
    PROJECT_FILE,
    display_path,
    find_root_and_notices,
    home_folder,
    is_file,
    read_config,
    user_profile_path,
    why_unused,
)
from clusterrun.config.sweep_table import SweepTable, read_sweep
from clusterrun.config.toml_lines import Document, parse
from clusterrun.config.toml_values import read_values, resolve, text_at, unknown_key
from clusterrun.jobspec.fields import FIELD, Value, gres_gpus

DEFAULT_JOB = "lm"
_SHIPPED_JOBS = Path(__file__).parents[1] / "jobs"
WorkKind = Literal["task", "script", "module", "command"]
WORK_KEYS: tuple[str, ...] = ("task", "script", "module", "command")
_JOB_KEYS = (*WORK_KEYS, "args", "sweep")
REMOTE_KEYS = ("remote", "remote-dir")
_CLUSTER = "cluster"
_PROFILE_KEYS = ("job", "default-profile", "profile", _CLUSTER, *REMOTE_KEYS)

#: sbatch's variables that many users set, and the options they mean. An earlier one wins: sbatch reads SBATCH_ACCOUNT;
#: SLURM_ACCOUNT is the same variable of salloc and srun.
ENVIRONMENT: tuple[tuple[str, str], ...] = (
    ("SBATCH_ACCOUNT", "account"),
    ("SLURM_ACCOUNT", "account"),
    ("SBATCH_PARTITION", "partition"),
    ("SBATCH_QOS", "qos"),
    ("SBATCH_RESERVATION", "reservation"),
    ("SBATCH_CONSTRAINT", "constraint"),
    ("SBATCH_TIMELIMIT", "time"),
)


@dataclass(frozen=True, slots=True)
class Profiles:
    """The settings of the profile files and the environment; ``levels`` are for :func:`merge`, highest first."""

    root: Path
    default_job: Value
    levels: list[dict[str, Value]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    remote: dict[str, Value] = field(default_factory=dict)
    """The values of ``REMOTE_KEYS``: where commands run."""
    of_project: int = 0
    """How many of the first ``levels`` are of the project's file."""
    remote_of_project: frozenset[str] = frozenset()
    """Which values of ``remote`` are of the project's file."""


class JobFile(NamedTuple):
    """A job file: its values and what it runs.

    ``source`` is its short name for messages; ``path`` is None for a shipped file. ``target`` is the name of the task
    or module, the absolute path of the script, or the command: an absolute path, or a name to look up on PATH.
    """

    source: str
    path: Path | None
    values: dict[str, Value]
    kind: WorkKind
    target: str
    args: tuple[str, ...] = ()
    sweep: SweepTable | None = None


def no_profiles(cwd: Path | None) -> Profiles:
    """Return no settings, for the project of a folder."""
    return Profiles(find_root_and_notices(cwd)[0], Value("", "default"))


def load_profiles(
    cwd: Path | None, environ: Mapping[str, str], profile: str | None = None,
    find_cluster: Callable[[], str | None] | None = None,
) -> Profiles:  # fmt: skip
    """Load the profiles of the project and the user, and the environment.

    ``profile`` selects ``[profile.NAME]`` in both files; the default is the profile for the cluster at hand, then
    ``default-profile``, the project's first. ``find_cluster`` returns that cluster's name, empty if unknown, None if
    there is none; without it no profile's cluster counts. A file that another user owns or can write is skipped with a
    notice. Raises ConfigError for an invalid file, RequestError for a profile that is in neither file or is for
    another cluster, and for several profiles for the cluster at hand.
    """
    root, notices = find_root_and_notices(cwd)
    home = home_folder(environ)
    files = []
    if is_file(root / PROJECT_FILE) and not why_unused(root / PROJECT_FILE):
        raw = read_config(root / PROJECT_FILE, PROJECT_FILE)
        files.append(_read_profile(parse(PROJECT_FILE, raw, root, home)))
    project = files[:]
    user = user_profile_path(environ, home)
    if user and is_file(user):
        source = display_path(user, home)
        if why := why_unused(user):
            notices.append(f"{source} is not used: {why}")
        else:
            files.append(_read_profile(parse(source, read_config(user, source), user.parent, home)))
    chosen = Value(profile, "--profile") if profile else _first("default-profile", (f.top for f in files))
    if chosen and not any(chosen.value in f.tables for f in files):
        names = sorted({name for f in files for name in f.tables})
        hint = f"{nearest(chosen.value, names)} available: {', '.join(names)}".strip()
        if not names:
            hint = f"add a table [profile.{chosen.value}] to {PROJECT_FILE}"
        raise RequestError(f"no profile {chosen.value!r} ({chosen.source})", hint=hint)
    if find_cluster is not None:
        chosen = _for_cluster(files, chosen, find_cluster, notices)
    levels = _levels(files, chosen)
    job = _first("job", levels) or Value(DEFAULT_JOB, "default")
    settings = [{k: v for k, v in level.items() if k in FIELD} for level in levels]
    variables = {key: Value(environ[name], name) for name, key in reversed(ENVIRONMENT) if environ.get(name)}
    remote = {key: value for key in REMOTE_KEYS if (value := _first(key, levels)) is not None}
    of_project = _levels(project, chosen)
    foreign = frozenset(key for key, value in remote.items() if any(level.get(key) is value for level in of_project))
    return Profiles(root, job, [*settings, variables], notices, remote, len(of_project), foreign)


def load_job(name: str, root: Path, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> JobFile:
    """Load a job file, given as a path (``jobs/sft.toml``, from ``cwd`` or the root) or a bare name (``sft``).

    A bare name is looked up in the project's ``jobs/``, then among the shipped files. Another user's file needs its
    path: a name must not run a file that somebody put into a shared folder.
    """
    home, here = home_folder(os.environ if environ is None else environ), cwd or root
    if "/" in name or name.endswith(".toml"):
        places = [Path(resolve(name, here, home)), root / name, root / "jobs" / name]
    else:
        places = [root / "jobs" / f"{name}.toml"]
    path = next((p for p in places if is_file(p)), None)
    if path is not None and path.suffix == ".toml":
        source = str(path.relative_to(root)) if path.is_relative_to(root) else display_path(path, home)
        named_by_path = "/" in name
        if not named_by_path and (why := why_unused(path)):
            hint = f"check the file; to use it anyway, give its path: {path}"
            raise RequestError(f"not using {source}: {why}", hint=hint)
        return _read_job(parse(source, read_config(path, source, trusted=not named_by_path), root, home), path)
    if (stem := name.removesuffix(".toml")) in (shipped := _shipped()):
        return _read_job(parse(f"{stem} (shipped)", shipped[stem].read_bytes(), root, home), None)
    raise _no_job(name, root, path)


def list_jobs(root: Path) -> list[str]:
    """Return the names of the project's and the shipped job files."""
    try:
        own = {p.stem for p in (root / "jobs").glob("*.toml")}
    except OSError:
        own = set()
    return sorted(own | set(_shipped()))


def merge(levels: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Merge levels, highest first, into one value for each key.

    A string, number, flag or list (``setup``, ``sbatch-arg``) comes from the highest level that has it. The tables
    ``env`` and ``set`` are merged key by key; their source names each contributing level. ``gres`` and
    ``gpus-per-node`` both request GPUs, so the one at a higher level removes the other at a lower one, unless the
    ``gres`` has no GPUs.
    """
    merged: dict[str, Value] = {}
    rival = {"gres": "gpus-per-node", "gpus-per-node": "gres"}
    for level in levels:
        above = dict(merged)
        for name, value in level.items():
            if FIELD[name].kind == "map" and name in merged:
                merged[name] = _join(merged[name], value)
            elif name not in merged:
                other = above.get(rival.get(name, ""))
                gres = value.value if name == "gres" else other and other.value
                if other is None or not isinstance(gres, str) or gres_gpus(gres) is None:
                    merged[name] = value
    return merged


def _join(upper: Value, lower: Value) -> Value:
    new = {k: v for k, v in lower.value.items() if k not in upper.value}
    sources = [s for s, counts in ((upper.source, bool(upper.value)), (lower.source, bool(new))) if counts]
    return Value({**upper.value, **new}, ", ".join(sources) or upper.source)


def _for_cluster(
    files: Sequence[_ProfileFile], chosen: Value | None, find_cluster: Callable[[], str | None], notices: list[str]
) -> Value | None:
    """Return the profile to use: the one with --profile, else the one for the cluster at hand, else the default.

    The cluster is looked up only if a profile has one.
    """
    tables = [item for f in reversed(files) for item in f.tables.items()]
    clusters = {name: str(table[_CLUSTER].value).strip().lower() for name, table in tables if _CLUSTER in table}
    if not clusters or (here := find_cluster()) is None:
        return chosen
    here = ",".join(part.strip().lower() for part in here.split(","))  # as typed in SLURM_CLUSTERS
    own, elsewhere = clusters.get(chosen.value, "") if chosen else "", ""
    if chosen and own and here and not covers(here, own):
        elsewhere = f"profile {chosen.value} is for cluster {own}"
    if chosen and chosen.source == "--profile":
        if elsewhere:
            raise RequestError(f"{elsewhere}; this shell is configured for {here}", hint="choose another --profile")
        return chosen
    if not here:
        unknown = "cannot choose a profile by cluster: the name of the cluster is unknown"
        notices.append(f"{unknown}; choose a profile with --profile")
    fitting = sorted(name for name, cluster in clusters.items() if cluster == here)
    if len(fitting) > 1:
        hint = f"choose one with --profile {fitting[0]}, or remove the cluster key from all but one of them"
        raise RequestError(f"several profiles match cluster {here}: {', '.join(fitting)}", hint=hint)
    if fitting:
        notices.append(f"using [profile.{fitting[0]}], the profile for cluster {here}")
        return Value(fitting[0], _CLUSTER)
    if elsewhere:
        notices.append(f"{elsewhere}; not used on {here}")
    return None if elsewhere else chosen


class _ProfileFile(NamedTuple):
    top: dict[str, Value]
    tables: dict[str, dict[str, Value]]


def _levels(files: Iterable[_ProfileFile], chosen: Value | None) -> list[dict[str, Value]]:
    """Return the values of each file's chosen table, and of its top, which the table precedes."""
    tables = [(one.tables.get(str(chosen.value)) if chosen else None, one.top) for one in files]
    return [level for both in tables for level in both if level is not None]


def _read_profile(document: Document) -> _ProfileFile:
    """Return the values at the top of a profile file and in its tables."""
    tables = document.data.get("profile", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise document.error(
            ["profile"], "profile must contain tables, such as [profile.NAME]",
            hint='write [profile.NAME] with keys below it; select a profile with default-profile = "NAME"',
        )  # fmt: skip
    top = {k: v for k, v in document.data.items() if k != "profile"}
    return _ProfileFile(
        _profile_level(document, (), top),
        {name: _profile_level(document, ("profile", name), table) for name, table in tables.items()},
    )


def _profile_level(document: Document, path: tuple[str, ...], table: Mapping[str, Any]) -> dict[str, Value]:
    source = f"{document.source} [{'.'.join(path)}]" if path else document.source
    own = ("job", "cluster" if path else "default-profile", *REMOTE_KEYS)
    spelled = {key.replace("_", "-"): key for key in table}
    for name in (*_JOB_KEYS, *_PROFILE_KEYS):
        if name in spelled and name not in own:
            if name in _JOB_KEYS:
                message = f"the {name} key belongs in a job file"
                hint = 'move it to jobs/NAME.toml, and write job = "NAME" here instead'
            elif name == _CLUSTER:
                message, hint = "the cluster key belongs in a profile's table", "move it below [profile.NAME]"
            else:
                message = f"the {name} key belongs at the top of the file"
                hint = "move it out of the profile's table"
            raise document.error([*path, spelled[name]], message, hint=hint)
    values = read_values(document, path, table, source, own=own)
    return values | {name: Value(text_at(document, (*path, spelled[name])), source) for name in own if name in spelled}


def _read_job(document: Document, path: Path | None) -> JobFile:
    data = document.data
    for name in _PROFILE_KEYS:
        if key := next((k for k in data if k.replace("_", "-") == name), None):
            raise document.error(
                [key],
                f"the {key} key belongs in {PROJECT_FILE}",
                hint=f"move it to {PROJECT_FILE}; a job file describes only one job",
            )
    given = [k for k in WORK_KEYS if k in data]
    if len(given) != 1:
        message = f"{given[0]} and {given[1]} conflict" if given else "the file does not say what to run"
        hint = "keep one of them" if given else 'set task, script, module or command, for example task = "lm"'
        # one of them may be misspelled: that is the better message
        if not given and (unknown := unknown_key(document, (), data, own=_JOB_KEYS)):
            raise unknown
        raise document.error(given[1:2], message, hint=hint)
    kind = cast("WorkKind", given[0])
    target = text_at(document, (kind,))
    args = data.get("args", [])
    if not isinstance(args, list) or not all(isinstance(a, str) for a in args):
        raise document.error(["args"], "args must be a list of strings", hint='for example args = ["--lr", "1e-4"]')
    if args and kind == "task":
        raise document.error(
            ["args"], "a task takes no args", hint="put the task's settings under [set], for example steps = 300"
        )
    if kind == "script" or (kind == "command" and "/" in target):
        target = resolve(target, document.base, document.home)
    values = read_values(document, (), data, document.source, own=_JOB_KEYS)
    if "set" in values and kind != "task":
        raise document.error(["set"], f"[set] is only for tasks, but this job runs a {kind}", hint="use args, or [env]")
    sweep = read_sweep(document, document.home)
    return JobFile(document.source, path, values, kind, target, tuple(args), sweep)


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in _SHIPPED_JOBS.glob("*.toml")}


def _first(name: str, levels: Iterable[Mapping[str, Value]]) -> Value | None:
    return next((level[name] for level in levels if name in level), None)


def _no_job(name: str, root: Path, found: Path | None) -> RequestError:
    known = list_jobs(root)
    if found or name.endswith((".py", ".sh")):
        hint = f"to run a script, put it after `--`: clusterrun submit -- {name}"
    else:
        near = nearest(Path(name).name.removesuffix(".toml"), known)
        hint = f"{near} available: {', '.join(known) or 'none'}".strip()
    return RequestError(f"no job file {name[:80]!r}", hint=hint)
