"""The options --hang-timeout and --spare-nodes: from their values to the supervisor's options and the script."""

from __future__ import annotations

import pytest

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.render import supervise_argv
from clusterrun.jobspec.spec import JobSpec, Script, build_spec
from clusterrun.worker.job import supervisor


def spec(**values: int) -> JobSpec:
    given = {"python": "/usr/bin/python3", "gpus-per-node": 0, **{k.replace("_", "-"): v for k, v in values.items()}}
    return build_spec({name: Value(value, f"--{name}") for name, value in given.items()}, Script("/home/me/train.py"))


@pytest.mark.parametrize(("values", "limit"), [({}, None), ({"hang_timeout": 0}, 0), ({"hang_timeout": 600}, 600)])
def test_the_supervisor_gets_the_limit_that_is_set(values: dict[str, int], limit: int | None) -> None:
    options, _ = supervisor.parse([*supervise_argv(spec(**values), local=True), "--", "script"])
    assert options.hang_timeout == limit


@pytest.mark.parametrize("seconds", [-1, 1, 9])
def test_a_limit_that_no_heartbeat_could_meet_is_refused(seconds: int) -> None:
    with pytest.raises(RequestError, match=r"--hang-timeout must be .*at least"):
        spec(hang_timeout=seconds)


def test_ranks_that_would_look_as_if_they_hung_between_two_records_are_refused() -> None:
    assert dict(spec(progress_interval=2, hang_timeout=10).for_job)["progress-interval"] == 2
    with pytest.raises(RequestError, match="too short for --progress-interval 3"):
        spec(progress_interval=3, hang_timeout=14)
    for seconds in (0, 11):
        with pytest.raises(RequestError, match="from 1 to 10 seconds"):
            spec(progress_interval=seconds)


def test_spare_nodes_are_requested_and_kept_when_a_node_is_lost() -> None:
    made = spec(nodes=2, spare_nodes=1, max_restarts=3)
    assert (made.nodes, made.allocated_nodes, made.world_size) == (2, 3, 2)
    options, _ = supervisor.parse([*supervise_argv(made, local=False), "--", "script"])
    assert (options.nodes, options.spare_nodes) == (2, 1)


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"spare_nodes": 1}, "add --max-restarts 3"),
        ({"spare_nodes": 1, "max_restarts": 1, "hang_timeout": 0}, "remove --hang-timeout 0"),
    ],
)
def test_spare_nodes_without_what_they_need_are_refused(values: dict[str, int], hint: str) -> None:
    with pytest.raises(RequestError, match="--spare-nodes") as error:
        spec(**values)
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("nodes", "spare", "hint"), [(3, 0, "use --nodes 4"), (2, 1, "use --nodes 3"), (4, 1, "use --nodes 5")]
)
def test_nodes_that_are_no_multiple_of_a_segment_are_refused(nodes: int, spare: int, hint: str) -> None:
    options = {"spare_nodes": spare, "max_restarts": 1} if spare else {}
    with pytest.raises(RequestError, match="--segment=2 does not fit") as error:
        spec(nodes=nodes, sbatch_arg=["--segment=2"], **options)
    assert error.value.hint is not None and error.value.hint.startswith(hint + ",")
    assert spec(nodes=nodes + 1, sbatch_arg=["--segment=2"], **options).nodes == nodes + 1
