"""``--remote``: a user of this machine works on a cluster through another user's account, over a real sshd."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import install
from tests.security.people import Person, Town, identity, queued
from tests.security.sshd import HOST, LoginNode
from tests.support.patience import until
from tests.support.proc import command_lines

ONE = ("--gpus-per-node", "0", "--tasks-per-node", "1", "--no-check")
COUNTS = """#!/bin/bash
n=0
until [ -e stop ]; do
    for _ in 1 2 3 4 5 6 7 8 9 10; do echo "line $((n += 1)) of out"; done
    echo "line $n of err" >&2
    read -t 0.05 <> <(:) || true
done
echo "the last line, without a newline: $n" | tr -d '\\n'
"""


@pytest.fixture
def node(town: Town) -> Iterator[LoginNode]:
    """The account of user a, with the lab behind it; user b may use it and has a project."""
    missing = install.missing_packages(remote=True)
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"needs {' '.join(missing)}")
    made = LoginNode(town.folder / "sshd", town.a)
    made.welcome(town.b)
    installed = town.a.home / ".local/share/clusterrun/bin"
    installed.mkdir(parents=True)
    (installed / "clusterrun").symlink_to(Path(town.a.env["VIRTUAL_ENV"]) / "bin" / "clusterrun")
    town.a.own(town.a.home / ".local")
    # a site's greeting, for login shells and, where sshd starts bash, for each command
    town.a.write(town.a.home / ".profile", ". ~/.bashrc\necho 'Loading modules: gcc/12 cuda/12.4'\n")
    town.a.write(
        town.a.home / ".bashrc", "echo 'Disk quota: job 12345678 is running'; printf '\\033[1mWelcome\\033[0m\\n7'\n"
    )
    town.b.env.pop("SLURM_CONF")  # no Slurm here
    town.b.write(town.b.home / ".config/clusterrun/config.toml", f'remote = "{HOST}"\n')
    try:
        yield made
    finally:
        disconnect(town.b)
        made.stop()


def disconnect(person: Person) -> None:
    for socket in (person.state / "ssh").glob("*"):
        person.sh(f"ssh -o ControlPath={socket} -O exit {HOST} 2>/dev/null", status=None)


class Follower:
    """A user's command that is still running; its output is in files."""

    def __init__(self, person: Person, folder: Path, *words: str) -> None:
        self.out, self.err = folder / f"{words[0]}.stdout", folder / f"{words[0]}.stderr"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [f"{person.env['VIRTUAL_ENV']}/bin/clusterrun", *words], cwd=person.project, env=person.env,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, **identity(person.user),
            )  # fmt: skip

    def lines(self) -> int:
        return self.out.read_bytes().count(b"\n")

    def reconnections(self) -> int:
        return self.err.read_text().count("lost; reconnecting")

    def end(self, seconds: float = 120) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"does not end: {self.err.read_text()[-2000:]}")
        finally:
            self.process.kill()


def remote_project(town: Town) -> Path:
    (found,) = (town.a.home / "clusterrun-projects").iterdir()
    return found


def printed_lines(data: str, label: str) -> list[str]:
    return [line.removeprefix(label) for line in data.splitlines() if line.startswith(label)]


def follow_through_cuts(town: Town, node: LoginNode, cuts: list[str]) -> tuple[Follower, Path]:
    """Follow a job that prints until it may stop, while the link is cut each of these ways; return it and the log."""
    town.b.write(town.b.project / "count.sh", COUNTS, 0o755)
    job = town.b.type("submit", "--json", *ONE, "--", "./count.sh", status=0).data
    out = Path(job["logs"][0])
    until(lambda: out.exists() and out.stat().st_size, 60, "the job prints")
    follower = Follower(town.b, town.folder, "logs", str(job["job_id"]), "-f")
    for number, cut in enumerate(cuts):
        before, known = follower.lines(), follower.reconnections()
        until(
            lambda before=before: follower.lines() > before + 20,
            60,
            f"lines before cut {number}: {follower.err.read_text()}",
        )
        if cut == "kill":
            node.cut()
        elif cut == "30 s":
            node.cut_for(30)
            continue  # shorter than what ssh bears
        elif cut == "hang":
            node.freeze()  # the client notices by itself that nothing answers
        else:
            node.stop()
        until(lambda known=known: follower.reconnections() > known, 90, "the lost connection is noticed", pause=0.2)
        if cut == "down":
            refused = lambda: "Connection refused" in follower.err.read_text()  # noqa: E731
            until(refused, 60, "a try fails")
            node.start()
    before = follower.lines()
    until(lambda: follower.lines() > before + 20, 120, "lines after the last cut")
    town.a.write(remote_project(town) / "stop", "")
    return follower, out


def check_each_line_once(town: Town, follower: Follower, out: Path) -> int:
    assert follower.end() == 0, follower.err.read_text()
    assert "COMPLETED" in follower.err.read_text()
    shown = follower.out.read_text()
    for label, log in (("0: ", out), ("0! ", out.with_suffix(".err"))):
        written = [line for line in printed_lines(log.read_text(), "0: ") if "line" in line]
        assert [line for line in printed_lines(shown, label) if "line" in line] == written
    return shown.count("line")


