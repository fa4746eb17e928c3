"""Profiles, job files, and the survey of a cluster that `clusterrun init` turns into a first profile."""
