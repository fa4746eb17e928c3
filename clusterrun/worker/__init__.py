"""The part of clusterrun that runs on compute nodes, with torch and the standard library only.

Of clusterrun it imports `run_folder` and `base` only, and nothing imports it. `__main__.py`, `rendezvous.py` and
`local_launcher.py` are run by path with the job's own Python.
"""
