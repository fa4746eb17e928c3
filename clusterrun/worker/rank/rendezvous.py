"""The run's store: bind the rendezvous port at once, serve a TCPStore on it, and keep it until the step has ended.

Run by path in the batch step: `python rendezvous.py --host ADDR [--port N] [--parent PID]`. The port is printed as
soon as it is bound, before torch is imported: ranks start meanwhile and wait in the socket's backlog. A store in rank 0
would break the other ranks if rank 0 exits first; this one outlives them all.

It also writes the log clock into the attempt's folder: lines `TIME OUT_BYTES ERR_BYTES`, from which the time of
each line of the logs is found.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import ipaddress
import json
import os
import random
import select
import signal
import socket
import stat
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LOWEST_PORT = 10_000
BACKLOG = 4096  # ranks connect while torch is still being imported; the kernel caps this at somaxconn
CONNECTIONS = 3  # of a rank: at the join, of the user's code, and at the last barrier
PARENT_POLL_S = 0.5
CLOCK_S = 2.0
CLOCK_LINES = 8192  # then half as often, and so on: five hours at 2 s, a month in 1.5 MB


class RendezvousError(Exception):
    """The port cannot be opened; `kind` and `values` say why as data (see WorkerError)."""

    def __init__(self, message: str, kind: str = "", **values: object) -> None:
        super().__init__(message)
        self.kind = kind
        self.values = values


def port_range(proc: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> range:
    """Return the ports below the kernel's ephemeral range, from 10,000 on: no outgoing connection gets one of them."""
    try:
        ephemeral = int(proc.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        ephemeral = 32_768
    if ephemeral - LOWEST_PORT >= 100:
        return range(LOWEST_PORT, ephemeral)
    # some sites start the ephemeral range at 9000 or lower: only ports below it are safe
    return range(2_000, ephemeral) if ephemeral > 3_000 else range(LOWEST_PORT, 65_536)


def bind_address(host: str, nodes: int) -> tuple[socket.AddressFamily, str]:
    """Return the address family and the address to listen on for `host`.

    On Debian a node resolves its own name to 127.0.1.1. The other nodes of a job connect to its real address, so then
    listen on every interface.
    """
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        text = f"cannot resolve {host}: {error.strerror or error}"
        raise RendezvousError(text, kind="name-resolution", name=host) from None
    address = str(where[0])
    loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if nodes > 1 and loopback and host not in ("localhost", address):
        seen = f"{host} resolves to a loopback address ({address}) on {host} itself"
        print(f"rendezvous: {seen}; listening on all interfaces", file=sys.stderr)
        return socket.AF_INET, "0.0.0.0"
    return family, address


def listen(host: str, ports: Sequence[int], nodes: int = 1, start: int | None = None) -> socket.socket:
    """Bind and listen on the first free port of `ports`, starting at index `start` (random by default)."""
    family, address = bind_address(host, nodes)
    first = random.SystemRandom().randrange(len(ports)) if start is None else start
    sock = _new_socket(family)
    for i in range(len(ports)):
        try:
            sock.bind((address, ports[(first + i) % len(ports)]))
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise RendezvousError(
                    f"{host} ({address}) is not an address of this host ({socket.gethostname()}): its name leads to"
                    f" another network than Slurm's NodeAddr (scontrol show node {host})"
                ) from None
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                continue  # the socket is still unbound, so it can try the next port
            raise RendezvousError(f"cannot bind {host} ({address}): {error.strerror}") from None
        try:
            sock.listen(BACKLOG)
        except OSError:  # two sockets may bind with SO_REUSEADDR, one may listen
            sock.close()
            sock = _new_socket(family)
            continue
        return sock
    if len(ports) == 1:
        holder = _holder(ports[0])
        text = f"port {ports[0]} on {host} is taken{holder}"
        raise RendezvousError(text, kind="address-in-use", port=ports[0], node=host, holder=holder)
    text = f"no free port on {host}: ports {ports[0]} to {ports[-1]} are all taken"
    raise RendezvousError(text, kind="no-free-port", node=host)


def serve(sock: socket.socket, parent: int, born_to: int, store_class: Any) -> NoReturn:
    """Hand the listening socket to a TCPStore and keep it until `parent` has exited.

    `born_to` is this process's parent at its start, often the same process.
    """
    from datetime import timedelta

    address, port = sock.getsockname()[:2]
    # detach: the store owns the descriptor; if it were closed elsewhere, torch would abort the process
    store = store_class(
        "127.0.0.1" if address == "0.0.0.0" else address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=300),
        master_listen_fd=sock.detach(),
    )
    while _alive(parent, born_to):
        time.sleep(PARENT_POLL_S)
    del store
    os._exit(0)


