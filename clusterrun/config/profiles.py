"""Settings from profiles, job files and the environment, and how they are merged with flags.

The files are data: nothing in them is executed or imported. The keys at the top of a file are those of
``fields.FIELDS``, named like the flags (``gpus-per-node = 4``). Each value carries its source.

The precedence, highest first: flag, job file, project profile (``clusterrun.toml``), user profile
(``~/.config/clusterrun/config.toml``), environment (``SBATCH_ACCOUNT`` …), default. In a profile file the
selected ``[profile.NAME]`` takes precedence over the top of the same file.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from clusterrun.base.errors import RequestError, nearest
from clusterrun.base.fields import FIELD
from clusterrun.base.job import covers
from clusterrun.base.units import clause
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
from clusterrun.config.sweep_request import SweepRequest, read_sweep
from clusterrun.config.toml_lines import Document, parse
from clusterrun.config.toml_values import read_values, resolve, text_at, unknown_key
from clusterrun.jobspec.fields import Value, gres_gpus, is_list_of_texts

DEFAULT_JOB = "lm"
_SHIPPED = " (shipped)"
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
    sweep: SweepRequest = SweepRequest()

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return Path(self.source.removesuffix(_SHIPPED)).stem


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
    project = _load_project_file(root, home)
    files = [*project, *_load_user_file(environ, home, notices)]
    chosen = _requested_profile(files, profile)
    if find_cluster is not None:
        chosen = _for_cluster(files, chosen, find_cluster, notices)
    levels, project_levels = _levels(files, chosen), _levels(project, chosen)
    return Profiles(
        root,
        default_job=ChainMap(*levels).get("job", Value(DEFAULT_JOB, "default")),
        levels=[*map(_options, levels), _environment(environ)],
        notices=notices,
        remote=_remote(levels),
        of_project=len(project_levels),
        remote_of_project=frozenset(_remote(project_levels)),  # they precede the user's
    )


def _load_project_file(root: Path, home: Path | None) -> list[_ProfileFile]:
    """Return the settings of the project's file; none if there is no such file, or it is not trusted."""
    path = root / PROJECT_FILE
    if not is_file(path) or why_unused(path):
        return []
    return [_read_profile(parse(PROJECT_FILE, read_config(path, PROJECT_FILE), root, home))]


def _load_user_file(environ: Mapping[str, str], home: Path | None, notices: list[str]) -> list[_ProfileFile]:
    """Return the settings of the user's file; none if there is no such file, or it is not trusted."""
    path = user_profile_path(environ, home)
    if path is None or not is_file(path):
        return []
    source = display_path(path, home)
    if why := why_unused(path):
        notices.append(f"{source} is not used: {why}")
        return []
    return [_read_profile(parse(source, read_config(path, source), path.parent, home))]


def _requested_profile(files: Sequence[_ProfileFile], typed: str | None) -> Value | None:
    """Return the name of the profile by --profile, else the default's; None without one. Raises RequestError."""
    tops = ChainMap(*(top for top, _ in files))
    chosen = Value(typed, "--profile") if typed else tops.get("default-profile")
    names = sorted(set().union(*(tables for _, tables in files)))
    if chosen is None or chosen.value in names:
        return chosen
    hint = f"add a table [profile.{chosen.value}] to {PROJECT_FILE}"
    if names:
        hint = f"{nearest(chosen.value, names)} available: {', '.join(names)}".strip()
    raise RequestError(f"no profile {chosen.value!r} ({chosen.source})", hint=hint)


def _options(level: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in level.items() if name in FIELD}


def _environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the options that the user's variables set; an earlier variable of ``ENVIRONMENT`` wins."""
    return {option: Value(environ[name], name) for name, option in reversed(ENVIRONMENT) if environ.get(name)}


def _remote(levels: Sequence[dict[str, Value]]) -> dict[str, Value]:
    values = ChainMap(*levels)
    return {name: values[name] for name in REMOTE_KEYS if name in values}


