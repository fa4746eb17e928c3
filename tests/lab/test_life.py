"""Coming up, healing and going down: nothing is left behind, whatever happened before."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab import claims, net, procs
from lab.cluster import Lab
from lab.daemons import PROGRAMS
from lab.errors import LabError
from tests.support.patience import HUNG

ROOT = Path(__file__).parents[2]


@pytest.fixture
def small():
    """A lab of one node that a test may ruin; gone afterwards."""
    from lab.fixtures import require_lab  # not at the top: pytest wants to see the plugin's import itself

    require_lab()
    lab = Lab(name=f"s{os.getpid()}", nodes=1, gpus=0, accounting=False, owner=os.getpid())
    yield lab
    lab.down()


def left_behind(lab: Lab) -> list[str]:
    """All that a lab of this name still has on the machine."""
    found = [str(path) for path in net.NETNS.glob(f"{lab.name}-node*")]
    found += [str(path) for path in claims.REGISTRY.glob(f"*{lab.name}*")]
    found += [f"pid {pid}" for pid in procs.daemons_of_folder(lab.folder, PROGRAMS)]
    if f"clusterrun-lab {lab.name} " in net.HOSTS.read_text():
        found.append("/etc/hosts")
    if lab.folder.exists():
        found.append(str(lab.folder))
    return found


def cli(*argv: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "lab", *argv], cwd=ROOT, capture_output=True, text=True, timeout=HUNG, check=False
    )


def test_down_leaves_nothing_behind(small):
    small.up()
    bridge = Path("/sys/class/net") / small.claim.bridge
    inode = net.inode(small.node_names[0])
    assert small.run(["sbatch", "--output=/dev/null", "--wrap=sleep 987"]).returncode == 0
    procs.wait_until(lambda: len(procs.pids_in_netns(inode)) > 2, 10, "a job on the node")
    assert bridge.exists()
    assert left_behind(small)
    born = {pid: procs.start_time(pid) for pid in procs.pids_in_netns(inode)}  # another lab may get this inode number
    small.down()
    assert left_behind(small) == []
    assert not bridge.exists()
    assert [pid for pid, at in born.items() if at is not None and procs.start_time(pid) == at] == []
    small.down()  # once more does no harm


def test_up_twice_is_one_lab_and_other_settings_make_it_anew(small):
    small.up()
    pid = small.daemon("slurmctld").pid
    small.up()
    assert small.daemon("slurmctld").pid == pid
    small.settings = {"SlurmdTimeout": "77"}
    small.up()
    assert small.daemon("slurmctld").pid != pid
    assert "= 77 sec" in small.run(["scontrol", "show", "config"]).stdout


def test_up_heals_what_a_crash_left(small):
    small.up()
    small.daemon("slurmctld").kill()
    for path in (small.folder / "pid").iterdir():
        path.unlink()
    old = procs.daemons_of_folder(small.folder, PROGRAMS)
    assert len(old) >= 2
    again = Lab(**small.spec, owner=os.getpid()).up()
    assert again.healthy()
    assert not set(old) & set(procs.daemons_of_folder(small.folder, PROGRAMS))


def test_an_up_that_fails_says_why_and_tidies_up(small):
    small.settings = {"SelectType": "select/nonsense"}
    with pytest.raises(LabError, match="select/nonsense"):
        small.up()
    assert left_behind(small) == []


def test_the_lab_of_a_killed_session_is_cleared_by_the_next_up(small):
    name = f"k{os.getpid()}"
    code = (
        f"from lab.cluster import Lab; import os, time; Lab(name={name!r}, nodes=1, accounting=False, "
        "owner=os.getpid()).up(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout.readline() == "up\n"
        session.send_signal(signal.SIGKILL)
    assert left_behind(Lab(name=name))
    small.up()
    assert left_behind(Lab(name=name)) == []


def test_the_command_line(small):
    name = small.name
    up = cli("up", "--name", name, "--nodes", "1", "--gpus", "0", "--no-accounting", "--set", "KillWait=7")
    assert up.returncode == 0, up.stderr
    assert f'eval "$(python -m lab env --name {name})"' in up.stdout
    assert cli("env", "--name", name).stdout.startswith(f"export SLURM_CONF={small.conf}\n")
    assert "KillWait                = 7 sec" in cli("run", "--name", name, "--", "scontrol", "show", "config").stdout
    assert cli("run", "--name", name, "--", "sh", "-c", "exit 7").returncode == 7
    assert "dead" in cli("fault", "--name", name, "kill", "slurmctld").stdout
    assert "broken" in cli("status").stdout
    assert "running" in cli("fault", "--name", name, "start", "slurmctld").stdout
    small.wait_idle()
    assert "idle" in cli("status", "--name", name).stdout
    assert cli("down", "--name", name).returncode == 0
    assert left_behind(small) == []
    gone = cli("env", "--name", name)
    assert gone.returncode == 1
    assert f"lab {name} is not up" in gone.stderr
    argv = [sys.executable, "-W", "error", "-m", "lab.install"]
    assert "all packages" in subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    bad = cli("up", "--name", name, "--set", "nonsense")
    assert bad.returncode == 1
    assert "KEY=VALUE" in bad.stderr


def test_a_namespace_of_somebody_else_is_left_alone(small):
    node = small.node_names[0]
    subprocess.run(["ip", "netns", "add", node], check=True)
    try:
        with pytest.raises(LabError, match="not this lab's"):
            small.up()
        assert (net.NETNS / node).exists()
    finally:
        subprocess.run(["ip", "netns", "del", node], check=True)


SESSION = """
import os, time
pytest_plugins = ["lab.fixtures"]
def test_it(lab_no_accounting):
    print(lab_no_accounting.name, flush=True)
    time.sleep(float(os.environ.get("NAP", "0")))
    assert "NAP" not in os.environ