def await_client(sock: socket.socket, parent: int, born_to: int) -> None:
    """Return once a client connects, which then waits in the backlog; exit with `parent`, as `serve` does."""
    while _alive(parent, born_to):
        if select.select([sock], [], [], PARENT_POLL_S)[0]:
            return
    os._exit(0)


def keep_clock(parent: int) -> None:
    """Start recording the sizes of the two logs of `parent`, in a daemon thread; errors are ignored."""
    folder = os.environ.get("CLUSTERRUN_ATTEMPT_DIR")
    if folder:
        path = Path(folder, "log-clock")
        threading.Thread(target=_keep_clock, args=(parent, path), name="log-clock", daemon=True).start()


def _keep_clock(parent: int, path: Path, sleep: Any = time.sleep) -> None:
    last, lines = None, 0
    while True:
        try:
            sizes = [_log_size(f"/proc/{parent}/fd/{n}") for n in (1, 2)]
            if sizes != last:
                _append(path, f"{time.time():.2f} {sizes[0]} {sizes[1]}\n".encode())
                last, lines = sizes, lines + 1
        except (ValueError, FileNotFoundError):
            return  # not a plain file, or the script or the folder is gone
        except OSError:
            pass  # a full disk: the next write may succeed
        sleep(CLOCK_S * 2 ** (lines // CLOCK_LINES))


def _log_size(path: str) -> int:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(path)
    return found.st_size


def _append(path: Path, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600 | (os.stat(path.parent).st_mode & 0o040))  # as in attempt_files.create
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def load_stores() -> Any:
    """Return torch's extension with the stores without importing the rest of torch, if that is not imported yet.

    It takes a fifth of the import's time, and opens none of numpy's files. Raises if this torch cannot be loaded in
    parts; after that, this process cannot import torch at all.
    """
    if "torch" not in sys.modules:
        spec = importlib.util.find_spec("torch")
        assert spec is not None and spec.submodule_search_locations
        for name, path in (("torch", list(spec.submodule_search_locations)), ("torch.distributed", [])):
            stand_in = types.ModuleType(name)  # the extension looks up these two modules while it is loaded
            stand_in.__path__ = path
            sys.modules[name] = stand_in
        blocked = sys.modules.setdefault("numpy", None) is None  # type: ignore[arg-type]  # for tensors, not for stores
        try:
            importlib.import_module("torch._C")._c10d_init()
        finally:
            if blocked:
                del sys.modules["numpy"]
    return importlib.import_module("torch._C._distributed_c10d")


def main(argv: Sequence[str] | None = None) -> int:
    """Open the port, print it and serve; return 1 with one line on stderr if that fails."""
    born_to = os.getppid()
    parser = argparse.ArgumentParser(description="Serve the TCPStore of one launch.")
    parser.add_argument("--host", required=True, help="the node's own name or address")
    parser.add_argument("--nodes", type=int, default=1, help="the number of nodes of the ranks")
    parser.add_argument("--port", type=int, help="a fixed port instead of the first free one")
    parser.add_argument("--parent", type=int, help="serve until the process with this PID exits, and ignore SIGTERM")
    parser.add_argument(
        "--clients", type=int, default=0, help="number of ranks; if 1, the store starts when the rank connects"
    )
    parser.add_argument("--held", type=int, help=argparse.SUPPRESS)  # the descriptor of a socket that listens already
    options = parser.parse_args(argv)
    parent = options.parent or born_to

    # before anything slow: the script handles Ctrl-C. A scancel or a requeue sends SIGTERM to every process of the
    # batch step, but ranks that save before they exit still need this store: with a parent, only its exit counts
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.parent else lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_clock(parent)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # this folder: its modules must not shadow those that torch imports
    if options.held is not None:
        return _serve(socket.socket(fileno=options.held), parent, born_to)
    try:
        sock = _open(options)
    except RendezvousError as error:
        print(f"rendezvous: {error}", file=sys.stderr)
        answer = {"text": f"rendezvous: {error}", "kind": error.kind, "values": error.values}
        print(json.dumps(answer), flush=True)  # to the supervisor, in place of the port
        return 1
    _publish(sock.getsockname()[1])
    raise_descriptor_limit(options.clients)
    if options.clients == 1:  # a single rank needs no store, but its script may open a process group
        await_client(sock, parent, born_to)
    try:
        store = load_stores().TCPStore
    except Exception:  # another layout of torch: restart with the open socket
        os.set_inheritable(sock.fileno(), True)
        own = sys.argv[1:] if argv is None else argv
        os.execv(sys.executable, [sys.executable, "-u", os.path.abspath(__file__), *own, "--held", str(sock.fileno())])
    return _serve(sock, parent, born_to, store)


def _open(options: argparse.Namespace) -> socket.socket:
    """Return a socket that listens on the given port, else on the first free one; raises RendezvousError."""
    if importlib.util.find_spec("torch") is None:  # now, not once a rank connects
        raise RendezvousError(f"{sys.executable} does not have torch, which provides the run's TCPStore")
    port = options.port
    if port is not None and not 1 <= port <= 65_535:
        raise RendezvousError(f"port {port} is not between 1 and 65535")
    return listen(options.host, port_range() if port is None else [port], options.nodes)


def _serve(sock: socket.socket, parent: int, born_to: int, found: Any = None) -> int:
    try:
        if found is None:
            found = importlib.import_module("torch.distributed").TCPStore
        serve(sock, parent, born_to, found)
    except Exception as error:  # one line, whatever torch says
        print(f"rendezvous: cannot start the store: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        return 1


def _new_socket(family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a fixed port may have connections in TIME_WAIT
    return sock


def _publish(port: int) -> None:
    """Print the port and close stdout, so that a reader sees its end and its exit cannot kill this process."""
    try:
        os.write(1, f"{port}\n".encode())
    except OSError:
        pass  # nobody reads it: the store is still needed
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def raise_descriptor_limit(clients: int) -> None:
    """Allow as many open files as the node permits; print a line if that is too few for the clients' connections."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass
    needed = CONNECTIONS * clients + 64
    if hard != resource.RLIM_INFINITY and hard < needed:
        print(
            f"rendezvous: {clients} ranks may open {needed} connections, but {socket.gethostname()} limits a process to"
            f" {hard} open files: ask your administrators to raise slurmd's LimitNOFILE",
            file=sys.stderr,
        )


def _alive(parent: int, born_to: int) -> bool:
    """Return whether the process is running; a zombie still answers kill(), so ask for the parent if possible."""
    if parent == born_to:
        return os.getppid() == parent
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _holder(port: int) -> str:
    """Return ` by process …` for the process that listens on `port`, empty if /proc does not show it."""
    wanted = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    for pid in filter(str.isdecimal, os.listdir("/proc")) if wanted else ():
        with suppress(OSError):  # processes of others, or ended meanwhile
            if wanted & set(_descriptors(pid)):
                command = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
                return f" by process {pid} ({b' '.join(command).decode(errors='replace').strip()[:80]})"
    return ""


def _listening(table: str, port: int) -> Iterator[str]:
    with suppress(OSError):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port:
                yield row[9]


def _descriptors(pid: str) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):  # closed meanwhile
            yield os.readlink(f"/proc/{pid}/fd/{name}")


if __name__ == "__main__":
    sys.exit(main())
