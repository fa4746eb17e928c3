#!/bin/sh
# Works for ten minutes in its first start; done at once when Slurm starts it again.
echo "restart ${SLURM_RESTART_COUNT:-0}"
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || exec sleep 600
