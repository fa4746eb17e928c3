"""`exec` and `why --stacks` on a real Slurm: programs beside the ranks of a running job."""

from __future__ import annotations

import json
import shlex
import subprocess

from lab.procs import wait_until
from tests.support.installed_command import CLUSTERRUN, Site


def test_a_command_runs_beside_the_ranks_on_the_node_of_a_rank(site: Site) -> None:
    script = site.project / "waits.sh"
    script.write_text("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.1; done\n")
    script.chmod(0o755)
    job = site.submit("--nodes", "2", "--gpus-per-node", "0", "--", str(script))
    site.wait_joined(job)
    nodes = {one["rank"]: one["node"] for one in (job.start() or {})["ranks"]}
    for rank in (0, 1):
        shown = site.cli("exec", job.id, "--rank", str(rank), "--", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_JOB_ID")
        assert shown.stdout.split() == [nodes[rank], job.id]
    assert "no-such-file" in site.cli("exec", "last", "--", "cat", "no-such-file", status=1).stderr
    typed = subprocess.run(
        ["script", "--quiet", "--return", "--command", shlex.join([*CLUSTERRUN, "exec", "last"]), "/dev/null"],
        cwd=site.project, env=site.env, input="echo on $SLURMD_NODENAME; exit 3\n", text=True, capture_output=True,
    )  # fmt: skip
    assert typed.returncode == 3 and f"on {nodes[0]}" in typed.stdout, typed
    (site.project / "go").touch()
    site.wait_state(job, "COMPLETED")
    assert "COMPLETED, not RUNNING" in site.cli("exec", job.id, "--", "true", status=2).stderr


def test_why_stacks_shows_where_each_rank_is(site: Site) -> None:
    script = site.project / "waits.py"
    script.write_text(
        "import os, time\n\ndef loads():\n    while not os.path.exists('read'): time.sleep(0.1)\n\n"
        "def steps():\n    while not os.path.exists('read'): time.sleep(0.1)\n\n"
        "loads() if os.environ['RANK'] == '1' else steps()\n"
    )
    job = site.submit("--nodes", "2", "--gpus-per-node", "0", "--", str(script))
    site.wait_joined(job)
    nodes = {one["rank"]: one["node"] for one in (job.start() or {})["ranks"]}
    frames = {0: "steps (waits.py:7)", 1: "loads (waits.py:4)"}

    def stacks() -> dict[int, tuple[str, str]]:
        found = json.loads(site.cli("why", job.id, "--stacks", "--json").stdout)["data"]["stacks"]
        return {one["rank"]: (one["node"], next((f for f in one["frames"] if "waits.py" in f), "")) for one in found}

    wait_until(lambda: stacks() == {rank: (nodes[rank], frame) for rank, frame in frames.items()}, 60, "the stacks")
    (site.project / "read").touch()
    site.wait_state(job, "COMPLETED")
    assert "COMPLETED, not RUNNING" in site.cli("why", job.id, "--stacks", status=2).stderr
