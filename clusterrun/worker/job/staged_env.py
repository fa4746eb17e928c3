"""The job's Python environment on the nodes' local disks: --stage-env. Standard library only.

A step with a task on each node makes a folder, unpacks into it what sbcast has copied there, and removes the folder
when its input ends. It is started before the ranks, since Slurm starts no step in a job that was cancelled.
"""

from __future__ import annotations

import argparse
import os
import select
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from ...base.decode import parse_object
from ...base.errors import WorkerError
from ..node import batch_host
from ..node.log import say
from ..rank.distenv import STAGED

RECORD = "environment.json"
UNKNOWN = "unknown"
STAGE_S, IMPORT_S = 900.0, 300.0
REMOVE_S = 20.0  # SIGKILL follows SIGTERM after KillWait, 30 s by default
# SIGTERM of a cancelled job and the warning of --signal reach it too, while ranks still save; of them only SIGTERM
# stops the unpacking. mkdir fails if there is such a folder or link.
KEEPER = r"""
trap '' TERM HUP INT QUIT USR1 USR2 ALRM
umask 077
why=$(mkdir "$1" 2>&1) || { echo "failed: $why"; exit 1; }
echo made
read -r word
if [ "$word" = unpack ]; then
    if why=$( (trap - TERM; exec tar -xzf "$1/$2" -C "$1" --no-same-owner --no-overwrite-dir) 2>&1)
    then rm "$1/$2"; echo unpacked
    else echo "failed: $why" | head -n 1; fi
    read -r word
fi
rm -rf "$1"
"""
TIME_IMPORT = "import time; began = time.monotonic(); import torch; print(time.monotonic() - began)"


class StagedEnvironment:
    """The environment that the ranks use: the job's own, or its copy on the local disk of each node."""

    def __init__(self) -> None:
        self.prefix = sys.prefix
        self._step: subprocess.Popen[bytes] | None = None

    @property
    def python(self) -> str:
        """The ranks' Python."""
        is_copy = self.prefix != sys.prefix
        return self.prefix + sys.executable.removeprefix(sys.prefix) if is_copy else sys.executable

    def variables(self) -> dict[str, str]:
        """Return the variables of activated environments, for the copy."""
        names = ("VIRTUAL_ENV", "CONDA_PREFIX")
        return {name: self.prefix for name in names if os.environ.get(name, "").rstrip("/") == sys.prefix}

    def stage(self, options: argparse.Namespace, run_dir: Path, job_id: str) -> None:
        """With --stage-env copy it to all nodes of the job; if that fails, say why, and the ranks use it in place."""
        if not options.stage_env:
            return
        try:
            archive = _find_archive(run_dir)
            before, began = _import_time(sys.executable), time.monotonic()
            nodes = batch_host.node_names()
            folder = _choose_folder(job_id)
            self._copy(archive, folder, len(nodes), bool(options.spare_nodes))
            took = time.monotonic() - began
            after = _import_time(folder + sys.executable.removeprefix(sys.prefix))
            if after == UNKNOWN != before:
                raise WorkerError(f"the copy in {folder} cannot import torch (is that disk mounted noexec?)")
            self.prefix = folder
            os.environ[STAGED] = (
                f"Environment: copied to {folder} on {len(nodes)} node{'s' * (len(nodes) != 1)} in {took:.1f} s;"
                f" import torch: {before} from {sys.prefix}, {after} from the copy"
            )
        except (WorkerError, OSError) as error:
            self.remove()
            say(f"environment not copied to the nodes: {error}; the ranks use {sys.prefix}")

    def remove(self) -> None:
        """Remove the copies."""
        if self._step is None or self._step.stdin is None:
            return
        with suppress(OSError):
            self._step.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._step.wait(REMOVE_S)
        self._step.kill()
        self._step, self.prefix = None, sys.prefix

    def _copy(self, archive: Path, folder: str, nodes: int, spares: bool) -> None:
        """Unpack the archive into a new folder on each node; raises WorkerError or OSError."""
        environ = {name: value for name, value in os.environ.items() if name != "SLURM_EXPORT_ENV"}
        until = time.monotonic() + STAGE_S
        command = ["srun", "--overlap", "--mem=0", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
                   "--cpu-bind=none", *(["--no-kill"] if spares else []), "--quiet",
                   "sh", "-c", KEEPER, "sh", folder, archive.name]  # fmt: skip
        self._step = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, bufsize=0
        )
        assert self._step.stdin is not None
        self._await("made", nodes, until)
        command = ["sbcast", str(archive), f"{folder}/{archive.name}"]
        try:
            subprocess.run(
                command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=STAGE_S, env=environ
            )
        except subprocess.TimeoutExpired:
            raise WorkerError(f"sbcast did not finish within {STAGE_S:.0f} s") from None
        except subprocess.CalledProcessError as error:
            why = _last_line(error.stderr) or f"sbcast failed with status {error.returncode}"
            raise WorkerError(f"{why} (is {os.path.dirname(folder)} full there?)") from None  # sbcast does not say so
        self._step.stdin.write(b"unpack\n")
        self._await("unpacked", nodes, until)

    def _await(self, word: str, nodes: int, until: float) -> None:
        """Wait until each node has printed a word; raises WorkerError."""
        assert self._step is not None
        assert self._step.stdout is not None
        text = b""
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._step.stdout], [], [], left)[0]:
                break
            block = os.read(self._step.stdout.fileno(), 4096)
            text += block
            lines = text.decode(errors="replace").splitlines()
            failed = next((line for line in lines if line.startswith("failed: ")), "")
            if failed or not block:
                raise WorkerError(failed.removeprefix("failed: ") or _last_line(text) or "srun ended")
            if lines.count(word) == nodes:
                return
        raise WorkerError(f"not all nodes responded within {STAGE_S:.0f} s")


def _find_archive(run_dir: Path) -> Path:
    try:
        archive = Path(parse_object((run_dir / RECORD).read_bytes())["archive"])
        found = archive.lstat()
    except FileNotFoundError as error:
        raise WorkerError(f"the packed environment is gone: {error.filename}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise WorkerError(f"cannot read {run_dir / RECORD}: {error}") from None
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise WorkerError(f"{archive} is not a regular file that you own")
    return archive


def _choose_folder(job_id: str) -> str:
    base = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - only the parent of a new folder
    return f"{os.path.abspath(base)}/clusterrun-env-{job_id}-{os.urandom(8).hex()}"


def _import_time(python: str) -> str:
    """Return how long this node takes to import torch, as `1.2 s`."""
    try:
        done = subprocess.run(
            [python, "-c", TIME_IMPORT], check=True, cwd="/", stdin=subprocess.DEVNULL, capture_output=True,
            timeout=IMPORT_S,
        )  # fmt: skip
        return f"{float(done.stdout):.1f} s"
    except subprocess.TimeoutExpired:
        return f"over {IMPORT_S:.0f} s"
    except (OSError, ValueError, subprocess.CalledProcessError):
        return UNKNOWN


def _last_line(text: bytes) -> str:
    return (text.decode(errors="replace").splitlines() or [""])[-1]
