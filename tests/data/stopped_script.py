"""A script that ends well when it gets SIGTERM, and gets one before it has joined a process group."""

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(10)
