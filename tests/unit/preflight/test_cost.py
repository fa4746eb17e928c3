"""The GPU-hours of a job: those that its options allow at most, or unknown."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.jobspec.fields import Value
from clusterrun.jobspec.spec import Script, build_spec
from clusterrun.preflight.summary import gpu_hours

HOUR = {"time": "1:00:00"}


@pytest.mark.parametrize(("options", "hours"), [
    ({"nodes": 2, "gpus-per-node": 4, **HOUR}, 8),
    ({"nodes": 2, "gpus-per-node": 4, "spare-nodes": 1, "max-restarts": 1, **HOUR}, 12),
    ({"gpus-per-node": 0, "tasks-per-node": 8}, 0),
    ({"gres": "gpu:8", "tasks-per-node": 1, **HOUR}, 8),
    ({"gpus-per-node": 8, "time": "24:00:00", "total-time": "36h"}, 384),
    ({"gres": "gpu:2080ti:2,gpu:1g.10gb", **HOUR}, 3),
    ({"gpus-per-node": 0, "gres": "gpu:1K", **HOUR}, None),
    ({"gres": "gpu:1,gpu:a100=8", **HOUR}, None),
    ({"gpus-per-node": 8, "total-time": "1m"}, None),
    ({"gpus-per-node": 8}, None),
    ({"gpus-per-node": 8, "time": "UNLIMITED"}, None),
    ({"gpus-per-node": 8, "nodelist": "n1,n2,n3", **HOUR}, None),
    ({"gpus-per-node": 0, "gres": "shard:8", **HOUR}, None),
    ({"gpus-per-node": 1, "sbatch-arg": ["--exclusive"], **HOUR}, None),
    ({"gpus-per-node": 1, "template": "/dev/null", **HOUR}, None),
])  # fmt: skip
def test_the_cost_of_a_job(options: dict[str, Any], hours: float | None) -> None:
    values = {name: Value(value, "test") for name, value in options.items()}
    assert gpu_hours(build_spec(values, Script("train.py", ()))) == hours
