"""Checks: whether a run is what was requested, and whether nodes and links are in order."""