def test_three_lines_of_the_readme(town: Town, node: LoginNode) -> None:
    before = {*queued(town, town.b)}  # jobs of other tests, which Slurm forgets by and by
    town.b.write(town.b.project / "hello.sh", "#!/bin/bash\necho hello of $(id -un) in $PWD, $1\n", 0o755)
    said = town.b.type("submit", *ONE, "--job-name", "hello", "--", "./hello.sh", "two words", status=0)
    (job,) = re.findall(r"Submitted job (\d+) \(hello\)", said.out)
    followed = town.b.type("logs", job, "-f", status=0)
    assert f"0: hello of {town.a.name} in {remote_project(town)}, two words\n" in followed.out
    assert "COMPLETED" in followed.err
    assert json.loads(town.b.type("status", "--json", "hello", status=0).out)["data"][0]["state"] == "COMPLETED"
    assert job in queued(town, town.a) and not {*queued(town, town.b)} - before
    assert "clusterrun: no job is named nojob\n" in town.b.type("logs", "nojob", status=4).err
    assert node.log.count("Accepted publickey") == 1  # one connection for all


def test_the_project_there_follows_the_one_here(town: Town, node: LoginNode) -> None:
    project = town.b.project
    town.b.sh(
        "git init -q && printf 'big/\\n' >.gitignore && mkdir -p pkg big && touch pkg/old.py pkg/kept.py big/data",
        cwd=project,
    )
    town.b.type("render", *ONE[:-1], "--", "pkg/kept.py", status=0)
    there = remote_project(town)
    assert (there / "pkg/old.py").exists() and not (there / "big").exists() and not (there / ".git").exists()
    town.a.write(there / "pkg/output.txt", "made by a job")
    (project / "pkg/old.py").unlink()
    town.b.write(project / "pkg/new.py", "")
    assert town.b.type("--remote", HOST, "render", *ONE[:-1], "--", "new.py", cwd=project / "pkg", status=0).out
    names = sorted(path.name for path in (there / "pkg").iterdir())
    assert names == ["kept.py", "new.py", "output.txt"]


def test_a_cut_link_loses_and_doubles_no_line(town: Town, node: LoginNode) -> None:
    follower, out = follow_through_cuts(town, node, ["kill", "down", "kill"])
    assert check_each_line_once(town, follower, out) > 100
    assert follower.reconnections() >= 3


@pytest.mark.faults
def test_a_link_that_hangs_loses_and_doubles_no_line(town: Town, node: LoginNode) -> None:
    follower, out = follow_through_cuts(town, node, ["30 s", "hang", "kill", "down", "hang"])
    check_each_line_once(town, follower, out)


def test_a_submission_over_a_cut_link_is_made_once_and_its_secret_stays_secret(town: Town, node: LoginNode) -> None:
    """sbatch waits until the link was cut; the value of the secret is in no command line meanwhile."""
    town.a.write(town.a.home / ".profile", "PATH=$HOME/slow:$PATH\n")
    waits = f"echo $$ >>{town.ran}/called; until [ -e {town.ran}/go ]; do sleep 0.1; done"
    slow = f'#!/bin/bash\n[[ " $* " == *" --test-only "* ]] || {{ {waits}; }}\nexec /usr/bin/sbatch "$@"\n'
    town.a.write(town.a.home / "slow" / "sbatch", slow, 0o755)
    town.b.write(town.b.project / "count.sh", "#!/bin/bash\n[ ${#A_TOKEN} = 11 ] && echo it has it\n", 0o755)
    town.b.env["A_TOKEN"] = "s3cretvalue"
    before = {*queued(town, town.a)}  # jobs of other tests, which Slurm forgets by and by
    submit = Follower(town.b, town.folder, "submit", *ONE, "--secret", "A_TOKEN", "--follow", "--", "./count.sh")
    until((town.ran / "called").exists, 60, f"sbatch is called: {submit.err.read_text()}")
    assert b"s3cretvalue" not in command_lines()
    node.cut()
    until(lambda: submit.reconnections() == 1, 60, "the lost connection is noticed")
    (town.ran / "go").touch()
    assert submit.end() == 0, submit.err.read_text()
    assert "it has it" in submit.out.read_text()
    assert len((town.ran / "called").read_text().split()) == 1
    assert len({*queued(town, town.a)} - before) == 1
    assert subprocess.run(["grep", "-rl", "s3cretvalue", town.a.home], capture_output=True).stdout == b""


def test_a_host_that_cannot_be_reached(town: Town, node: LoginNode) -> None:
    node.stop()
    said = town.b.type("list", status=3)
    assert "clusterrun: cannot connect to cluster\n  hint: try: ssh cluster\n" in said.err
    assert town.b.type("--remote", "-oProxyCommand=touch x", "list", status=2).err.startswith("clusterrun: --remote:")
    assert town.b.type("--remote", "", "list", "--scheduler", "local", status=None).status != 3
    node.start()


def test_a_host_without_clusterrun_gets_it(town: Town, node: LoginNode) -> None:
    program = town.a.home / ".local/share/clusterrun/bin/clusterrun"
    program.unlink()
    said = town.b.type("list", status=3)
    assert f"hint: clusterrun remote setup {HOST}" in said.err
    # the dependencies would come from the network
    town.a.write(town.a.home / ".config/pip/pip.conf", "[install]\nno-deps = true\nno-index = true\n")
    said = town.b.type("remote", "setup", HOST, status=0)
    assert said.out.startswith("Installed clusterrun ") and os.access(program, os.X_OK)
    assert list(
        (town.a.home / ".local/share/clusterrun/lib").glob("python3*/site-packages/clusterrun/worker/training/loop.py")
    )
    assert "is already installed" in town.b.type("remote", "setup", HOST, status=0).out
