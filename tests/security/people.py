"""Three real users of one cluster: each with a home, a shell and the command line, and what to look at afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from lab.releases import SEARCH_PATH
from lab.users import User
from tests.support.patience import HUNG

TYPIST = Path(__file__).with_name("typist.py")
#: Seconds that a command may take before it counts as one that hangs.
LIMIT = HUNG
#: The exit codes that `clusterrun --help` lists.
CODES = (0, 1, 2, 3, 4, 75)
#: One rank without a GPU, which needs no more than a node.
ONE_RANK = ("--scheduler", "slurm", "--gpus-per-node", "0", "--tasks-per-node", "1")
WAITS = "--sbatch-arg=--begin=now+1hour"


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended; ``status`` is None for one that did not end in time."""

    words: tuple[str, ...]
    status: int | None
    out: str
    err: str
    took: float = 0.0

    def __str__(self) -> str:
        ended = "did not end" if self.status is None else f"exited with {self.status}"
        return f"{' '.join(self.words)} {ended}\n{self.out[-2000:]}\n{self.err[-2000:]}"

    @property
    def data(self) -> Any:
        return json.loads(self.out)["data"]

    def wrong(self, allowed: tuple[int, ...] | None) -> str:
        """What is wrong with how it ended, or nothing."""
        if "Traceback" in self.err or "unexpected error" in self.err:
            return f"an error that nobody foresaw: {self}"
        return "" if allowed is None or self.status in allowed else f"none of {allowed}: {self}"


