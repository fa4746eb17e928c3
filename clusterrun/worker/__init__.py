"""The part of clusterrun that runs on compute nodes: an island of torch and the standard library.

Nothing here imports the rest of clusterrun, and nothing above imports this. `__main__.py`, `rendezvous.py` and
`local_launcher.py` are run by path with the job's own Python.
"""
