"""Slurm: a module for each of its commands, and the client that runs them."""
