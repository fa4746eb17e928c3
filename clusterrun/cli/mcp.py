"""``mcp``: a server of the Model Context Protocol on standard input and output, for coding agents.

Each tool runs one command of clusterrun with ``--json``, so it returns what a user sees, and a command that hangs or
fails cannot harm the server.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from clusterrun import __version__
from clusterrun.base.decode import Damaged, parse_object
from clusterrun.base.errors import CommandError, RequestError
from clusterrun.base.units import format_amount
from clusterrun.cli.common.session import AGENT, Session
from clusterrun.system import shell

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

ANSWER_S = 120.0
"""Seconds until a command is given up; a submission has its own limits below this."""
LINES = 200
LONGEST = 100_000
"""Characters of an answer."""
UNKNOWN = 75
INSTRUCTIONS = """\
Run and diagnose PyTorch training on Slurm with clusterrun. JOB is a job id, a job name or `last`.
After a failure, call `why` first: it names the first cause across all ranks. Read logs only for more context.
Never submit a job again without a change if `why` names a cause in the code or the settings.
There is no tool for `clusterrun resume JOB`: give that command to the user."""


class Denied(Exception):
    """A tool call that failed, with the message for the agent, and the exit code of its command (75: unknown)."""

    def __init__(self, message: str, exit_code: int = UNKNOWN) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@click.command()
@click.option("--allow-submit", is_flag=True, help="Let the agent submit jobs and cancel its own jobs.")
@click.option(
    "--gpu-hours", type=click.FloatRange(min=0), metavar="N", help="Limit on the total GPU-hours of the agent's jobs."
)
@click.pass_obj
def mcp(session: Session, allow_submit: bool, gpu_hours: float | None) -> None:
    """Serve clusterrun's commands to a coding agent over the Model Context Protocol (docs/agents.md).

    \b
      clusterrun mcp                                    the agent can only read
      clusterrun mcp --allow-submit --gpu-hours 16

    The server works in the current folder. Each job is charged the GPU-hours of its full time limit; the count starts
    at 0 when the server starts.
    """
    if allow_submit is (gpu_hours is None) or not math.isfinite(gpu_hours or 0):
        raise RequestError(
            "--allow-submit and --gpu-hours N must be given together, with a finite N",
            hint="clusterrun mcp --allow-submit --gpu-hours 16",
        )
    try:
        server = _make_server(Budget(gpu_hours) if gpu_hours is not None else None)
    except ImportError:
        raise RequestError("the Python package mcp is not installed", hint="pip install 'clusterrun[mcp]'") from None
    server.run()


class Budget:
    """The GPU-hours that an agent may use, and the jobs that it submitted."""

    def __init__(self, hours: float) -> None:
        self._left = hours
        self._lock = threading.Lock()  # the server runs tools in threads
        self._jobs: set[str] = set()

    def submit(self, arguments: list[str]) -> str:
        """Submit a job; `arguments` as in plan_submit, with --time. Refused if it exceeds the budget of GPU-hours."""
        with self._lock:
            hours = run_verb("submit", "--dry-run", *arguments)["gpu_hours"]
            if hours is None:
                raise Denied(
                    "the GPU-hours of this job are unknown: give --time and --gpus-per-node, and omit --nodelist"
                )
            if hours > self._left:
                raise Denied(
                    f"not enough GPU-hours left: this job can use up to {format_amount(hours)},"
                    f" but the budget has only {format_amount(self._left)}"
                )
            try:
                found = run_verb("submit", *arguments)
            except Denied as error:
                if error.exit_code == UNKNOWN:  # it may have been submitted
                    self._left -= hours
                raise
            if "job_id" not in found:
                raise Denied("--dry-run cannot be used through this server: call plan_submit", exit_code=2)
            self._left -= hours
            self._jobs.add(found["job_id"])
            return json.dumps(found | {"gpu_hours": hours, "gpu_hours_left": self._left})

    def cancel(self, job: str) -> str:
        """Cancel a job that was submitted through this server."""
        if job not in self._jobs:
            raise Denied(f"job {job[:40]} was not submitted through this server")
        return _answer("cancel", job=job)


def run_verb(verb: str, *words: str) -> Any:
    """Run a command with ``--json``, as ``cli/common/agent.py`` allows it, and return its data.

    Raises Denied with its message and hint.
    """
    command = [sys.executable, "-P", "-m", "clusterrun", verb, "--json", *words]
    try:
        done = shell.run(command, env={**os.environ, AGENT: "1"}, timeout=ANSWER_S)
    except CommandError as error:
        raise Denied(f"`clusterrun {verb}` did not complete: {error.message}") from None
    except ValueError:  # a NUL, or half of a surrogate pair
        raise Denied("an argument contains a character that is not allowed on a command line", exit_code=2) from None
    try:
        envelope = parse_object(done.stdout)
    except Damaged:
        raise Denied(done.stderr.strip()[-2000:] or f"`clusterrun {verb}` exited with {done.status}") from None
    if refusal := envelope.get("error"):
        hint = f"\nhint: {refusal['hint']}" if refusal.get("hint") else ""
        raise Denied(refusal["message"] + hint, refusal.get("exit_code", 1))
    return envelope["data"]


def list_jobs(ended: bool = False, since: str = "7d") -> str:
    """List the user's active jobs; with `ended` also those that ended, submitted within `since` (12h, 2d, 1w)."""
    return _answer("list", *(("--all", f"--since={since}") if ended else ()))