def load_job(name: str, root: Path, *, cwd: Path | None = None, environ: Mapping[str, str] = os.environ) -> JobFile:
    """Load a job file, given as a path (``jobs/sft.toml``, from ``cwd`` or the root) or a bare name (``sft``).

    A bare name is looked up in the project's ``jobs/``, then among the shipped files. Another user's file needs its
    path: a name must not run a file that somebody put into a shared folder.
    """
    home = home_folder(environ)
    path = _find_job_file(name, root, Path(resolve(name, cwd or root, home)))
    if path is not None and path.suffix == ".toml":
        return _load_job_file(name, path, root, home)
    stem, shipped = name.removesuffix(".toml"), _shipped()
    if stem in shipped:
        return _read_job(parse(f"{stem}{_SHIPPED}", shipped[stem].read_bytes(), root, home), None)
    raise _no_job(name, root, path)


def _find_job_file(name: str, root: Path, here: Path) -> Path | None:
    """Return the file that a name or path means; ``here`` is the path from the current folder."""
    places = [root / "jobs" / f"{name}.toml"]
    if "/" in name or name.endswith(".toml"):
        places = [here, root / name, root / "jobs" / name]
    for place in places:
        if is_file(place):
            return place
    return None


def _load_job_file(name: str, path: Path, root: Path, home: Path | None) -> JobFile:
    source = str(path.relative_to(root)) if path.is_relative_to(root) else display_path(path, home)
    is_named_by_path = "/" in name
    if not is_named_by_path and (why := why_unused(path)):
        hint = f"check the file; to use it anyway, give its path: {path}"
        raise RequestError(f"not using {source}: {why}", hint=hint)
    return _read_job(parse(source, read_config(path, source, trusted=not is_named_by_path), root, home), path)


def list_jobs(root: Path) -> list[str]:
    """Return the names of the project's and the shipped job files."""
    names = set(_shipped())
    with suppress(OSError):  # a folder that cannot be read has none
        names |= {path.stem for path in (root / "jobs").glob("*.toml")}
    return sorted(names)


def shipped_job(name: str) -> str:
    """Return the text of a shipped job file."""
    return _shipped()[name].read_text(encoding="utf-8")


