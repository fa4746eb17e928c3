"""Run a command line of clusterrun on another host: its streams, its exit code, and lost connections.

The host runs the command line as the user typed it. Standard input carries the rest: secrets, which must stay out of
command lines, and the submission's identity and log offsets, which a second attempt needs. See ``cli/common/link.py``.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from clusterrun.base.decode import Damaged
from clusterrun.base.errors import Ambiguous, ClusterrunError, CommandError, SchedulerError
from clusterrun.config.profiles import load_job
from clusterrun.logs.frames import read_frames, read_job
from clusterrun.logs.request import Place
from clusterrun.remote.past_banner import chunks, read_past, strip
from clusterrun.remote.ssh import LOST, Host, Target, Unreachable, make_folder
from clusterrun.run_folder.identity import Identity
from clusterrun.system import shell
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    import subprocess

VERSION = 1
"""Of what is sent on standard input."""
INSTALLED = ".local/share/clusterrun"
"""Where ``remote setup`` installs, from the home folder there."""
NOT_INSTALLED = 127
KEEP_TRYING = 3600.0
"""Seconds to try to reach the host again."""
_LOOK_UPS = (2.0, 5.0, 10.0, 15.0, 0.0)  # seconds after look-ups of a submission that no record shows yet
_LOOK_UP_LIMIT = 300.0  # seconds: it may have to wait for Slurm
_FRUITLESS = 8
_SHOWN = 5  # lines of a login shell that ran no command


@dataclass(frozen=True)
class Session:
    """Commands in one project folder on one host; ``sleep`` takes seconds."""

    target: Target
    host: Host
    ui: Ui
    environ: Mapping[str, str]
    sleep: Callable[[float], None] = time.sleep

    def run(self, words: Sequence[str]) -> int:
        """Run a command on this process's own streams and return its exit status, ``LOST`` if the link broke."""
        terminal = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
        argv = self.host.argv(self._command(words, "end"), terminal=terminal)
        if terminal:  # ssh sends Ctrl-C there
            return shell.run_here(argv, self.environ)
        return self._print(shell.start_fed(argv, env=self.environ, stdin=None, piped=True))

    def run_fed(self, words: Sequence[str], identity: Identity | None = None) -> int:
        """Run a command that gets secrets and an identity; return its exit status."""
        process = self._start(words, self._request(words, identity))
        try:
            return self._print(process)
        finally:
            process.kill()

    def _print(self, process: subprocess.Popen[bytes]) -> int:
        """Print a command's output without what the login shell printed before it; return its exit status."""
        assert process.stdout is not None
        for line in read_past(process.stdout).splitlines()[-_SHOWN:]:
            self.ui.note(line.decode("utf-8", "backslashreplace"))
        for data in chunks(process.stdout):
            self.ui.log_bytes(data)
        return shell.exit_status(process.wait())

    def follow(self, words: Sequence[str]) -> int:
        """Print followed logs through lost connections, each line once; return the exit status."""
        places: dict[str, Place] = {}
        job, fruitless = "", 0  # connections in a row that carried nothing
        while True:
            status, begun = self._follow_once(words, places, job)
            job = begun or job
            if status == 0 and not begun:
                raise SchedulerError(
                    f"{self.host.name} has a version of clusterrun that is too old to follow logs with --remote",
                    hint=f"clusterrun remote setup {self.host.name}",
                )
            if status != LOST:
                return status
            fruitless = 0 if begun else fruitless + 1
            if fruitless > _FRUITLESS:
                raise Unreachable(f"{self.host.name} closes each connection", hint=f"try: ssh {self.host.name}")
            self.reconnect()
            self.sleep(float(2 * fruitless))

    def find_submission(self, words: Sequence[str], identity: Identity) -> str:
        """Return what ``submit`` printed for a submission whose connection was lost.

        It is not sent again: the run is looked up there by its id. Raises Ambiguous if no record shows it.
        """
        recover = ["submit", "--recover", identity.run_id, *(word for word in words if word == "--json")]
        lost = f"lost the connection to {self.host.name} during the submission"
        hint = (
            f"before you submit again, run `clusterrun --remote {self.host.name} list --all` to see whether the job"
            " was submitted"
        )
        done = shell.Completed(LOST, "", "")
        try:
            for wait in _LOOK_UPS:
                if done.status == LOST:
                    self.reconnect()
                argv, sent = self.host.argv(self._command(recover, "link")), self._request(words)
                done = shell.run(argv, env=self.environ, timeout=_LOOK_UP_LIMIT, stdin=sent.decode())
                if done.status == 0:
                    return strip(done.stdout)
                self.sleep(wait)
        except (CommandError, Unreachable) as error:
            raise Ambiguous(lost, hint=hint) from error
        raise Ambiguous(f"{lost}; run {identity.run_id} was not found there", detail=done.stderr.strip(), hint=hint)

    def reconnect(self) -> None:
        """Open the connection again, for ``KEEP_TRYING`` seconds. Raises Unreachable."""
        self.ui.note(f"connection to {self.host.name} lost; reconnecting")
        if self.host.socket is None:
            return  # each command connects by itself
        self.host.disconnect()
        wait, waited = 1.0, 0.0
        while True:
            try:
                self.host.connect()
                return
            except Unreachable:
                if waited >= KEEP_TRYING:
                    raise
            self.sleep(wait)
            wait, waited = min(2 * wait, 30.0), waited + wait

    def _start(self, words: Sequence[str], sent: bytes) -> subprocess.Popen[bytes]:
        """Start a command that gets ``sent``. Ctrl-C does not reach it, unless ssh may have to ask for a password."""
        argv = self.host.argv(self._command(words, "link"))
        detached = self.host.socket is not None
        return shell.start_fed(argv, env=self.environ, stdin=sent, piped=True, detached=detached)

    def _follow_once(self, words: Sequence[str], places: dict[str, Place], job: str) -> tuple[int, str | None]:
        """Follow over one connection; return the exit status, and the job's id if it arrived."""
        process = self._start(words, self._request(words, None, places, job))
        assert process.stdout is not None
        try:
            begun = read_job(process.stdout)
            for file, place, data in read_frames(process.stdout):
                if data:
                    self.ui.log_bytes(data)
                if place is not None:  # only now: a line counts as printed once it is
                    places[file] = place
            return shell.exit_status(process.wait()), begun
        except Damaged as error:
            raise SchedulerError(
                f"cannot read the output of clusterrun on {self.host.name}: {error}",
                hint=f"clusterrun remote setup {self.host.name}",
            ) from error
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def _command(self, words: Sequence[str], kind: str) -> str:
        """Return the line of bash that runs clusterrun in the project's folder there."""
        place = shlex.quote(str(PurePosixPath(self.target.folder) / self.target.below))
        return (
            f"cd && {make_folder(place)} && cd {place} || exit 3; c=$HOME/{INSTALLED}/bin/clusterrun; "
            f'[ -x "$c" ] || c=$(type -P clusterrun) || exit {NOT_INSTALLED}; '
            f'CLUSTERRUN_REMOTE={kind} exec "$c" {shlex.join(words)}'
        )

    def _request(
        self, words: Sequence[str], identity: Identity | None = None, places: Mapping[str, Place] | None = None,
        job: str = "",
    ) -> bytes:  # fmt: skip
        terminal = {name: self.environ[name] for name in ("TERM", "NO_COLOR") if name in self.environ}
        return json.dumps({
            "version": VERSION,
            "terminal": sys.stdout.isatty(),
            "environ": terminal | (find_secrets(words, self.target, self.environ) if places is None else {}),
            "submission": str(identity) if identity is not None else None,
            "places": None if places is None else {file: place._asdict() for file, place in places.items()},
            "job": job,
        }).encode()  # fmt: skip


def find_secrets(words: Sequence[str], target: Target, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that ``--secret``, a profile or a job file names, as far as this shell has them."""
    names = [word.removeprefix("--secret=") for word in words if word.startswith("--secret=")]
    names += [name for option, name in pairwise(words) if option == "--secret"]
    for level in (*target.profiles.levels, *_job_files(words, target, environ)):
        names += level["secret"].value if "secret" in level else []
    return {name: environ[name] for name in names if name in environ}


def _job_files(words: Sequence[str], target: Target, environ: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yield the values of the job files among these words."""
    for word in words:
        if not word.startswith("-"):
            with contextlib.suppress(ClusterrunError):  # not a job file; if it is one, the command there explains
                yield load_job(word, target.root, cwd=target.root / target.below, environ=environ).values
