"""The option --on-failure: from its value to the supervisor's option."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.render import supervise_argv
from clusterrun.worker.job import supervisor
from tests.support.command_desk import Desk
from tests.support.rendered_scripts import make_spec


@pytest.mark.parametrize(("text", "seconds"), [("hold", 1800), ("hold=45m", 2700), ("hold=2h", 7200)])
def test_the_supervisor_gets_the_time_to_hold_the_nodes(text: str, seconds: int) -> None:
    options, _ = supervisor.parse([*supervise_argv(make_spec(on_failure=text), local=False), "--", "script"])
    assert options.on_failure == seconds


@pytest.mark.parametrize("text", ["stop", "hold=", "hold=soon", "hold=0", "hold 5m", "HOLD"])
def test_other_values_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="--on-failure"):
        make_spec(on_failure=text)


def test_a_local_job_has_no_nodes_to_hold(desk: Desk) -> None:
    said = desk.type("render", "--scheduler", "local", "--on-failure", "hold", "--", "train.py")
    assert said.status == 0 and "the local scheduler ignores --on-failure" in said.err
