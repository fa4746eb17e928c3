"""Prepare a job whose ranks run in a container: which runtime starts them, and what they need from outside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from clusterrun.base.errors import CommandError, RequestError
from clusterrun.jobspec.containers import APPTAINER, PYXIS, is_file_name
from clusterrun.jobspec.spec import JobSpec, Script
from clusterrun.system import shell

_HELP_S = 10.0


def with_container(spec: JobSpec, environ: Mapping[str, str], folders: Iterable[Path], *, local: bool) -> JobSpec:
    """Return a specification with the container's runtime, and with mounts of the folders at their own paths.

    ``local``: on this machine, without srun. Raises RequestError if no runtime is found, or a folder cannot be mounted.
    """
    if not spec.container_image:
        return spec
    runtime, work, needed = spec.container_runtime or _find_runtime(environ, local=local), spec.work, list(folders)
    if local and runtime == PYXIS:
        raise RequestError("pyxis is an srun plugin, but this job runs without Slurm", hint="use apptainer")
    if isinstance(work, Script):
        # its saved copy is found by its real path, and the container does not have the links above the project
        script = Path(work.path)
        work = replace(work, path=f"{os.path.realpath(script.parent)}/{script.name}")
        needed.append(script.parent)
    if spec.accelerate_config:
        needed.append(Path(spec.accelerate_config).parent)
    needed = _topmost(needed)
    _check_mountable(needed)
    mounts = _add_mounts(spec.container_mounts, needed)
    return replace(spec, work=work, container_runtime=runtime, container_mounts=mounts)


def _topmost(folders: Iterable[Path]) -> list[Path]:
    """Return the folders, and those that they are links to, of which none lies in another."""
    paths = dict.fromkeys(path for folder in folders for path in (folder, Path(os.path.realpath(folder))))
    return [path for path in paths if paths.keys().isdisjoint(path.parents)]


def _check_mountable(folders: Sequence[Path]) -> None:
    for folder in folders:
        if set(str(folder)) & set(",:\\"):
            raise RequestError(
                f"a container cannot mount {folder}: its path contains a comma, a colon or a backslash",
                hint="rename the folder",
            )


def _add_mounts(mounts: Sequence[str], folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the mounts with those of the folders at their own paths."""
    targets = [Path(mount.split(":")[1]) for mount in mounts]
    own = [folder for folder in folders if str(folder) not in map(str, targets)]
    above = {parent for folder in own for parent in folder.parents}
    outer, inner = list[str](), list[str]()
    for mount, target in zip(mounts, targets, strict=True):
        (outer if target in above else inner).append(mount)  # an outer one comes first: it would hide a folder
    return (*outer, *(f"{folder}:{folder}" for folder in own), *inner)


def check_image(spec: JobSpec) -> None:
    """Raise RequestError for an image that the runtime cannot find."""
    image = spec.container_image
    if is_file_name(image):
        if not os.path.exists(image):
            hint = "give the path of an image; use --no-check if only the compute nodes have the image"
            raise RequestError(f"--container-image: no such file: {image}", hint=hint)
    elif spec.container_runtime == APPTAINER and "://" not in image:
        hint = f"for an image in a registry, use docker://{image}; for a file or folder, use ./{image}"
        raise RequestError(f"--container-image: Apptainer cannot find {image}", hint=hint)


def _find_runtime(environ: Mapping[str, str], *, local: bool) -> str:
    """Return pyxis if srun has its options here, else apptainer if it is installed. Raises RequestError."""
    clean, _ = shell.scrub(environ)
    try:
        if not local and "--container-image" in shell.check_output(["srun", "--help"], env=clean, timeout=_HELP_S):
            return PYXIS
    except CommandError:  # no Slurm here
        pass
    if shutil.which("apptainer", path=environ.get("PATH")):
        return APPTAINER
    raise RequestError(
        "--container-image: found neither pyxis (srun --container-image) nor apptainer on this node",
        hint="if the compute nodes have one of them, use --container-runtime apptainer (or pyxis),"
        ' or set runtime = "apptainer" in [container]',
    )
