"""Check that accelerate's YAML describes the job that is submitted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterrun.errors import CommandError, RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.system import shell

_PROBE = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1])), default=str))"


def check_accelerate_config(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise RequestError if the YAML is unreadable or if its machines and processes are not the job's nodes and ranks.

    The job's Python parses the file: accelerate brings a YAML parser.
    """
    path = spec.accelerate_config
    what = f"--accelerate-config: {path}"
    if not Path(path).is_file():
        raise RequestError(f"{what}: no such file", hint="write one with: accelerate config --config_file FILE")
    try:
        config = json.loads(shell.check_output([spec.python, "-c", _PROBE, path], env=dict(environ), cwd=Path("/")))
    except (CommandError, ValueError) as error:
        said = getattr(error, "said", "").strip().splitlines()
        raise RequestError(f"{what}: cannot be parsed", said="\n".join(said[-3:])) from error
    if not isinstance(config, dict) or config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        raise RequestError(f"{what}: not a configuration of compute_environment: LOCAL_MACHINE")
    shape = {"num_machines": spec.nodes, "num_processes": spec.world_size}
    wrong = {name: config[name] for name in shape if config.get(name, shape[name]) != shape[name]}
    if wrong:
        raise RequestError(
            f"{what}: {_list(wrong)}, but the job has {_list({name: shape[name] for name in wrong})}",
            hint=f"write {_list(shape)} there, or change --nodes and --gpus-per-node",
        )


def _list(values: Mapping[str, Any]) -> str:
    return " and ".join(f"{name}: {value}" for name, value in values.items())
