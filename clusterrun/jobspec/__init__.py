"""Job options, the job specification built from them, and the rendered sbatch script."""
