"""Listens on nine of ten ports between 10,000 and the ephemeral range until its standard input ends.

Usage: holds_ports.py ADDRESS. Prints the free ones on one line when it is done.
"""

import os
import random
import socket
import sys
from pathlib import Path

SHARE = 5000  # sockets per process: a process may have few descriptors

top = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
ports = list(range(10_000, top))
random.Random(1).shuffle(ports)
kept = len(ports) * 9 // 10
for first in range(0, kept, SHARE):
    ready, done = os.pipe()
    if os.fork() == 0:
        sockets = []
        for port in ports[first : min(first + SHARE, kept)]:
            one = socket.socket()
            try:
                one.bind((sys.argv[1], port))
                one.listen(1)
            except OSError:
                continue  # somebody has it: taken all the same
            sockets.append(one)
        os.write(done, b".")
        sys.stdin.read()
        os._exit(0)
    os.read(ready, 1)
print(*sorted(ports[kept:]), flush=True)
sys.stdin.read()
