"""Plan a training run for several numbers of GPUs, as ``clusterrun plan`` prints it. Not a submission's plan.

``batches`` computes steps and learning rates, ``memory`` and ``speed`` estimate, ``devices`` is the table of GPUs,
``answer`` joins them and ``text`` formats. ``job_facts`` counts a job's data and parameters with the job's Python.
``measure`` runs a job on each number of GPUs, ``scaling`` compares the runs.
"""