def job_status(job: str = "last") -> str:
    """Show a job's state, nodes, times, ranks, launches and training figures."""
    return _answer("status", job=job)


def why(job: str = "last") -> str:
    """Explain why a job is pending, or the first cause of its failure across all ranks, with advice and a command."""
    return _answer("why", job=job)


def logs(job: str = "last", lines: int = LINES, ranks: str = "", pattern: str = "", errors: bool = False) -> str:
    """Return the last lines of a job's output.

    Only of some `ranks` ("0-3,8"), those that match a regular expression, or only errors with their tracebacks.
    """
    options = [f"--lines={max(1, min(lines, 10 * LINES))}"]
    options += [f"--rank={ranks}"] if ranks else []
    options += [f"--grep={pattern}"] if pattern else []
    return _answer("logs", *options, *(["--errors"] if errors else []), job=job)


def free() -> str:
    """Show free GPUs by partition, the user's limits, and where a job would start first."""
    return _answer("free")


def plan_submit(arguments: list[str]) -> str:
    """Check a submission without submitting it, and return its script, summary and GPU-hours.

    No program of the project is started, so packages and settings are not checked.

    `arguments` are those of `clusterrun submit`: ["--nodes", "2", "--gpus-per-node", "4", "--time", "1:00:00", "--",
    "train.py"].
    """
    return _answer("submit", "--dry-run", *arguments)


READING = (list_jobs, job_status, why, logs, free, plan_submit)


def _answer(verb: str, *options: str, job: str = "") -> str:
    if job.startswith("-"):
        raise Denied(f"not a job id or name: {job[:40]!r}")
    text = json.dumps(run_verb(verb, *options, *([job] if job else [])))
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} … (truncated, {len(text):,} characters in total; request fewer lines or jobs)"


def _make_server(budget: Budget | None) -> MCPServer[Any]:
    """Return the server with its tools; raises ImportError without the SDK."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    server: MCPServer[Any] = MCPServer(
        "clusterrun", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )
    tools = [*READING, *((budget.submit, budget.cancel) if budget is not None else ())]
    for tool in tools:

        def call(*arguments: Any, tool: Callable[..., str] = tool, **named: Any) -> str:
            try:
                return tool(*arguments, **named)
            except Denied as error:  # its message is for the agent
                raise ToolError(str(error)) from None

        named = functools.update_wrapper(call, tool)
        server.tool(annotations=ToolAnnotations(read_only_hint=tool in READING, destructive_hint=tool not in READING))(
            named
        )
    return server
