"""Profiles, job files and the survey of a cluster that writes a first profile."""
