"""What a coding agent may request, for the tools of ``mcp``: an allow list of options, checked where they are merged.

The server sets a variable (``session.AGENT``) in the environment of each command. Such a command runs on this machine,
whatever names a remote host, and a plan starts no program of the project (ADR 31).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from clusterrun.base.errors import RequestError
from clusterrun.base.fields import FIELDS
from clusterrun.config.files import why_unused

if TYPE_CHECKING:
    from clusterrun.submit.request import Request

#: The options that an agent may set, and those that files of the project may set: the software and the place of a job.
FIELDS_OF_AGENTS = frozenset(field.name for field in FIELDS if field.writer == "agent")
_FIELDS_OF_FILES = frozenset(field.name for field in FIELDS if field.writer != "user")
#: Parameters of ``submit`` that an agent may type; the last two are the server's.
_PARAMETERS = FIELDS_OF_AGENTS | {"words", "profile", "after", "after-ok", "as-json", "dry-run"}


def check_typed(ctx: click.Context, words: Iterable[str]) -> None:
    """Raise RequestError for a parameter of ``submit`` that an agent typed and must not set; ``words`` name its job."""
    for parameter in ctx.command.params:
        is_typed = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        name = str(parameter.name).replace("_", "-")
        if is_typed and name not in _PARAMETERS:
            raise _refusal(f"--{name}", "typed")
    for word in words:
        if word.startswith(("/", "~")) or ".." in PurePath(word).parts:
            raise RequestError(f"an agent cannot use a job file outside of the project: {word[:80]!r}")


def check_request(request: Request) -> None:
    """Raise RequestError for a merged value that an agent or a file of the project must not set.

    The user's own profile, the environment and defaults may set anything.
    """
    levels, above = request.levels, set[str]()
    for allowed, written in ((FIELDS_OF_AGENTS, levels.typed), (_FIELDS_OF_FILES, levels.files)):
        for level in written:
            for name in sorted(level.keys() - above - allowed):
                raise _refusal(f"--{name}", level[name].source)
            above |= level.keys()
    if request.job is not None and request.job.path is not None:
        _check_job_file(request.job.path, request.root)


def _check_job_file(path: Path, root: Path) -> None:
    real, shown = os.path.realpath(path), str(path)
    if not real.startswith(f"{os.path.realpath(root)}/"):
        raise RequestError(f"an agent cannot use a job file outside of the project: {shown}")
    if why := why_unused(path):
        raise RequestError(f"an agent cannot use {shown}: {why}")


def _refusal(option: str, source: str) -> RequestError:
    where = "" if source in ("typed", option) else f" ({source})"
    return RequestError(f"{option} cannot be used through this server{where}", hint="docs/agents.md")
