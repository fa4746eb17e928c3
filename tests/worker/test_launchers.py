"""The node's task of another launcher: its arguments, variables, exit statuses and labelled output."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from clusterrun.worker.rank import distenv, launched, launchers
from clusterrun.worker.rank.distenv import DistEnv, RunEnv
from tests.support.patience import HUNG

NODE = DistEnv(1, 0, 2, 1, 1, "n1", "n1", 1, "slurm", ("head", 12000))


def value(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_torchrun_gets_the_shape_and_meets_on_the_held_store() -> None:
    arguments = launchers.torchrun_arguments(NODE, 4, 3)
    assert (value(arguments, "--nnodes"), value(arguments, "--nproc-per-node")) == ("2", "4")
    assert value(arguments, "--max-restarts") == "3"
    assert value(arguments, "--rdzv-backend") == "c10d" and value(arguments, "--rdzv-conf") == "is_host=0"
    variables = launchers.rendezvous_variables(NODE, RunEnv(secret="s"), "7")
    assert variables["PET_RDZV_ENDPOINT"] == variables["CLUSTERRUN_STORE"] == "head:12000"
    assert variables["PET_RDZV_ID"].startswith("7.") and "s" not in variables["PET_RDZV_ID"].removeprefix("7.")


def test_two_launches_of_a_job_have_two_rendezvous() -> None:
    first, second = (launchers.rendezvous_variables(NODE, RunEnv(secret=s), "7")["PET_RDZV_ID"] for s in ("a", "b"))
    assert first != second


def test_nodes_sort_by_number_and_ipv6_gets_brackets() -> None:
    nodes = [DistEnv(rank, 0, 12, 1, rank, "n", "n", rank, "slurm", ("fd00::1", 12000)) for rank in range(12)]
    found = [launchers.rendezvous_variables(node, RunEnv(), "7") for node in nodes]
    addresses = [variables["PET_LOCAL_ADDR"] for variables in found]
    assert addresses == sorted(addresses)
    assert found[0]["PET_RDZV_ENDPOINT"] == "[fd00::1]:12000"


def test_accelerate_gets_the_shape_and_a_port_that_is_free() -> None:
    arguments = launchers.accelerate_arguments(NODE, 4, "")
    assert (value(arguments, "--num_machines"), value(arguments, "--num_processes")) == ("2", "8")
    assert value(arguments, "--machine_rank") == "1" and "--multi_gpu" in arguments
    assert int(value(arguments, "--main_process_port")) != 12000


@pytest.mark.parametrize(("kind", "flag"), [("MULTI_GPU", True), ("'NO'", True), ("FSDP", False), ("DEEPSPEED", False)])
def test_a_yaml_keeps_its_engine(tmp_path: Path, kind: str, flag: bool) -> None:
    pytest.importorskip("accelerate")
    config = tmp_path / "c.yaml"
    config.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nmixed_precision: bf16\n")
    arguments = launchers.accelerate_arguments(NODE, 4, str(config))
    assert ("--multi_gpu" in arguments) is flag and value(arguments, "--config_file") == str(config)


@pytest.mark.parametrize(("code", "status"), [(0, 0), (7, 7), (-9, 137), (-15, 143)])
def test_exit_status(code: int, status: int) -> None:
    assert launchers.exit_status(code) == status


class Failed(Exception):
    def get_first_failure(self) -> tuple[int, types.SimpleNamespace]:
        return 3, types.SimpleNamespace(exitcode=-9)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0), (Failed(), 137), (SystemExit(3), 3), (SystemExit(-9), 137), (SystemExit("text"), 1),
        (SystemExit(), 0), (OSError(), 1), (subprocess.CalledProcessError(-9, "x"), 137),
    ],
)  # fmt: skip
def test_the_status_of_a_launcher_is_that_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None, status: int
) -> None:
    def main() -> None:
        if error is not None:
            raise error

    monkeypatch.setitem(sys.modules, "a_launcher", types.SimpleNamespace(main=main))  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "argv", [])
    assert launchers.run_launcher("a_launcher", ["--x"]) == status
    assert sys.argv == ["a_launcher", "--x"]


def test_a_failure_comes_before_those_that_sigterm_ended() -> None:
    def child(script: str) -> int:
        return os.posix_spawn("/bin/sh", ["sh", "-c", script], dict(os.environ))

    assert launchers.wait_for([child("exit 0"), child("kill -TERM $$"), child("exit 9")]) == 9
    assert launchers.wait_for([child("kill -TERM $$")]) == 143
    assert launchers.wait_for([child("exit 0")]) == 0


def test_the_node_of_the_first_failure_ends_first(tmp_path: Path) -> None:
    def pause(status: int, node: int) -> float:
        return launchers.pause_before_exit(status, node, 2, tmp_path)

    (tmp_path / "first_failure.json").write_text('{"rank": 3}')
    assert pause(137, 1) == pause(0, 0) == 0
    assert 0 < pause(7, 1) < pause(1, 0)


def test_output_is_labelled_with_the_rank_on_both_streams() -> None:
    script = """
