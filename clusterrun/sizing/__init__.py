"""Predict a training run for several numbers of GPUs, as ``clusterrun plan`` prints it.

``batches`` computes steps and learning rates, ``memory`` and ``speed`` estimate, ``devices`` is the table of GPUs, and
``text`` formats; these are pure. ``job_facts`` counts a job's data and parameters with the job's Python.
"""
