from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from clusterrun.worker.rank import rendezvous
from lab import claims
from tests.support.installed_command import until
from tests.support.patience import HUNG


def start(worker: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", str(worker / "rank" / "rendezvous.py"), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_range_lies_below_the_ephemeral_ports(tmp_path: Path) -> None:
    ours = rendezvous.port_range()
    kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert ours[0] >= 2_000 and ours[-1] == kernel - 1
    low = tmp_path / "range"
    low.write_text("9000\t65000\n")
    assert rendezvous.port_range(low) == range(2_000, 9_000)
    assert rendezvous.port_range(tmp_path / "absent") == range(10_000, 32_768)


@pytest.mark.parametrize("start_at", [0, 60, 99])
def test_one_free_port_is_found_wherever_the_search_starts(start_at: int) -> None:
    ports = range(20_100, 20_200)
    others = hold(ports, free={20_150})
    try:
        sock = rendezvous.listen("127.0.0.1", ports, start=start_at)
        assert sock.getsockname()[1] == 20_150
        with pytest.raises(rendezvous.RendezvousError, match="20100 to 20199 are all taken"):
            rendezvous.listen("127.0.0.1", ports, start=start_at)
        sock.close()
    finally:
        for other in others:
            other.close()


def test_nearly_nine_tenths_of_the_whole_range_held_by_others(worker: Path) -> None:
    ports = rendezvous.port_range()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    labs = {claims.Claim("", index, "").dbd_port for index in claims.INDEXES}  # one may be started meanwhile
    wanted = [p for p in ports if p % 10 and p not in labs]
    if hard < len(wanted) + 100:  # the same share of as many ports as this process may hold
        wanted = [p for p in wanted if p < ports[0] + (hard - 200)]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    others = hold(wanted)
    try:
        helper = start(worker, "--host", "127.0.0.1")
        assert helper.stdout is not None
        port = int(helper.stdout.readline())
        assert port in ports and port not in {o.getsockname()[1] for o in others}
        helper.terminate()
        assert helper.wait(HUNG) == 0
    finally:
        for other in others:
            other.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_few_open_files_for_all_ranks_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        rendezvous.raise_descriptor_limit(hard // rendezvous.CONNECTIONS - 100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert capsys.readouterr().err == ""
        rendezvous.raise_descriptor_limit(hard)
        assert f"{hard} ranks may open {3 * hard + 64} connections" in capsys.readouterr().err
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_taken_fixed_port_fails_early_and_names_its_holder(worker: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        helper = start(worker, "--host", "127.0.0.1", "--port", str(port))
        out, err = helper.communicate(timeout=HUNG)
    answer = json.loads(out)
    assert (helper.returncode, answer["kind"], answer["values"]["port"]) == (1, "address-in-use", port)
    assert err == f"{answer['text']}\n"
    assert err.count("\n") == 1 and f"port {port} on 127.0.0.1 is taken by process {os.getpid()}" in err


@pytest.mark.parametrize(
    ("host", "word"),
    [("192.0.2.77", "not an address of this host"), ("192.0.2.78", "than Slurm's NodeAddr"), ("no.invalid", "resolve")],
)
def test_a_foreign_address_is_named(worker: Path, host: str, word: str) -> None:
    helper = start(worker, "--host", host)
    _, err = helper.communicate(timeout=HUNG)
    assert helper.returncode == 1
    assert err.count("\n") == 1 and host in err and word in err, err


def test_it_listens_on_the_given_address_only(worker: Path) -> None:
    helper = start(worker, "--host", "127.0.0.2")
    assert helper.stdout is not None
    port = int(helper.stdout.readline())
    try:
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        helper.terminate()
        helper.wait(HUNG)


def test_the_port_is_open_before_torch_is_loaded(worker: Path, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_C.py").write_text("import time\ntime.sleep(600)\n")
    command = [sys.executable, "-u", worker / "rank" / "rendezvous.py", "--host", "127.0.0.1"]
    helper = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    try:
        assert helper.stdout is not None and select.select([helper.stdout], [], [], HUNG)[0]
        socket.create_connection(("127.0.0.1", int(helper.stdout.readline())), timeout=HUNG).close()
        assert helper.poll() is None
    finally:
        helper.kill()
        helper.wait()


def test_clients_may_come_before_torch_and_the_store_outlives_its_reader(worker: Path) -> None:
    helper = start(worker, "--host", "127.0.0.1")
    assert helper.stdout is not None
    port = int(helper.stdout.readline())
    helper.stdout.close()
    client = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    client.set("key", "value")
    helper.send_signal(signal.SIGINT)  # Ctrl-C is the script's affair
    assert client.get("key") == b"value"
    assert helper.poll() is None
    helper.terminate()
    assert helper.wait(HUNG) == 0


def test_a_torch_that_is_put_together_otherwise_serves_the_same_port(worker: Path, tmp_path: Path) -> None:
    # the store's own module cannot be had alone, only after all of torch
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch._C' and not hasattr(sys.modules['torch'], '__file__'):\n"
        "            raise ImportError('not alone')\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    command = [sys.executable, "-u", str(worker / "rank" / "rendezvous.py"), "--host", "127.0.0.1"]
    helper = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    try:
        assert helper.stdout is not None
        client = TCPStore("127.0.0.1", int(helper.stdout.readline()), is_master=False, timeout=timedelta(seconds=60))
        client.set("a", "b")
        assert client.get("a") == b"b"
        assert b"--held" in Path(f"/proc/{helper.pid}/cmdline").read_bytes()
    finally:
        helper.terminate()
        helper.wait()


def test_it_leaves_when_its_parent_is_gone(worker: Path) -> None:
    parent = subprocess.Popen(["sleep", "60"])
    helper = start(worker, "--host", "127.0.0.1", "--parent", str(parent.pid))
    assert helper.stdout is not None and helper.stdout.readline()
    helper.terminate()  # as scancel does to the whole batch step, while ranks still save
    with pytest.raises(subprocess.TimeoutExpired):
        helper.wait(1)
    parent.kill()
    parent.wait()
    assert helper.wait(HUNG) == 0


@pytest.mark.parametrize(("clients", "loads"), [(1, False), (2, True)])
def test_for_a_single_rank_torch_is_loaded_only_when_it_connects(
    worker: Path, tmp_path: Path, clients: int, loads: bool
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_C.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\nimport time\ntime.sleep(60)\n")
    parent = subprocess.Popen(["sleep", "60"])
    words = ["--host", "127.0.0.1", "--parent", str(parent.pid), "--clients", str(clients)]
    command = [sys.executable, "-u", str(worker / "rank" / "rendezvous.py"), *words]
    helper = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert helper.stdout is not None and helper.stdout.readline()
    if loads:
        until((tmp_path / "loaded").exists, 60)
    parent.kill()
    parent.wait()
    if not loads:
        assert helper.wait(HUNG) == 0
    assert (tmp_path / "loaded").exists() is loads
    helper.kill()
    helper.wait()


def test_python_without_torch_is_named_before_there_is_a_port(worker: Path) -> None:
    command = [sys.executable, "-S", str(worker / "rank" / "rendezvous.py"), "--host", "127.0.0.1", "--clients", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    reason = f"rendezvous: {sys.executable} does not have torch, which provides the run's TCPStore"
    assert (done.returncode, json.loads(done.stdout)["text"], done.stderr) == (1, reason, f"{reason}\n")


def test_a_name_that_is_loopback_at_home_means_every_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    def debian(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", debian)
    assert rendezvous.bind_address("node1", nodes=2)[1] == "0.0.0.0"
    assert rendezvous.bind_address("node1", nodes=1)[1] == "127.0.1.1"
    assert rendezvous.bind_address("127.0.1.1", nodes=2)[1] == "127.0.1.1"


def hold(ports: range | list[int], free: set[int] = frozenset()) -> list[socket.socket]:  # type: ignore[assignment]
    """Listen on every port but the free ones; what somebody else holds already is as good."""
    held = []
    for port in ports:
        if port not in free:
            try:
                held.append(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
    return held
