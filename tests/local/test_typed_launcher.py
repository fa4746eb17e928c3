"""A launcher's line after -- on the local scheduler: the ranks form the world that the launcher would have formed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# the barrier is for gloo: its init returns while another rank still connects, whose init fails with "Connection closed
# by peer" if this one destroys its group then, also without a launcher
SCRIPT = """\
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of world size {dist.get_world_size()}, {sys.argv[1:]}, {os.environ['LEVEL']}")
dist.barrier()
dist.destroy_process_group()
"""


def test_torchrun_gives_the_world_that_was_typed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("CLUSTERRUN_", "SLURM_", "CUDA_"))
    }
    words = ["LEVEL=7", "torchrun", "--nproc_per_node", "2", "--master_port=29500", "script.py", "--nnodes", "a b"]
    done = subprocess.run(
        [sys.executable, "-m", "clusterrun", "submit", "--scheduler", "local", "--wait", "--", *words],
        cwd=tmp_path,
        env={**environ, "HOME": str(tmp_path), "CLUSTERRUN_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "to: clusterrun submit --scheduler local --gpus-per-node 2 --env LEVEL=7 -- script.py" in done.stderr
    out = (tmp_path / "logs" / "train_L1.out").read_text()
    for rank in range(2):
        assert f"{rank}: rank {rank} of world size 2, ['--nnodes', 'a b'], 7" in out
