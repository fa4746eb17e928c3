"""The target of --notify is checked before anything is submitted, and never shown."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Script, build_spec
from clusterrun.submit.checks import check_address, check_command
from clusterrun.submit.job_python import JobPython
from tests.support.command_desk import Desk, refused

SECRET = "T0KEN"
APPRISE = "class Apprise:\n    def add(self, address):\n        return address.startswith('ntfy://')\n"


def check(target: str, python: str = sys.executable, *, local: bool = False, **options: object) -> list[str]:
    """The notices about a target, with the job's options."""
    values = {"python": python, **options}
    spec = build_spec({name: Value(value, name) for name, value in values.items()}, Script("/x/train.py"))
    check_address(target, JobPython(python), os.environ)
    return check_command(target, spec, os.environ, Path("/usr"), local=local)


@pytest.mark.parametrize("target", [
    "https://hooks.slack.com/services/T0/B0/X", "http://[::1]:8080/x", "true", "bin/env FOO=1 true",
    "/bin/sh -c 'exit 1'",
])  # fmt: skip
def test_webhooks_and_commands_are_accepted(target: str) -> None:
    assert check(target) == []


@pytest.mark.parametrize(("target", "options"), [
    ("module-mail -s run", {"setup": ["module load mail"]}),
    ("bin/module-mail", {"setup": ["module load mail"]}),
    ("module-mail", {"env": {"PATH": "/opt/site/bin"}}),
    ("/opt/on-nodes-only/mail -s run", {}),
], ids=["setup lines", "a path, setup lines", "another PATH", "a path on other nodes"])  # fmt: skip
def test_a_command_that_may_be_on_the_compute_nodes_is_a_notice(target: str, options: dict[str, object]) -> None:
    (notice,) = check(target, **options)
    assert (
        notice == f"--notify: command {target.split(maxsplit=1)[0]} not found on this node; "
        "make sure that the compute nodes have it"
    )


def test_a_path_that_does_not_exist_is_refused_where_the_job_runs_on_this_machine() -> None:
    with pytest.raises(RequestError, match="no such command: /opt/on-nodes-only/mail"):
        check("/opt/on-nodes-only/mail -s run", local=True)


@pytest.mark.parametrize(("target", "message"), [
    (f"https:///{SECRET}", "the https:// address has no host"),
    (f"https://[{SECRET}", "the https:// address has no host"),
    (f"htps://hooks.slack.com/{SECRET}", "htps:// needs apprise, which "),
    (f"https:/hooks.slack.com/{SECRET}", "neither an address nor a command"),
    ("mial -s training", "no such command: mial"),
    ("bin/mial -s training", "no such command: bin/mial"),
    (f"mail '{SECRET}", "invalid command line: No closing quotation"),
    (" ", "invalid command line"),
])  # fmt: skip
def test_what_can_never_be_reached_is_refused(tmp_path: Path, target: str, message: str) -> None:
    python = tmp_path / "python"  # one without apprise
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(RequestError) as error:
        check(target, str(python))
    assert message in error.value.message and error.value.message.startswith("--notify: ")
    assert SECRET not in error.value.message + error.value.hint + error.value.detail


def test_apprise_judges_its_own_addresses(tmp_path: Path) -> None:
    (tmp_path / "apprise.py").write_text(APPRISE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    check(f"ntfy://{SECRET}", str(python))
    with pytest.raises(RequestError, match="apprise does not accept this htps:// address") as error:
        check(f"htps://{SECRET}", str(python))
    assert SECRET not in str(error.value) + error.value.hint


def test_submit_refuses_a_mistyped_command_in_one_line(desk: Desk) -> None:
    line, hint = refused(desk, "submit", "--gpus-per-node", "0", "--notify", "no-such-command -x", "--", "train.py")
    assert (line, hint[:14]) == ("--notify: no such command: no-such-command", "give a webhook")


def test_submit_continues_with_a_notice_if_setup_lines_may_bring_the_command(desk: Desk) -> None:
    said = desk.type(
        "submit", "--dry-run", "--gpus-per-node", "0", "--setup", "module load mail", "--notify", "module-mail", "--",
        "train.py",
    )  # fmt: skip
    assert said.status == 0 and said.err.count("module-mail not found on this node") == 1
