"""Jobs that take a minute, submitted before the first fault and looked at by the last tests."""

import os

import pytest

from lab.cluster import Lab


@pytest.fixture(scope="session")
def slow_jobs():
    """A lab of their own and job ids by name: `short` runs into its partition's limit, `low` loses its GPUs to `high`.

    The lab remembers finished jobs for long, so that it does not matter when a test looks at them.
    """
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    name = f"t{os.getpid()}s"
    with Lab(name=name, nodes=2, accounting=False, settings={"MinJobAge": "600"}) as lab:

        def sbatch(node, *options):
            done = lab.run(["sbatch", "--parsable", "--output=/dev/null", "-w", f"{name}-node{node}", *options])
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        jobs = {"short": sbatch(1, "-p", "short", "--wrap=sleep 600")}
        jobs["low"] = sbatch(2, "-p", "low", "--gpus-per-node=4", "--wrap=sleep 600")
        lab.wait_job(jobs["low"], "RUNNING")
        jobs["high"] = sbatch(2, "--gpus-per-node=4", "--wrap=sleep 1")
        yield lab, jobs
