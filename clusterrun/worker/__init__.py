"""The part of clusterrun that runs on compute nodes, with torch and the standard library only.

Of clusterrun it imports `run_folder` and `base` only, and nothing imports it. Its rooms are
named by where their code runs. `__main__.py`, `rank/rendezvous.py`, `node/local_launcher.py`, `node/probe.py` and
`job/notify.py` are run by path with the job's own Python.
"""
