"""Type clusterrun commands one after the other in forks of one program: a line of JSON in, a line of JSON out.

It runs as the user whose commands these are, by path, with that user's Python. Each command gets a process of its own,
forked when clusterrun is loaded already, which saves most of its time; one that takes longer than the limit is killed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time

from clusterrun.cli import cancel, follow, logs, main, status, wait, why  # noqa: F401
from clusterrun.why import ended, pending  # noqa: F401  loaded once, for all forks


def run(words: list[str], cwd: str, env: dict[str, str], umask: int, limit: float) -> dict[str, object]:
    """One command: its status (None where it was killed), its two outputs and the seconds it took."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = 70
            try:
                os.environ.clear()
                os.environ.update(env)
                os.umask(umask)
                os.chdir(cwd)
                main(words)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status: int | None = None
        while True:
            done, how = os.waitpid(pid, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(how)
                break
            if time.monotonic() - began > limit:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                break
            time.sleep(0.002)
        took = time.monotonic() - began
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(200_000).decode(errors="replace"))
        return {"status": status, "out": texts[0], "err": texts[1], "took": took}


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a fork's first collection would copy all of this program's memory
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(run(**order)), flush=True)
