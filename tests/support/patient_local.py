"""Local jobs on a busy machine: their supervisors may start late, and their ranks may take long to save at SIGTERM.

The process that is forked for each command imports this (`warm_programs.COMMANDS`).
"""

from __future__ import annotations

from clusterrun.scheduler.local import client

client.START_TIMEOUT = 300.0
client.LocalScheduler.__init__.__defaults__ = (60.0,)  # the grace time
