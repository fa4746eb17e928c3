"""Run a command on a cluster's login node (``--remote HOST``): over OpenSSH, by the clusterrun that is installed there.

ssh.py     which host and folder, and the shared connection
files.py   send the project's files with rsync
run.py     run a command line there, and follow logs through lost connections
setup.py   install clusterrun there
"""