"""


def session(tmp_path, **env):
    """A pytest session of one test with a lab, as a process."""
    (tmp_path / "test_session.py").write_text(SESSION)
    argv = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    ours = ("CI", "CLUSTERRUN_LAB_REUSE", "PYTEST_ADDOPTS")
    kept = {key: value for key, value in os.environ.items() if key not in ours}
    return {
        "args": [*argv, str(tmp_path / "test_session.py")], "cwd": tmp_path, "text": True,
        "env": {**kept, "PYTHONPATH": str(ROOT), **env},
    }  # fmt: skip


LEAVES_A_JOB = """
pytest_plugins = ["lab.fixtures"]
def test_it(lab_no_accounting):
    lab_no_accounting.run(["sbatch", "-N2", "--time=1", "--output=/dev/null", "--wrap", "sleep 600"])
"""
SEES_NO_JOB = """
pytest_plugins = ["lab.fixtures"]
def test_it(lab_no_accounting):
    assert lab_no_accounting.run(["squeue", "-h"]).stdout == ""
"""


@pytest.mark.usefixtures("small")
def test_a_file_finds_no_jobs_of_the_file_before_it(tmp_path):
    for name, text in (("test_a.py", LEAVES_A_JOB), ("test_b.py", SEES_NO_JOB)):
        (tmp_path / name).write_text(text)
    started = session(tmp_path)
    started["args"][-1] = str(tmp_path)
    (tmp_path / "test_session.py").unlink()
    done = subprocess.run(**started, capture_output=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.usefixtures("small")
def test_ctrl_c_takes_the_sessions_lab_down(tmp_path):
    with subprocess.Popen(**session(tmp_path, NAP="60"), stdout=subprocess.PIPE) as running:
        name = running.stdout.readline().strip()
        assert left_behind(Lab(name=name))
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=HUNG)
    assert left_behind(Lab(name=name)) == []


def test_where_the_lab_cannot_run_a_test_is_skipped_but_fails_in_ci(monkeypatch):
    import lab.fixtures

    monkeypatch.setattr(lab.fixtures, "available", lambda release: "the lab needs root")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        lab.fixtures.require_lab()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        lab.fixtures.require_lab()


@pytest.mark.usefixtures("small")
def test_a_lab_kept_for_reuse_serves_the_next_session(tmp_path):
    if "reuse-none" in claims.claims():
        pytest.skip("somebody uses the kept lab")  # taking it down would end their jobs; never so on a fresh machine
    try:
        for _ in range(2):
            done = subprocess.run(**session(tmp_path, CLUSTERRUN_LAB_REUSE="1"), capture_output=True, check=False)
            assert done.stdout.startswith("reuse-none\n"), done.stdout + done.stderr
            pid = Lab.attach("reuse-none").daemon("slurmctld").pid
            assert pid
    finally:
        Lab(name="reuse-none").down()
