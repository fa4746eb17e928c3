"""The part of clusterrun that runs on compute nodes, with torch and the standard library only.

It does not import the rest of clusterrun, and the rest does not import it. `__main__.py`, `rendezvous.py` and
`local_launcher.py` are run by path with the job's own Python.
"""