def list_profiles(root: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the profiles in the project's and the user's file. Raises ConfigError."""
    home = home_folder(environ)
    files = [*_load_project_file(root, home), *_load_user_file(environ, home, [])]
    return sorted({name for _, tables in files for name in tables})


def merge(levels: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Merge levels, highest first, into one value for each key.

    A string, number, flag or list (``setup``, ``sbatch-arg``) comes from the highest level that has it. The tables
    ``env`` and ``set`` are merged key by key; their source names each contributing level. ``gres`` and
    ``gpus-per-node`` both request GPUs, so the one at a higher level removes the other at a lower one, unless the
    ``gres`` has no GPUs.
    """
    merged: dict[str, Value] = {}
    for level in levels:
        above = dict(merged)
        for name, value in level.items():
            if name not in merged:
                if not _is_replaced(name, value, above):
                    merged[name] = value
            elif FIELD[name].kind == "map":
                merged[name] = _join(merged[name], value)
    return merged


def _is_replaced(name: str, value: Value, above: Mapping[str, Value]) -> bool:
    """Return whether a higher level requests GPUs by the other of the two options."""
    if name == "gres":
        return "gpus-per-node" in above and _has_gpus(value)
    if name == "gpus-per-node":
        return "gres" in above and _has_gpus(above["gres"])
    return False


def _has_gpus(gres: Value) -> bool:
    return isinstance(gres.value, str) and gres_gpus(gres.value) is not None


def _join(upper: Value, lower: Value) -> Value:
    added = {key: item for key, item in lower.value.items() if key not in upper.value}
    if not added:
        return Value(upper.value, upper.source)
    source = f"{upper.source}, {lower.source}" if upper.value else lower.source
    return Value({**upper.value, **added}, source)


def _for_cluster(
    files: Sequence[_ProfileFile], chosen: Value | None, find_cluster: Callable[[], str | None], notices: list[str]
) -> Value | None:
    """Return the profile to use: the one with --profile, else the one for the cluster at hand, else the default.

    The cluster is looked up only if a profile has one.
    """
    clusters = _clusters_of_profiles(files)
    here = find_cluster() if clusters else None
    if here is None:
        return chosen
    here = ",".join(part.strip().lower() for part in here.split(","))  # as typed in SLURM_CLUSTERS
    elsewhere = _why_elsewhere(chosen, clusters, here)
    if chosen is not None and chosen.source == "--profile":
        if elsewhere:
            raise RequestError(f"{elsewhere}; this shell is configured for {here}", hint="choose another --profile")
        return chosen
    if not here:
        unknown = "cannot choose a profile by cluster: the name of the cluster is unknown"
        notices.append(f"{unknown}; choose a profile with --profile")
        return chosen
    if name := _profile_for(clusters, here):
        notices.append(f"using [profile.{name}], the profile for cluster {here}")
        return Value(name, _CLUSTER)
    if elsewhere:
        notices.append(f"{elsewhere}; not used on {here}")
        return None
    return chosen


def _clusters_of_profiles(files: Sequence[_ProfileFile]) -> dict[str, str]:
    """Return the cluster of each profile that is for one; the first file's counts."""
    clusters = {}
    for _, tables in reversed(files):
        for name, table in tables.items():
            if _CLUSTER in table:
                clusters[name] = str(table[_CLUSTER].value).strip().lower()
    return clusters


def _why_elsewhere(chosen: Value | None, clusters: Mapping[str, str], here: str) -> str:
    """Return that the chosen profile is for another cluster; empty if it is not, or the cluster is unknown."""
    if chosen is None or not here:
        return ""
    cluster = clusters.get(chosen.value, "")
    return "" if covers(here, cluster) else f"profile {chosen.value} is for cluster {cluster}"


def _profile_for(clusters: Mapping[str, str], here: str) -> str:
    """Return the profile for a cluster, empty without one. Raises RequestError for several."""
    fitting = sorted(name for name, cluster in clusters.items() if cluster == here)
    if len(fitting) > 1:
        hint = f"choose one with --profile {fitting[0]}, or remove the cluster key from all but one of them"
        raise RequestError(f"several profiles match cluster {here}: {', '.join(fitting)}", hint=hint)
    return "".join(fitting)


_ProfileFile = tuple[dict[str, Value], dict[str, dict[str, Value]]]
"""The values at the top of a file, and those of each table [profile.NAME]."""


def _levels(files: Iterable[_ProfileFile], chosen: Value | None) -> list[dict[str, Value]]:
    """Return the values of each file's chosen table, and of its top, which the table precedes."""
    levels = []
    for top, tables in files:
        if chosen is not None and chosen.value in tables:
            levels.append(tables[chosen.value])
        levels.append(top)
    return levels


def _read_profile(document: Document) -> _ProfileFile:
    """Return the values at the top of a profile file and in its tables."""
    tables = document.data.get("profile", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise document.error(
            ["profile"], "profile must contain tables, such as [profile.NAME]",
            hint='write [profile.NAME] with keys below it; select a profile with default-profile = "NAME"',
        )  # fmt: skip
    top = {k: v for k, v in document.data.items() if k != "profile"}
    levels = {name: _profile_level(document, ("profile", name), table, _CLUSTER) for name, table in tables.items()}
    return _profile_level(document, (), top, "default-profile"), levels


def _profile_level(
    document: Document, path: tuple[str, ...], table: Mapping[str, Any], own_key: str
) -> dict[str, Value]:  # fmt: skip
    """Return the values in a profile file's top or table, which alone may have the key ``own_key``."""
    source = document.source + clause(".".join(path), " [{}]")
    own = ("job", own_key, *REMOTE_KEYS)
    spelled = _spelled(table)
    for name in (*_JOB_KEYS, *_PROFILE_KEYS):
        if name in spelled and name not in own:
            message, hint = _why_misplaced(name)
            raise document.error([*path, spelled[name]], message, hint=hint)
    values = read_values(document, path, table, source, own=own)
    return values | {name: Value(text_at(document, (*path, spelled[name])), source) for name in own if name in spelled}


def _spelled(table: Mapping[str, Any]) -> dict[str, str]:
    """Return how the table spells each of its keys, with - or _."""
    return {key.replace("_", "-"): key for key in table}


def _why_misplaced(name: str) -> tuple[str, str]:
    """Return where a key of a profile file or of a job file belongs instead, and what to do."""
    if name in _JOB_KEYS:
        return f"the {name} key belongs in a job file", 'move it to jobs/NAME.toml, and write job = "NAME" here instead'
    if name == _CLUSTER:
        return "the cluster key belongs in a profile's table", "move it below [profile.NAME]"
    return f"the {name} key belongs at the top of the file", "move it out of the profile's table"


def _read_job(document: Document, path: Path | None) -> JobFile:
    _refuse_profile_keys(document)
    kind = _read_kind(document)
    target, args = _read_target(document, kind), _read_args(document, kind)
    values = read_values(document, (), document.data, document.source, own=_JOB_KEYS)
    if "set" in values and kind != "task":
        raise document.error(["set"], f"[set] is only for tasks, but this job runs a {kind}", hint="use args, or [env]")
    sweep = read_sweep(document, document.home)
    return JobFile(document.source, path, values, kind, target, args, sweep)


def _refuse_profile_keys(document: Document) -> None:
    spelled = _spelled(document.data)
    for name in _PROFILE_KEYS:
        if name in spelled:
            message = f"the {spelled[name]} key belongs in {PROJECT_FILE}"
            hint = f"move it to {PROJECT_FILE}; a job file describes only one job"
            raise document.error([spelled[name]], message, hint=hint)


def _read_kind(document: Document) -> WorkKind:
    """Return the kind of what a job file runs: the one such key that it has. Raises ConfigError."""
    given = [key for key in WORK_KEYS if key in document.data]
    if not given:
        # one of them may be misspelled: that is the better message
        if unknown := unknown_key(document, (), document.data, own=_JOB_KEYS):
            raise unknown
        hint = 'set task, script, module or command, for example task = "lm"'
        raise document.error((), "the file does not say what to run", hint=hint)
    if len(given) > 1:
        raise document.error(given[1:2], f"{given[0]} and {given[1]} conflict", hint="keep one of them")
    return cast("WorkKind", given[0])


def _read_target(document: Document, kind: WorkKind) -> str:
    target = text_at(document, (kind,))
    if kind == "script" or (kind == "command" and "/" in target):
        return resolve(target, document.base, document.home)
    return target


def _read_args(document: Document, kind: WorkKind) -> tuple[str, ...]:
    args = document.data.get("args", [])
    if not is_list_of_texts(args):
        raise document.error(["args"], "args must be a list of strings", hint='for example args = ["--lr", "1e-4"]')
    if args and kind == "task":
        hint = "put the task's settings under [set], for example steps = 300"
        raise document.error(["args"], "a task takes no args", hint=hint)
    return tuple(args)


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in _SHIPPED_JOBS.glob("*.toml")}


def _no_job(name: str, root: Path, path: Path | None) -> RequestError:
    if path is not None or name.endswith((".py", ".sh")):
        hint = f"to run a script, put it after `--`: clusterrun submit -- {name}"
    else:
        names = list_jobs(root)
        near = nearest(Path(name).name.removesuffix(".toml"), names)
        hint = f"{near} available: {', '.join(names)}".strip()
    return RequestError(f"no job file {name[:80]!r}", hint=hint)
