"""Check a job before it is queued: settings, limits of the cluster, maintenance, and Slurm's own estimate (ADR 25)."""
