"""Check that accelerate's YAML describes the job that is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterrun.errors import RequestError
from clusterrun.jobspec.spec import JobSpec
from clusterrun.submit import accelerate_yaml


def check_accelerate_config(spec: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise RequestError if the YAML is unreadable, or its machines and processes are not the nodes and ranks."""
    path = Path(spec.accelerate_config)
    what = f"--accelerate-config: {path}"
    if not path.is_file():
        raise RequestError(f"{what}: no such file", hint="write one with: accelerate config --config_file FILE")
    config = accelerate_yaml.load(path, what, spec.python, environ)
    if config.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
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
