"""The container of a job's ranks: which images are files, and its mounts. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value

PYXIS, APPTAINER = "pyxis", "apptainer"
_MOUNT = re.compile(r"(/[^:,]*)(:/[^:,]*)?(:[\w+-]+)?", re.ASCII)


def is_file_name(image: str) -> bool:
    """Return whether an image is a file or a folder, and not a name in a registry."""
    if "://" in image:
        return False
    return image.startswith(("/", "./", "../", "~/")) or image.endswith((".sif", ".sqsh", ".sqfs", ".img"))


def read_mounts(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the mounts of merged values as SOURCE:TARGET[:FLAGS]; none without an image.

    Raises RequestError for a wrong one, and for a flag of a container without an image.
    """
    if "container-image" not in values:
        for name, value in values.items():
            if name.startswith("container-") and value.source == f"--{name}":
                raise RequestError(
                    f"--{name} needs --container-image", hint=f"remove --{name}, or add --container-image IMAGE"
                )
        return ()
    given = values.get("container-mounts", Value((), ""))
    mounts = []
    for text in filter(None, ",".join(given.value).split(",")):
        match = _MOUNT.fullmatch(text)
        if match is None:
            raise RequestError(
                f"--container-mounts: not a mount: {text!r} ({given.source})",
                hint="give absolute paths: --container-mounts /data:/data,/scratch/me:/scratch",
            )
        mounts.append(f"{match[1]}{match[2] or ':' + match[1]}{match[3] or ''}")
    return tuple(mounts)
