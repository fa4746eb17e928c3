"""Read an accelerate configuration, as ``accelerate launch --config_file`` does, into options of its command line."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterrun.base.decode import Damaged, parse_object
from clusterrun.base.errors import CommandError, RequestError
from clusterrun.config.files import is_file
from clusterrun.jobspec.spec import JobSpec
from clusterrun.run_folder.safe_files import read_plain
from clusterrun.submit.job_python import JobPython, NotStarted
from clusterrun.submit.launcher_table import Launcher, Option

_LIMIT = 64_000
"""The maximum size of a configuration, in bytes; accelerate writes about one thousand."""
_UNKNOWN = Option("", "own")
_PARSE_S = 5
_PROBE = f"""import json, signal, sys
try:
    import yaml
    text = sys.stdin.buffer.read()
    signal.alarm({_PARSE_S})  # some texts of this size take hours
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):  # ten lines of them can be gigabytes
        sys.exit("aliases (*NAME) are not supported")
    print(json.dumps(yaml.safe_load(text), default=str))
except Exception as error:
    mark = getattr(error, "problem_mark", None)
    where = f"line {{mark.line + 1}}: " if mark else ""
    sys.exit(where + str(getattr(error, "problem", None) or error or type(error).__name__).split("\\n")[0])
"""


def defaults(
    typed: Sequence[Option], launcher: Launcher, cwd: Path, python: JobPython, environ: Mapping[str, str]
) -> tuple[list[Option], str]:
    """Return the options that the configuration adds to the typed ones, and its path.

    The file is the one of ``--config_file``, else the user's default file unless ``--cpu`` was typed. Raises
    RequestError if it cannot be read, or if its ``distributed_type`` is not plain data parallelism.
    """
    values = {option.name: option.value for option in typed}
    given = values.get("config-file", "")
    path = cwd / given if given else _default_file(environ)
    if not given and ("cpu" in values or not is_file(path)):
        return [], ""
    source = given or str(path)
    data = load(path, source, python, environ)
    kind = str(data.get("distributed_type", "")).upper()
    if kind == "NO":
        data["num_processes"] = 1
    options = list(_options(data, launcher, source, set(values)))
    if not _is_data_parallel(kind) and "multi-gpu" not in values:
        name = f"distributed_type {kind} in {source}"
        options.insert(0, Option(name, "accelerate", spelled=name))
    return options, source


def _is_data_parallel(kind: str) -> bool:
    """Return whether ranks of a ``distributed_type`` differ in their data only."""
    return kind in ("", "NO") or kind.startswith("MULTI_")


def check_shape(spec: JobSpec, python: JobPython, environ: Mapping[str, str]) -> None:
    """Raise RequestError if the file of --accelerate-config is unreadable, or of other nodes and ranks than the job."""
    path = Path(spec.accelerate_config)
    config = load(path, f"--accelerate-config: {path}", python, environ)
    for name, number in (("num_machines", spec.nodes), ("num_processes", spec.world_size)):
        if config.get(name, number) != number:
            raise RequestError(
                f"--accelerate-config: {path} sets {name} to {config[name]}, but the job uses {number}",
                hint=f"set {name}: {number} in that file, or change --nodes and --gpus-per-node",
            )


def load(path: Path, source: str, python: JobPython, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a configuration. The job's Python parses it: accelerate brings a YAML parser.

    Raises RequestError.
    """
    if not is_file(path):
        raise RequestError(f"{source}: no such file", hint="create the file with: accelerate config --config_file FILE")
    try:
        text = read_plain(path, trusted=False, limit=_LIMIT).decode("utf-8", "replace")
        return parse_config(python.read(["-c", _PROBE], environ=environ, stdin=text), source)
    except NotStarted as error:
        raise RequestError(f"{source} cannot be read: {error.message}", hint=error.hint) from error
    except OSError as error:
        raise RequestError(f"{source}: {error.strerror}", hint="check that this is the right file") from None
    except Damaged:
        raise RequestError(f"{source}: not an accelerate configuration") from None
    except CommandError as error:
        slow = error.status == 128 + signal.SIGALRM
        why = f"parsing takes longer than {_PARSE_S} s" if slow else error.detail
        raise RequestError(f"{source} cannot be parsed by {python.path}", detail=why) from error


def parse_config(text: str, source: str) -> dict[str, Any]:
    """Return a configuration that was written as JSON; raises RequestError for another, or Damaged."""
    data = parse_object(text)
    if str(data.get("compute_environment", "LOCAL_MACHINE")) != "LOCAL_MACHINE":
        raise RequestError(f"{source}: compute_environment {data['compute_environment']} is not supported")
    return data


def _options(data: Mapping[str, Any], launcher: Launcher, source: str, typed: set[str]) -> Iterator[Option]:
    """Yield the options of a configuration that the line does not set itself."""
    if data.get("mixed_precision") is False:  # YAML 1.1 reads no as False
        data = {**data, "mixed_precision": "no"}
    for key, value in {**data, **_dynamo_keys(data)}.items():
        option = launcher.options.get(key.replace("_", "-"), _UNKNOWN)
        if option.kind == "own" or option.name in typed or value in (None, "", []):
            continue
        if option.values or value is True:
            yield option._replace(spelled=f"--{key} in {source}", value=str(value))


def _dynamo_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``dynamo_config`` by the names of accelerate's options."""
    config = data.get("dynamo_config")
    if not isinstance(config, dict):
        return {}
    return {f"dynamo_{key.removeprefix('dynamo_')}": value for key, value in config.items()}


def _default_file(environ: Mapping[str, str]) -> Path:
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    folder = Path(environ.get("HF_HOME") or f"{cache}/huggingface") / "accelerate"
    yaml_file = folder / "default_config.yaml"
    return yaml_file if is_file(yaml_file) else folder / "default_config.json"
