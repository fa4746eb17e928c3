"""The server for coding agents, with the protocol's official client: it reads jobs, and submits within its budget."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from clusterrun import __version__
from tests.support.installed_command import CLUSTERRUN, Site
from tests.support.patience import HUNG

READING = {"list_jobs", "job_status", "why", "logs", "free", "plan_submit"}
SHAPE = ("--nodes", "1", "--gpus-per-node", "1", "--independent")
HOUR = ("--time", "1:00:00")


class Failed(Exception):
    """A tool call that was an error for the client."""


Call = Callable[..., Awaitable[Any]]


def talk(site: Site, options: tuple[str, ...], conversation: Callable[[Call], Awaitable[Any]]) -> Any:
    """Start a server in the project and return what a conversation with it returns."""
    from mcp import StdioServerParameters  # not above: each worker of a whole run reads this file
    from mcp.client.client import Client

    async def main() -> Any:
        program, *words = [*CLUSTERRUN, "mcp", *options]
        server = StdioServerParameters(command=program, args=words, cwd=site.project, env=dict(site.env))
        async with Client(server) as client:

            async def call(tool: str, **arguments: Any) -> Any:
                if tool == "server":
                    return client.server_info
                if tool == "tools":
                    return {one.name for one in (await client.list_tools()).tools}
                found = await client.call_tool(tool, arguments)
                text = found.content[0].text  # type: ignore[union-attr]
                if found.is_error:
                    raise Failed(text)
                return json.loads(text)

            try:
                return await conversation(call)
            except Failed as error:  # the client would put it into a group
                return error

    found = anyio.run(main)
    if isinstance(found, Failed):
        raise found
    return found


@pytest.fixture(scope="module")
def failed(site: Site) -> str:
    """A job whose script raises an exception."""
    (site.project / "breaks.py").write_text("def load():\n    raise KeyError('learning_rate')\n\nload()\n")
    job = site.submit(*SHAPE, "--", "breaks.py")
    site.wait_state(job, "FAILED", timeout=120)
    return job.id


def test_a_server_that_may_not_submit_has_only_tools_that_read(site: Site) -> None:
    async def conversation(call: Call) -> Any:
        with pytest.raises(Failed, match="Unknown tool"):
            await call("submit", arguments=["--", "breaks.py"])
        return await call("tools"), await call("server")

    tools, server = talk(site, (), conversation)
    assert tools == READING and (server.name, server.version) == ("clusterrun", __version__)


def test_an_agent_reads_a_failed_job_and_gets_its_cause(site: Site, failed: str) -> None:
    async def conversation(call: Call) -> Any:
        listed = await call("list_jobs", ended=True)
        return (
            listed,
            await call("job_status", job=failed),
            await call("why", job=failed),
            await call("logs", job=failed),
        )

    listed, (status,), why, logs = talk(site, (), conversation)
    assert failed in [one["job_id"] for one in listed] and status["state"] == "FAILED"
    assert "KeyError" in json.dumps(why) and "learning_rate" in json.dumps(why)
    assert "KeyError: 'learning_rate'" in json.dumps(logs)


def test_a_wrong_job_is_an_error_with_a_message(site: Site) -> None:
    async def conversation(call: Call) -> None:
        for job in ("--all", "-h", "99999", "no-such-name"):
            with pytest.raises(Failed, match=r"not a job id or name|no such job|no job is named"):
                await call("job_status", job=job)

    talk(site, (), conversation)


def test_submissions_stay_within_the_budget(site: Site) -> None:
    work = ["--", "sleep", "600"]

    async def conversation(call: Call) -> None:
        first = await call("submit", arguments=[*SHAPE, *HOUR, *work])
        assert (first["gpu_hours"], first["gpu_hours_left"]) == (1, 0.5)
        with pytest.raises(Failed, match=r"this job can use up to 1, but the budget has only 0\.5"):
            await call("submit", arguments=[*SHAPE, *HOUR, *work])
        second = await call("submit", arguments=[*SHAPE, "--time", "15", *work])
        assert second["gpu_hours_left"] == 0.25
        await call("cancel", job=first["job_id"])
        await call("cancel", job=second["job_id"])
        site.wait_state(first["job_id"], "CANCELLED", timeout=HUNG)

    talk(site, ("--allow-submit", "--gpu-hours", "1.5"), conversation)


REFUSED: list[tuple[list[str], str]] = [
    ([*SHAPE, "--", "true"], "the GPU-hours of this job are unknown"),
    ([*SHAPE, *HOUR, "--sbatch-arg=--array=0-9", "--", "true"], "--sbatch-arg cannot be used"),
    ([*SHAPE, *HOUR, "--no-check", "--", "true"], "--no-check cannot be used"),
    ([*SHAPE, *HOUR, "--remote", "127.0.0.1", "--", "true"], "without --remote"),
    ([*SHAPE, *HOUR, "--secret=HOME", "--", "true"], "--secret cannot be used"),
    ([*SHAPE, *HOUR, "--dry-run", "--", "true"], "call plan_submit"),
    ([*SHAPE, *HOUR, "--nodse", "3", "--", "true"], "--nodse"),
    ([*SHAPE, *HOUR, "--nodes", "4", "--gpus-per-node", "4", "--", "true"], "can use up to 16, but"),
    ([*SHAPE, *HOUR, "--total-time", "2d", "--", "true"], "can use up to 48, but"),
]


def test_submissions_that_are_refused(site: Site) -> None:
    def runs() -> set[str]:
        return {path.name for path in (site.project / ".clusterrun" / "runs").glob("*")}

    before = runs()

    async def conversation(call: Call) -> None:
        for arguments, message in REFUSED:
            with pytest.raises(Failed, match=message):
                await call("submit", arguments=arguments)
            assert runs() == before, arguments

    talk(site, ("--allow-submit", "--gpu-hours", "10"), conversation)


def test_a_plan_starts_nothing_that_the_project_names(site: Site) -> None:
    trap = site.project / "env/bin/python"
    trap.parent.mkdir(parents=True)
    trap.write_text("#!/bin/sh\necho sprung >>sprung\n")
    trap.chmod(0o755)
    config = site.project / "clusterrun.toml"

    async def conversation(call: Call) -> Any:
        config.write_text('venv = "env"\nremote = "127.0.0.1"\nsecret = []\n')  # as an agent may write it meanwhile
        for words in (["--remote", "127.0.0.1"], ["--venv", "env"], ["--python=env/bin/python"], ["--secret", "HOME"]):
            with pytest.raises(Failed, match=r"cannot be used through this server|without --remote"):
                await call("plan_submit", arguments=[*words, *SHAPE, *HOUR, "--", "breaks.py"])
        return await call("plan_submit", arguments=[*SHAPE, *HOUR, "--", "true"]), await call("list_jobs")

    try:
        plan, _ = talk(site, (), conversation)
    finally:
        config.unlink()
    assert plan["gpu_hours"] == 1 and "env/bin/activate" in plan["script"]
    assert not list(site.project.rglob("sprung"))


def test_a_job_of_somebody_else_is_not_cancelled(site: Site) -> None:
    job = site.submit(*SHAPE, "--sbatch-arg=--hold", "--", "true")

    async def conversation(call: Call) -> None:
        await call("cancel", job=job.id)

    with pytest.raises(Failed, match=f"job {job.id} was not submitted through this server"):
        talk(site, ("--allow-submit", "--gpu-hours", "1"), conversation)
    assert site.state(job)["state"] == "PENDING"


@pytest.mark.parametrize(
    "options", [("--allow-submit",), ("--gpu-hours", "5"), ("--allow-submit", "--gpu-hours", "-1")]
)
def test_a_budget_is_needed(site: Site, options: tuple[str, ...]) -> None:
    said = site.cli("mcp", *options, status=2)
    assert "--gpu-hours" in said.stderr and "Traceback" not in said.stderr