class Typist:
    """The program of one user that is forked for each command; it serves all tests of a session."""

    def __init__(self, user: User, opt: Path) -> None:
        self._process = subprocess.Popen(
            [f"{opt}/bin/python", str(opt / TYPIST.name)], cwd="/", env={"LC_ALL": "C.UTF-8"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, **identity(user),
        )  # fmt: skip

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Type a command, and return how it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return dict(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it: a program that was started beside it may hold the other end of its input."""
        with self._process:
            self._process.kill()


def identity(user: User) -> dict[str, Any]:
    """What makes a program run as this user, for subprocess."""
    return {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)}


@dataclass
class Person:
    """A user at a shell. `type` types a clusterrun command, `sh` a line of shell; both end within LIMIT seconds.

    `faults` is what was wrong with the commands of `ask`: looked at when the harm that was done has been looked at.
    """

    user: User
    home: Path
    env: dict[str, str]
    typist: Typist
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.user.name

    @property
    def project(self) -> Path:
        return self.home / "project"

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "clusterrun"

    def type(
        self, *words: str, cwd: Path | None = None, umask: int = 0o022, status: int | tuple[int, ...] | None = CODES,
        env: Mapping[str, str] | None = None,
    ) -> Said:  # fmt: skip
        """Type `clusterrun WORDS…`; fails where it hangs, shows a traceback, or ends with another status."""
        said = self._typed(words, cwd or self.project, umask, env)
        assert said.status is not None, f"hangs: {said}"
        wrong = said.wrong((status,) if isinstance(status, int) else status)
        assert not wrong, wrong
        return said

    def ask(
        self, *words: str, cwd: Path | None = None, status: int | tuple[int, ...] = CODES, remarks: int | None = None,
        without: tuple[str, ...] = (), rows_without: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Type a command where harm is to be expected, and note what was wrong with it in `faults`.

        `remarks` is how many lines it may write beside its answer,
            `without` what it must not say; one that hangs fails.
        """
        said = self._typed(words, cwd or self.project)
        assert said.status is not None, f"hangs: {said}"
        wrong = said.wrong((status,) if isinstance(status, int) else status)
        wrong = wrong or next((f"says {word!r}: {said}" for word in without if word in said.out + said.err), "")
        wrong = wrong or next((f"answers {word!r}: {said}" for word in rows_without if word in said.out), "")
        if (
            not wrong
            and remarks is not None
            and len([line for line in said.err.splitlines() if line.strip()]) > remarks
        ):
            wrong = f"more than {remarks} lines beside the answer: {said}"
        self.faults += [wrong] if wrong else []

    def sh(self, line: str, *, cwd: Path | None = None, umask: int = 0o022, status: int | None = 0) -> str:
        """Run a line of bash, and return what it prints."""
        said = self._run(("bash", "-c", line), cwd or self.home, umask, None)
        assert status is None or said.status == status, str(said)
        return said.out

    def start(self, *argv: str, cwd: Path | None = None, umask: int = 0o022) -> subprocess.Popen[str]:
        """Start a program that goes on; it is killed at the end of the test."""
        self.started.append(self._popen(argv, cwd or self.home, umask, None))
        return self.started[-1]

    def submit(self, *words: str, **kwargs: Any) -> dict[str, Any]:
        """Submit a run of one rank: the data of `submit --json`."""
        said = self.type("submit", "--json", *ONE_RANK, *words, **{"status": 0, **kwargs})
        return dict(said.data)

    def state_of(self, job: str, **kwargs: Any) -> dict[str, Any]:
        """How a job stands, as `status --json` has it."""
        (state,) = self.type("status", "--json", job, **{"status": (0, 75), **kwargs}).data
        return dict(state)

    def write(self, path: Path, text: str, mode: int = 0o644) -> Path:
        """A file of this user's."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        self.take(path)
        return path

    def take(self, *paths: Path) -> None:
        """Make files, and the folders above them in the home, this user's."""
        for path in paths:
            for each in (path, *path.parents):
                if each == self.home.parent:
                    break
                os.lchown(each, self.user.uid, self.user.gid)

    def own(self, folder: Path) -> Path:
        """Make a folder with all that is in it this user's."""
        for path in (folder, *folder.rglob("*")):
            os.lchown(path, self.user.uid, self.user.gid)
        return folder

    def leave(self) -> None:
        """End what this user started."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.started.clear()

    def tries(self, *words: str, limit: float) -> Said:
        """Type a command that may do anything within a number of seconds."""
        return self._typed(words, self.project, limit=limit)

    def _typed(
        self, words: tuple[str, ...], cwd: Path, umask: int = 0o022, env: Mapping[str, str] | None = None,
        limit: float = LIMIT,
    ) -> Said:  # fmt: skip
        order = {"words": words, "cwd": str(cwd), "env": {**self.env, **(env or {})}, "umask": umask, "limit": limit}
        return Said(words=("clusterrun", *words), **self.typist.ask(order))

    def _run(self, argv: tuple[str, ...], cwd: Path, umask: int, env: Mapping[str, str] | None) -> Said:
        process = self._popen(argv, cwd, umask, env)
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return Said(argv, None, out, err)
        return Said(argv, process.returncode, out, err)

    def _popen(
        self, argv: tuple[str, ...], cwd: Path, umask: int, env: Mapping[str, str] | None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv, cwd=cwd, env={**self.env, **(env or {})}, umask=umask, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            **identity(self.user),
        )  # fmt: skip


@dataclass
class Town:
    """The users a, b and c on a cluster; `ran` is where code leaves a mark of who ran it."""

    folder: Path
    lab: Lab
    a: Person
    b: Person
    c: Person

    @property
    def ran(self) -> Path:
        return self.folder / "ran"

    def mark(self, what: str) -> str:
        """A line of shell that leaves a mark, owned by whoever runs it."""
        return f": > {self.ran}/{what}.$$.$(id -un)"

    def marks(self, person: Person) -> list[str]:
        """The marks that this user's processes left."""
        return sorted(path.name for path in self.ran.iterdir() if path.stat().st_uid == person.user.uid)

    def sbatch(self, person: Person, script: Path, *options: str) -> str:
        """Submit a script with sbatch alone; returns the job id."""
        words = " ".join(f"'{word}'" for word in (*options, str(script)))
        return person.sh(f"sbatch --parsable {words}", cwd=script.parent).strip().partition(";")[0]


def make_person(user: User, folder: Path, env: Mapping[str, str], opt: Path, typist: Typist) -> Person:
    """A user with a home that others may enter, and an empty project in it."""
    home = folder / user.name
    home.mkdir()
    home.chmod(0o755)
    own = {
        "HOME": str(home), "USER": user.name, "LOGNAME": user.name, "SHELL": "/bin/bash", "LC_ALL": "C.UTF-8",
        "PATH": f"{opt}/bin:{SEARCH_PATH}", "VIRTUAL_ENV": str(opt), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    person = Person(user, home, {**own, **env}, typist)
    for part in ("project", ".local/state"):
        (home / part).mkdir(parents=True)
    person.own(home)
    return person


def furnish(person: Person) -> None:
    """Fill a home with what a user would miss: files of names and places that an attacker would aim at."""
    person.write(person.home / ".bashrc", "for f in ~/rc.d/*; do . $f; done\n")
    person.write(person.home / "rc.d" / "prompt", "PS1='$ '\n")
    person.write(person.home / ".ssh" / "authorized_keys", "ssh-ed25519 AAAA a@home\n", 0o600)
    person.write(person.home / "settings.json", '{"precious": true}\n')
    person.write(person.home / "results.txt", "three months of work\n")
    person.write(person.home / "secret.txt", "the diary\n", 0o600)
    person.write(person.home / "hello.sh", "#!/bin/bash\necho hello of $(id -un)\n", 0o755)


def queued(town: Town, person: Person) -> list[str]:
    """The ids of all the user's jobs that Slurm knows."""
    return town.lab.run(["squeue", "-h", "-t", "all", "-o", "%i", f"--user={person.name}"]).stdout.split()


def running(town: Town, person: Person) -> list[str]:
    """The ids of the user's jobs that are not over."""
    return town.lab.run(["squeue", "-h", "-o", "%i", f"--user={person.name}"]).stdout.split()