import os, sys
from clusterrun.worker.rank.launchers import Outputs
outputs = Outputs(9, 2, 12)
_, *pipes = map(int, os.environ["CLUSTERRUN_OUTPUTS"].split())
for pipe, text in zip(pipes, (b"a\\nb", b"c\\n", b"d" * 3000, b"e\\n")):
    os.write(pipe, text)
outputs.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HUNG)
    pieces = [f"10: {'d' * 1024}"] * 2 + [f"10: {'d' * (3000 - 2048)}"]
    assert sorted(done.stdout.splitlines()) == sorted([" 9: a", " 9: b", *pieces]), done.stderr
    assert sorted(done.stderr.splitlines()) == [" 9: c", "10: e"]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give back the variables that a test sets."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.mark.usefixtures("variables")
def test_with_none_a_program_gets_the_variables_that_start_a_launcher() -> None:
    os.environ |= {launched.RANKS: "4", "RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "12000"}
    launched.keep(launched.agree([{"free_port": port, "restarts": 0, "local_rank": 0} for port in (12345, None)]))
    launched.set_variables(NODE, "run1")
    expected = {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "4", "MASTER_ADDR": "head", "MASTER_PORT": "12345"}
    assert {name: os.environ[name] for name in expected} == expected
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_USE_AGENT_STORE"} & set(os.environ)


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(("rank", "given", "found"), [
    (0, {}, ["run1", "allow"]),
    (1, {}, [None, None]),
    (0, {"WANDB_RUN_ID": "mine"}, ["mine", None]),
    (0, {"WANDB_RESUME": "never"}, [None, "never"]),
])  # fmt: skip
def test_rank_0_continues_the_same_wandb_run_unless_the_user_says_otherwise(
    rank: int, given: dict[str, str], found: list[str | None]
) -> None:
    for name in launched.WANDB:
        os.environ.pop(name, None)
    os.environ |= {"CLUSTERRUN_CONTINUES": "1"} | given
    launched.set_variables(replace(NODE, rank=rank), "run1")
    assert [os.environ.get(name) for name in launched.WANDB] == found


@pytest.mark.usefixtures("variables")
def test_a_job_that_starts_once_may_open_several_wandb_runs() -> None:
    for name in (*launched.WANDB, "CLUSTERRUN_CONTINUES"):
        os.environ.pop(name, None)
    launched.set_variables(replace(NODE, rank=0), "run1")
    assert not {*launched.WANDB} & {*os.environ}


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(("counts", "port", "store"), [((0, 0), "12000", "True"), ((0, 1), "12345", "False")])
def test_after_a_restart_the_script_gets_a_new_store(counts: tuple[int, int], port: str, store: str) -> None:
    os.environ |= launchers.rendezvous_variables(NODE, RunEnv(), "7")
    ranks = [
        {"local_rank": i % 2, "restarts": counts[i // 2], "free_port": 12345 if i == 0 else None} for i in range(4)
    ]
    launched.keep(launched.agree(ranks))
    launched.set_variables(NODE, "run1")
    assert (os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_USE_AGENT_STORE"]) == (port, store)
    assert os.environ["TORCHELASTIC_RESTART_COUNT"] == str(sum(counts))
    assert not [name for name in os.environ if name.startswith("PET_") or name == distenv.STORE]


@pytest.mark.usefixtures("variables")
def test_a_single_rank_opens_a_store_itself_on_a_free_port() -> None:
    launched.set_variables(replace(NODE, rank=0, world_size=1, local_rank=0, local_world_size=1), "run1")
    assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert os.environ["MASTER_PORT"] not in ("0", "12000")


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(("given", "port"), [("False", "12345"), ("", "12345"), ("True", "12000")])
def test_who_opens_the_store_is_what_the_user_has_set(given: str, port: str) -> None:
    os.environ[launched.USE_STORE] = given
    launched.keep({"free_port": 12345, "restarts": 0})
    launched.set_variables(NODE, "run1")
    assert (os.environ[launched.USE_STORE], os.environ["MASTER_PORT"]) == (given, port)


def test_a_rank_uses_the_runs_store_and_a_secret_of_its_start() -> None:
    environ = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "000000", "MASTER_PORT": "40001", "SLURM_PROCID": "1",
        "CLUSTERRUN_STORE": "fd00::1:12000", "CLUSTERRUN_SECRET": "s",
    }  # fmt: skip
    rank = distenv.resolve(environ)
    assert (rank.rank, rank.task, rank.master) == (3, 3, ("fd00::1", 12000))
    assert RunEnv.resolve(environ).secret != RunEnv.resolve(environ | {"MASTER_PORT": "40002"}).secret


def test_a_free_port_can_be_opened() -> None:
    import socket

    with socket.socket() as sock:
        sock.bind(("", launched.find_free_port()))
        sock.listen()


def test_signals_reach_the_ranks_in_place_of_the_launchers_handlers(worker: Path) -> None:
    script = """
import os, signal, subprocess, sys, time
from clusterrun.worker.rank import launchers
def finish(status):
    print("finished", status, flush=True)
    os._exit(0)
launchers.forward_signals(finish, None)
signal.signal(signal.SIGTERM, lambda *_: print("the launcher's own handler"))
child = subprocess.Popen(["sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"])
child.wait()
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=HUNG)[0] == "finished 5\n"


def test_a_program_of_a_shell_that_sigterm_ends_gets_the_signal_and_its_time() -> None:
    command = "(trap 'sleep 0.3; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done) & wait"
    script = f"""
from clusterrun.worker.rank import user_code
print(user_code.run_command(["sh", "-c", {command!r}]).status, flush=True)
"""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=HUNG)[0] == "saved\n143\n"


def test_deepspeed_gets_the_nodes_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def world(visible: str) -> dict[str, list[str]]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        text = value(launchers.deepspeed_arguments(NODE, 2), "--world_info")
        found: dict[str, list[str]] = json.loads(base64.urlsafe_b64decode(text))
        return found

    assert world("2,3") == {"node0": ["2", "3"], "node1": ["2", "3"]}
    assert world("") == {"node0": ["0", "1"], "node1": ["0", "1"]}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--local_rank=1", "script", "--", "t.py", "a"], ["script", "--", "t.py", "--local_rank=1", "a"]),
        (["--local_rank=1", "script", "t.py", "a"], ["script", "t.py", "--local_rank=1", "a"]),
        (["--local_rank=1", "task", "lm", "steps=3"], ["task", "lm", "steps=3"]),
        (["script", "--", "t.py", "a"], ["script", "--", "t.py", "a"]),
    ],
)
def test_deepspeeds_local_rank_goes_to_the_users_code(argv: list[str], expected: list[str]) -> None:
    script = f"""
import json, os, sys
from clusterrun.worker.rank import launched
print(json.dumps(list(launched.adopt({argv!r}))), flush=True)
"""
    environ = os.environ | {launched.OUTPUTS: f"{os.getpid()}"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=HUNG)
    assert json.loads(done.stdout) == expected, done.stderr
