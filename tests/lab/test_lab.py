"""A lab does what a cluster does: names, GPUs, jobs, accounting, limits."""

import os
import subprocess
from pathlib import Path

import pytest

from lab.cluster import Lab
from tests.support.patience import until

pytest_plugins = ["lab.fixtures"]


@pytest.fixture(scope="session", autouse=True)
def slow_jobs():
    """A lab of their own and job ids by name: `short` has its partition's limit, `low` loses its GPUs to `high`.

    Submitted before the first test and looked at by the last ones, as they take long. The lab remembers finished jobs
    for long, so that it does not matter when a test looks at them.
    """
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    name = f"t{os.getpid()}s"
    with Lab(name=name, nodes=2, accounting=False, settings={"MinJobAge": "600"}) as lab:

        def submit(node, *options):
            return sbatch(lab, "-w", f"{name}-node{node}", *options)

        jobs = {"short": submit(1, "-p", "short", "sleep 600")}
        jobs["low"] = submit(2, "-p", "low", "--gpus-per-node=4", "sleep 600")
        lab.wait_job(jobs["low"], "RUNNING")
        jobs["high"] = submit(2, "--gpus-per-node=4", "sleep 1")
        yield lab, jobs


def sbatch(lab, *args, **kwargs):
    """Submit and return the job id; the script is the last argument."""
    *options, script = args
    done = lab.run(["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}"], **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_labs_stand_side_by_side(lab, lab_no_accounting):
    seen = []
    for one in (lab, lab_no_accounting):
        done = one.run(["srun", "-N2", "hostname"])
        assert done.returncode == 0, done.stderr
        names = sorted(done.stdout.split())
        assert len(set(names)) == 2
        assert set(names) <= set(one.node_names)
        seen += names
    assert len(set(seen)) == 4


def test_names_resolve_here_and_on_every_node(any_lab):
    first = any_lab.node_names[0]
    expected = any_lab.address(first)
    assert any_lab.run(["getent", "hosts", first]).stdout.split()[0] == expected
    done = any_lab.run(["srun", "-N4", "getent", "hosts", first])
    assert [line.split()[0] for line in done.stdout.splitlines()] == [expected] * 4


def test_the_address_that_commands_come_from_has_a_name_without_a_name_server(any_lab):
    # slurmctld of 24.11 looks it up for each command, and all others wait until a name server has answered
    done = subprocess.run(["getent", "-s", "files", "hosts", any_lab.claim.gateway], capture_output=True, text=True)
    assert done.stdout.split()[1:] == [f"{any_lab.name}-login"]


def test_a_node_reaches_another_by_name(lab):
    one, two = lab.node_names[:2]
    code = (
        "import os, socket, sys, time\n"
        "if os.environ['SLURM_PROCID'] == '0':\n"
        "    s = socket.create_server((sys.argv[1], 29500)); print(s.accept()[1][0])\n"
        "for _ in range(100 * int(os.environ['SLURM_PROCID'])):\n"
        "    try: socket.create_connection((sys.argv[1], 29500), 1); break\n"
        "    except OSError: time.sleep(0.1)\n"
    )
    done = lab.run(["srun", "-N2", f"--nodelist={one},{two}", "python3", "-c", code, one])
    assert done.stdout.strip() == lab.address(two), done.stderr


def test_gpus_are_allocated_and_named(any_lab):
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES ${ROCR_VISIBLE_DEVICES-none}"]
    assert any_lab.run(["srun", "-N2", "--gpus-per-node=4", *show]).stdout.split() == ["0,1,2,3", "none"] * 2
    done = any_lab.run(["srun", "-N1", "--gpus-per-node=5", *show])
    assert done.returncode != 0
    assert "Requested node configuration is not available" in done.stderr


def test_two_jobs_share_a_node_and_not_its_gpus(lab, tmp_path, fresh_lab):
    node = lab.node_names[0]
    line = f"echo $CUDA_VISIBLE_DEVICES > {tmp_path}/$SLURM_JOB_ID; sleep 60"
    jobs = [sbatch(lab, "-w", node, "--gpus-per-node=2", line) for _ in range(2)]
    for job in jobs:
        assert lab.wait_job(job, "RUNNING")["NodeList"] == node
    until(lambda: all((tmp_path / job).exists() and (tmp_path / job).read_text() for job in jobs))
    assert sorted((tmp_path / job).read_text().strip() for job in jobs) == ["0,1", "2,3"]


def test_sacct_works_with_accounting(lab):
    job = sbatch(lab, "--comment=seen", "true")
    argv = ["sacct", "-X", "-n", "-P", "-j", job, "-o", "State,Comment"]
    until(lambda: lab.run(argv).stdout == "COMPLETED|seen\n", pause=0.2)


def test_the_database_shares_no_temporary_folder_with_another_lab(lab):
    # a mariadbd that starts removes the temporary tables in its folder: those of a running one too, which then crashes
    argv = ["mariadb", "--no-defaults", f"--socket={lab.folder}/mysql/socket", "-N", "-e", "SELECT @@tmpdir"]
    folder = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(folder).is_relative_to(lab.folder)


def test_sacct_says_that_accounting_is_off(lab_no_accounting):
    done = lab_no_accounting.run(["sacct"])
    assert done.returncode == 1
    assert "Slurm accounting storage is disabled" in done.stderr


def test_another_user_can_run_jobs(lab, tmp_path):
    job = sbatch(lab, "sleep 0.1", user="nobody")
    assert lab.job(job)["UserId"] == "nobody(65534)"
    lab.wait_job(job, "COMPLETED")
    done = lab.run(["srun", "id", "-un"], user="nobody")
    assert done.stdout == "nobody\n", done.stderr


def test_a_requeued_job_is_back_soon(fresh_lab):
    job = sbatch(fresh_lab, "sleep 100")
    fresh_lab.wait_job(job, "RUNNING")
    assert fresh_lab.run(["scontrol", "requeue", job]).returncode == 0
    until(lambda: fresh_lab.job(job).get("Restarts") == "1")
    fresh_lab.wait_job(job, "RUNNING")


def test_a_job_over_its_memory_is_killed(lab, fresh_lab):
    job = sbatch(lab, "--mem=100", "srun python3 -c 'x = b\"x\" * 400_000_000; import time; time.sleep(60)'")
    fields = lab.wait_job(job, "OUT_OF_MEMORY", "FAILED", "CANCELLED")
    assert fields["JobState"] in ("OUT_OF_MEMORY", "FAILED", "CANCELLED")
    log = (lab.folder / "log" / f"{fields['BatchHost']}.log").read_text()
    assert "memory" in log


def test_no_variable_of_ours_reaches_a_daemon(lab, monkeypatch):
    monkeypatch.setenv("LAB_TEST_MARK", "1")
    lab.daemon("munged").restart()
    for daemon in lab.daemons.values():
        with open(f"/proc/{daemon.pid}/environ", "rb") as environ:
            text = environ.read()
        assert b"LAB_TEST_MARK" not in text
        assert b"PYTEST" not in text
        assert os.getsid(daemon.pid) != os.getsid(0)


def test_the_low_partition_is_preempted(slow_jobs):
    lab, jobs = slow_jobs
    lab.wait_job(jobs["high"], "COMPLETED")
    low = lab.wait_job(jobs["low"], "RUNNING")
    assert low["Restarts"] == "1"


def test_a_partition_with_a_limit_of_a_minute(slow_jobs):
    """What happens after that minute takes longer to see: slurm/test_ends.py does."""
    lab, jobs = slow_jobs
    assert lab.wait_job(jobs["short"], "RUNNING", "TIMEOUT")["TimeLimit"] == "00:01:00"
