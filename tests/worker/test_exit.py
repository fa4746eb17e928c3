"""How a rank's process ends after its work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import HUNG
from tests.support.rank_files import ends_of

PROGRAM = """
import os, sys
from types import SimpleNamespace
from clusterrun.worker.rank.exit import RankExit

class CrashesAtExit:
    def __del__(self):
        os._exit(9)

kept = CrashesAtExit()
rank = RankExit(SimpleNamespace(rank=0), SimpleNamespace(attempt_dir=None))
rank.install()
rank.runs_own_code = bool(int(sys.argv[1]))
print("done", end="")
sys.exit(rank.succeed())
"""


@pytest.mark.parametrize(("own", "status"), [("1", 0), ("0", 9)])
def test_a_library_that_crashes_at_exit_does_not_spoil_a_task_that_is_done(own: str, status: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, own], capture_output=True, text=True, timeout=HUNG)
    assert (done.returncode, done.stdout) == (status, "done"), done.stderr


# the signal comes while the record of a rank that has finished is being written
SIGTERM_AT_THE_RECORD = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from clusterrun.run_folder import ends
from clusterrun.worker.rank.exit import RankExit

def write_end(slot, node, outcome, **more):
    os.kill(os.getpid(), signal.SIGTERM)
    print("recorded", outcome.status)

ends.write_end = write_end
rank = RankExit(SimpleNamespace(rank=0, local_rank=0, node="n1"), SimpleNamespace(attempt_dir=Path("attempt")))
rank.install()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
sys.exit(rank.succeed())
"""


def test_a_signal_handler_that_raises_does_not_spoil_the_record_of_a_single_rank() -> None:
    done = subprocess.run([sys.executable, "-c", SIGTERM_AT_THE_RECORD], capture_output=True, text=True, timeout=HUNG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "recorded 0\n", "")


# a launcher passes on a signal that srun has sent to the rank as well; the second one comes when Python has removed the
# script's handler
SIGNAL_AT_THE_END_OF_THE_INTERPRETER = """
import os, signal, sys
from types import SimpleNamespace
from clusterrun.worker.rank.exit import RankExit

class Kills:
    def __del__(self, kill=os.kill, pid=os.getpid(), signum=getattr(signal, sys.argv[1])):
        kill(pid, signum)

kept = Kills()
rank = RankExit(SimpleNamespace(rank=0), SimpleNamespace(attempt_dir=None))
rank.install()
signal.signal(getattr(signal, sys.argv[1]), lambda *_: None)
sys.exit(rank.succeed())
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_late_signal_does_not_fail_a_rank_that_has_finished(name: str) -> None:
    words = [sys.executable, "-c", SIGNAL_AT_THE_END_OF_THE_INTERPRETER, name]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HUNG)
    assert (done.returncode, done.stderr) == (0, "")


# its peer has ended; the script's handler of SIGTERM goes on, or would end the rank with 0
LOSES_ITS_PEER = """
import os, signal, sys, threading
from pathlib import Path
from types import SimpleNamespace
from clusterrun.worker.rank import exit
from clusterrun.run_folder.ends import Outcome
from clusterrun.base.errors import WorkerError
from clusterrun.worker.rank.exit import RankExit

way, sigterm, folder = sys.argv[1:]
place = SimpleNamespace(rank=0, local_rank=0, node="n1", world_size=2)
rank = RankExit(place, SimpleNamespace(attempt_dir=Path(folder)))
rank.install()
terminate = lambda: os.kill(os.getpid(), signal.SIGTERM)
if sigterm == "before":
    signal.signal(signal.SIGTERM, lambda *_: None)
    terminate()
elif sigterm == "later":
    exit.SIGTERM_AFTER_LOSS_S = 300  # the signal ends it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Timer(0.5, terminate).start()
else:
    exit.SIGTERM_AFTER_LOSS_S = 0.1
error = WorkerError("[pair.cc:553] Connection closed by peer [10.0.0.1]:4", kind="lost-connection")
if way == "fail":
    sys.exit(rank.fail(Outcome.of(error)))
sys.exit(rank.fail_with_message(error))
"""


@pytest.mark.parametrize("way", ["fail", "fail_with_message"])
@pytest.mark.parametrize(("sigterm", "status"), [("before", 143), ("later", 143), ("never", 1)])
def test_a_rank_that_lost_a_peer_has_failed_only_if_no_sigterm_ends_it(
    tmp_path: Path, way: str, sigterm: str, status: int
) -> None:
    words = [sys.executable, "-c", LOSES_ITS_PEER, way, sigterm, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HUNG)
    assert (done.returncode, ends_of(tmp_path)[0]["status"]) == (status, status), done.stderr
    assert (tmp_path / "first_failure.json").exists() == (status == 1)
    assert ("closed by peer" in done.stderr) == (status == 1 and way == "fail_with_message")
