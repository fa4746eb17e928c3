"""clusterrun: from a training script to a finished multi-node PyTorch DDP run on Slurm.

The Python API is :class:`clusterrun.cluster.Cluster`; the command line is a thin layer over it.
"""

from __future__ import annotations

__version__ = "0.1.0"
