"""Sweeps: parameter sets, the runs and arrays that they become, how these are submitted, and their table."""
