"""Each fault that the lab offers, seen from Slurm's side, and mended again."""

import socket
import subprocess
import sys
import time

import pytest

from lab.procs import wait_until
from tests.support.patience import HUNG, until

pytest_plugins = ["lab.fixtures"]


def submit(lab, script, *options, **kwargs):
    return lab.run(["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}"], **kwargs)


def test_a_killed_slurmctld_comes_back_with_what_it_had_saved(fresh_lab):
    lab, ctld = fresh_lab, fresh_lab.daemon("slurmctld")
    job = submit(lab, "sleep 300").stdout.strip()
    lab.wait_job(job, "RUNNING")
    state = lab.folder / "state" / "job_state"
    lab.run(["scontrol", "update", f"jobid={job}", "comment=save-me"])  # slurmctld saves only after a change

    def is_saved() -> bool:
        try:
            return b"save-me" in state.read_bytes()
        except FileNotFoundError:  # it is being replaced
            return False

    wait_until(is_saved, HUNG, "slurmctld's state on disk")
    ctld.kill()
    assert ctld.state == "dead"
    assert "DOWN" in lab.run(["scontrol", "ping"]).stdout
    ctld.start()
    assert lab.job(job)["JobState"] == "RUNNING"
    assert lab.job(job)["Comment"].strip() == "save-me"


def test_a_frozen_slurmctld_times_sbatch_out_and_the_job_exists_all_the_same(fresh_lab):
    ctld = fresh_lab.daemon("slurmctld")
    ctld.stop()
    assert ctld.state == "stopped"
    done = submit(fresh_lab, "true", "--job-name=ghost")
    assert done.returncode != 0
    assert "Socket timed out" in done.stderr
    ctld.cont()
    ctld.wait_ready()
    found = fresh_lab.run(["squeue", "-h", "-t", "all", "-n", "ghost", "-o", "%A"]).stdout.split()
    assert len(found) == 1


def test_a_cut_link_takes_the_node_down_and_restored_it_comes_back(fresh_lab):
    lab, node = fresh_lab, fresh_lab.node_names[1]
    lab.cut_link(node)
    wait_until(lambda: lab.node_states().get(node, "").startswith("down"), 60, f"{node} down", 0.2)
    others = [state for name, state in lab.node_states().items() if name != node]
    assert others == ["idle"] * 3
    lab.restore_link(node)
    lab.wait_idle()
    assert lab.run(["srun", "-w", node, "hostname"]).stdout == f"{node}\n"


def seconds_for_a_megabyte(lab, node):
    """How long a megabyte takes from this machine to the node."""
    code = "import socket,sys; c=socket.create_server((sys.argv[1],5001)).accept()[0]\nwhile c.recv(65536): pass"
    argv = ["nsenter", f"--net=/run/netns/{node}", sys.executable, "-c", code, lab.address(node)]
    with subprocess.Popen(argv) as sink:
        for _ in range(2000):
            try:
                sender = socket.create_connection((lab.address(node), 5001))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        with sender:
            began = time.monotonic()
            sender.sendall(bytes(1 << 20))
        assert sink.wait(timeout=HUNG) == 0
        return time.monotonic() - began


def test_a_slow_link_is_slow_until_it_is_restored(fresh_lab):
    node = fresh_lab.node_names[2]
    fast = lambda: seconds_for_a_megabyte(fresh_lab, node) < 1.4  # noqa: E731
    until(fast)
    fresh_lab.slow_link(node, "4mbit")
    assert not fast()
    fresh_lab.restore_link(node)
    until(fast)


def test_a_killed_slurmd_is_noticed_and_reset_mends_it(fresh_lab):
    lab, node = fresh_lab, fresh_lab.node_names[0]
    job = submit(lab, "sleep 300", "-w", node).stdout.strip()
    lab.wait_job(job, "RUNNING")
    lab.daemon(node).kill()
    wait_until(lambda: lab.node_states().get(node, "").endswith("*"), 60, f"{node} does not respond", 0.2)
    lab.reset()
    assert set(lab.node_states().values()) == {"idle"}
    assert lab.run(["squeue", "-h"]).stdout == ""


def test_the_database_and_its_daemon_can_go_and_come(fresh_lab):
    fresh_lab.daemon("mariadbd").kill()
    fresh_lab.daemon("mariadbd").start()
    fresh_lab.daemon("slurmdbd").terminate()
    done = fresh_lab.run(["sacct"])
    assert done.returncode != 0
    assert fresh_lab.run(["srun", "true"]).returncode == 0, "jobs run without slurmdbd"
    fresh_lab.daemon("slurmdbd").start()
    assert fresh_lab.run(["sacct"]).returncode == 0


def test_with_a_dead_munged_no_command_works_until_it_is_back(fresh_lab):
    fresh_lab.daemon("munged").kill()
    # Slurm's commands try again for most of a minute before they say so.
    with pytest.raises(subprocess.TimeoutExpired):
        fresh_lab.run(["squeue"], timeout=1)
    fresh_lab.daemon("munged").start()
    assert fresh_lab.run(["squeue"]).returncode == 0


def test_reset_lifts_everything_at_once(fresh_lab):
    lab = fresh_lab
    one, two, three, _ = lab.node_names
    submit(lab, "sleep 300", "-N4", "--exclusive")
    submit(lab, "sleep 300", "--array=0-99", "--exclusive")
    lab.run(["scontrol", "update", f"nodename={one}", "state=drain", "reason=test"])
    lab.run(["scontrol", "update", "partitionname=low", "state=down"])
    lab.run(["scontrol", "create", "reservation", "starttime=now", "duration=60", "user=root", f"nodes={one}"])
    lab.daemon(two).stop()
    lab.cut_link(three)
    lab.daemon("slurmctld").kill()
    lab.reset()
    assert set(lab.node_states().values()) == {"idle"}
    assert set(lab.run(["sinfo", "-h", "-o", "%a"]).stdout.split()) == {"up"}


def test_a_daemon_that_the_lab_does_not_have_is_named(lab_no_accounting):
    with pytest.raises(RuntimeError, match="no daemon 'slurmdbd'"):
        lab_no_accounting.daemon("slurmdbd")
