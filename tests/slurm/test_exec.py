"""`exec` on a real Slurm: a command beside the ranks of a running job."""

from __future__ import annotations

import shlex
import subprocess

from tests.installed_command import CLUSTERRUN, Site


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
