"""``python -m clusterrun``: the command line."""

from clusterrun.cli import main

main()
