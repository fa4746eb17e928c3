"""Start Python programs by forking a process that has imported their modules, instead of importing them in each.

Each program is a process of its own that runs its file, with its own environment, folder, pipes and signals; only the
imports are shared: torch and transformers for ranks, of which they take most of a small training's time, or the command
line. Tests of what an interpreter's start, a script or a command meets start cold interpreters.

As a program (`python warm_programs.py SOCKET MODULE…`) this is the process that is forked.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import importlib.util
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

LAUNCHER = "local_launcher.py"
START_S = 240.0
#: What ranks of tasks import.
RANKS = ("transformers.models.llama.modeling_llama", "transformers.trainer_pt_utils")
#: What the command line imports, most of it when a command needs it.
COMMANDS = (
    *(f"clusterrun.cli.{verb}" for verb in ("cancel", "check", "follow", "free", "init", "listing", "logs", "plan")),
    *(f"clusterrun.cli.{verb}" for verb in ("common.show", "status", "submit", "wait", "why")),
    *(f"clusterrun.submit.{part}" for part in ("launchers", "script_source", "typed_launch")),
    *("clusterrun.jobspec.render", "clusterrun.scheduler.local.client"),
)


class WarmPrograms:
    """The process that is forked. `start` has the interface of subprocess.Popen, as far as tests need it."""

    def __init__(self, *modules: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-u", __file__, str(theirs.fileno()), *modules]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # read once, when the libraries are loaded
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=os.environ | threads)
        theirs.close()
        self._socket.settimeout(START_S)

    def start(self, script: Path, *arguments: str, cwd: Path, env: dict[str, str]) -> WarmProcess:
        """Run `python -u SCRIPT ARGUMENTS…` in a fork, with pipes for stdout and stderr."""
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        link, their_link = socket.socketpair()
        os.umask(umask := os.umask(0o077))  # the only way to read it
        request = json.dumps({"argv": [str(script), *arguments], "cwd": str(cwd), "env": env, "umask": umask}).encode()
        with self._lock:
            self._socket.sendall(len(request).to_bytes(4, "big"))
            socket.send_fds(self._socket, [request[:1]], [out_end, err_end, their_link.fileno()])
            self._socket.sendall(request[1:])
            assert self._socket.recv(1) == b"+"
        for descriptor in (out_end, err_end):
            os.close(descriptor)
        their_link.close()
        return WarmProcess(link, out, err)

    def close(self) -> None:
        """End the process that is forked; its forks have ended."""
        self._socket.close()
        self._process.wait(30)


class WarmProcess:
    """A started process, as subprocess.Popen shows one."""

    def __init__(self, link: socket.socket, out: int, err: int) -> None:
        self.stdout: IO[str] = open(out, encoding="utf-8", errors="surrogateescape")
        self.stderr: IO[str] = open(err, encoding="utf-8", errors="surrogateescape")
        self._link = link.makefile("r")
        self._socket = link
        self.pid = int(self._link.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status if the process has ended; minus the signal's number if a signal ended it."""
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            self.wait(0.001)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            import select

            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._link.readline() or "-9")
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both streams to their end and wait; raises subprocess.TimeoutExpired."""
        texts = ["", ""]

        def drain(index: int, stream: IO[str]) -> None:
            with contextlib.suppress(ValueError):  # closed by an earlier call
                texts[index] = stream.read()

        readers = [
            threading.Thread(target=drain, args=pair, daemon=True) for pair in enumerate((self.stdout, self.stderr))
        ]
        deadline = time.monotonic() + (timeout or 3600)
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        self.wait(max(0.001, deadline - time.monotonic()))
        for each in (self.stdout, self.stderr, self._link, self._socket):
            each.close()
        return texts[0], texts[1]


# -- in the process that is forked -------------------------------------------------------------------------------------


def serve(link: socket.socket) -> None:
    """Fork for each request until the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # minders are not waited for
    while size := link.recv(4):
        first, descriptors, _, _ = socket.recv_fds(link, 1, 3)
        wanted, request = int.from_bytes(size, "big"), bytearray(first)
        while len(request) < wanted:
            request += link.recv(wanted - len(request))
        if os.fork() == 0:
            mind(json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        link.sendall(b"+")


def mind(request: dict[str, Any], out: int, err: int, link: int) -> NoReturn:
    """Fork once more, report the process's id, wait for its end and report that."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.umask(request["umask"])
        become(request["argv"], request["cwd"], request["env"], out, err)
    os.close(out)
    os.close(err)
    os.write(link, b"%d\n" % pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        os.write(link, b"%d\n" % status)
    os._exit(0)


def become(argv: list[str], cwd: str, env: dict[str, str], out: int, err: int) -> NoReturn:
    """Run `python -u ARGV…` in this process, with nothing left of the process it was forked from but its imports."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    os.closerange(3, max(array.array("i", map(int, os.listdir("/proc/self/fd")))) + 1)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    atexit._clear()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(0, closefd=False)),
        text_stream(1, "strict"),
        text_stream(2),
    )
    sys.argv, sys.path[0] = argv, str(Path(argv[0]).parent)
    status = 1
    try:
        if Path(argv[0]).name == LAUNCHER:
            status = launcher(Path(argv[0])).main(argv[1:])
        else:
            runpy.run_path(argv[0], run_name="__main__")
            status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined] # as the interpreter does at its end
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def launcher(path: Path) -> Any:
    """Return the worker's local launcher with ranks that are forked."""
    spec = importlib.util.spec_from_file_location("local_launcher", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.subprocess = types.SimpleNamespace(Popen=ForkedRank, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    return module


class ForkedRank:
    """subprocess.Popen as the launcher calls it: pipes, a session of its own, `python -u WORKER ARGUMENTS…`."""

    def __init__(
        self, command: Sequence[str], *, env: dict[str, str], preexec_fn: Callable[[], None], **_: Any
    ) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            preexec_fn()
            become([*command[command.index("-u") + 1 :]], os.getcwd(), env, out_end, err_end)
        os.close(out_end)
        os.close(err_end)
        self.stdout, self.stderr = open(out, "rb", 0), open(err, "rb", 0)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def text_stream(descriptor: int, errors: str = "backslashreplace") -> io.TextIOWrapper:
    """Return an unbuffered text stream, as `python -u` has."""
    return io.TextIOWrapper(
        io.FileIO(descriptor, "w", closefd=False), encoding="utf-8", errors=errors, write_through=True
    )


def main() -> None:
    """Import the modules, then serve."""
    link = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(link.fileno(), False)
    import gc

    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    serve(link)


if __name__ == "__main__":
    main()
