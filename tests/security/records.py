"""A generator of record folders as no clusterrun ever wrote them: types, links, modes, owners, sizes, names."""

from __future__ import annotations

import contextlib
import json
import os
import random
import stat
from pathlib import Path
from typing import Any

from tests.security.crafting import new_token
from tests.security.people import Person, Town

#: What may stand in the place of any value of a record.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3.5, 10**30, -(10**400), float("nan"), float("inf"), "", "x", "5", "L1", "1_2", "0",
    "a/b",
    "../../../../etc", "/etc/passwd", "\x00", "\x1b[31mred\x1b[0m", "a\nb", "\ud800", "é" * 300, "x" * 100_000, [],
    {}, [1],
    {"a": 1}, [[]], ["", "", ""], [None, None, None], [1, 2, 3, 4], "2026-01-01", "submitting", "accepted", "RUNNING",
    "99999999999999999999999", {"state": 5}, {"state": "COMPLETED", "ended": "x", "figures": [1, "a"]},
    {"state": [], "exit_status": {}, "elapsed": 1e308, "nodes": 5, "figures": {"step": "x", "loss": None}},
]  # fmt: skip
RAW: list[bytes] = [
    b"", b"{", b"null", b"[]", b"5", b'"x"', b"\xff\xfe\x00", b"{}" * 3, b"[" * 200_000, b'{"a":' * 100_000,
    b"\x00" * 4096,
    b'{"at": 1e999}', b'{"at": ' + b"9" * 5000 + b"}", b"NaN", b'{"run_id": "a", "run_id": "b"}', b"\xef\xbb\xbf{}",
]  # fmt: skip
FILES = (
    "record.json", "spec.json", "script.sh", "attempt_number", "metrics.jsonl", "samples.jsonl", "best.json", "latest",
    "submissions/{token}.json", "submissions/second.json", "submissions/.hidden.json", "claims/{token}/owner",
    "attempts/{token}.0.0/start.json", "attempts/{token}.0.0/end.json", "attempts/{token}.0.0/first_failure.json",
    "attempts/{token}.0.0/stopped", "attempts/{token}.0.0/node-0.ranks",
    "attempts/{token}.0.0/training.json",
    "attempts/{token}.0.0/log-clock", "attempts/{token}.0.0/log-start", "attempts/{token}.1.0/end.json",
    "checkpoints/latest", "checkpoints/step-00000100/meta.json",
)  # fmt: skip
FOLDERS = ("submissions", "claims", "claims/{token}", "attempts", "attempts/{token}.0.0", "checkpoints", "")
NAMES = (
    "copy",
    ".hidden",
    "a b",
    "-rf",
    "x" * 200,
    "20260101-010203-abcde",
    "20260101-010203-ABCDEF",
    "\udcff\udcfe",
    "{0}",
)


class Generator:
    """Run folders below one project, each of which may be of another user, of another type, or wrong in some places."""

    def __init__(self, town: Town, seed: int) -> None:
        self.town, self.seed = town, seed
        self.dice = random.Random(seed)

    def make(self, runs: Path, number: int) -> tuple[str, str]:
        """One run folder; returns its run id and its job id."""
        dice = self.dice
        run_id = f"20260101-{number // 3600 % 24:02}{number // 60 % 60:02}{number % 60:02}-{new_token()[:6]}"
        job_id = dice.choice([str(5_000_000 + number), str(5_000_000 + number // 2), f"L{5_000_000 + number}", ""])
        folder = runs / run_id
        token = new_token()
        for name in FOLDERS:
            (folder / name.format(token=token)).mkdir(parents=True, exist_ok=True)
        for name, text in self._whole(folder, run_id, token, job_id).items():
            (folder / name).write_text(text)
        self.town.a.own(folder)
        for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
            with contextlib.suppress(
                OSError, ValueError, TypeError, IndexError
            ):  # what one change took away, the next cannot change
                dice.choice([self._value, self._value, self._raw, self._kind, self._kind, self._mode, self._owner,
                             self._folder, self._name])(folder, token)  # fmt: skip
        return run_id, job_id or run_id

    def _whole(self, folder: Path, run_id: str, token: str, job_id: str) -> dict[str, str]:
        local = job_id.startswith("L")
        cluster = "local" if local else self.town.lab.cluster_name
        record = {
            "version": 1, "run_id": run_id, "root": str(folder.parents[2]), "name": "train", "what": "train.py",
            "scheduler": "local" if local else "slurm", "cluster": cluster, "user": self.town.a.name,
            "at": 1_700_000_000,
            "nodes": 1, "workers_per_node": 1, "shared": False, "sources": {"nodes": [1, "flag"]},
        }  # fmt: skip
        final = self.dice.choice([None, None, {"state": "COMPLETED", "exit_status": 0, "ended": 1_700_000_100}])
        submission = {
            "version": 1, "token": token, "state": "accepted" if job_id else "submitting", "job_id": job_id,
            "at": 1_700_000_000, "submitter": ["", 0, 0], "cancel_asked": 0, "final": final,
        }  # fmt: skip
        end = {"version": 1, "status": 1, "signal": "", "reason": "", "due": "", "cluster": cluster, "job": job_id,
               "restart": 0, "launch": 0, "time": 1_700_000_100, "unmarked": 0}  # fmt: skip
        start = {"version": 1, "world_size": 1, "backend": "gloo", "time": 1_700_000_050.5, "torch": "2",
                 "ranks": [{"rank": 0, "local_rank": 0, "node_rank": 0, "node": "n", "host": "n", "pid": 1, "task": 0,
                            "device": "cpu"}]}  # fmt: skip
        failure = {"version": 1, "rank": 0, "node": "n", "error": "ValueError: no", "time": 1_700_000_090, "status": 1}
        step = {"step": 1, "loss": 2.5, "time": 1_700_000_080, "tokens_per_s": 10}
        attempt = f"attempts/{token}.0.0"
        return {
            "record.json": json.dumps(record), "spec.json": json.dumps({"version": 1, "workdir": "/",
            "sbatch_args": []}),
            "script.sh": f"#!/bin/bash\n{self.town.mark('generated')}\n",
            f"submissions/{token}.json": json.dumps(submission),
            f"claims/{token}/owner": f"{cluster} {job_id or 7} 0\n", f"{attempt}/start.json": json.dumps(start),
            **({f"{attempt}/end.json": json.dumps(end)} if self.dice.random() < 0.6 else {}),
            f"{attempt}/first_failure.json": json.dumps(failure),
            "metrics.jsonl": json.dumps(step) + "\n", "attempt_number": "1\n", f"{attempt}/log-start": "0 0\n",
        }  # fmt: skip

    def _path(self, folder: Path, token: str) -> Path:
        return folder / self.dice.choice(FILES).format(token=token)

    def _value(self, folder: Path, token: str) -> None:
        """One value of a file that is right otherwise, or one key that is missing."""
        name = self.dice.choice([f"submissions/{token}.json", "record.json", "record.json",
        f"attempts/{token}.0.0/end.json",
                                 f"attempts/{token}.0.0/start.json", f"attempts/{token}.0.0/first_failure.json",
                                 "metrics.jsonl", "spec.json"])  # fmt: skip
        path = folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 20:
            return  # an earlier change made it something else
        data = json.loads(path.read_text())
        key = self.dice.choice(list(data))
        if self.dice.random() < 0.1:
            del data[key]
        else:
            data[key] = self.dice.choice(VALUES)
        path.write_text(json.dumps(data) + "\n")

    def _raw(self, folder: Path, token: str) -> None:
        path = self._path(folder, token)
        path.unlink(missing_ok=True)  # an earlier change may have made it a FIFO, or a link
        path.write_bytes(self.dice.choice(RAW))
        self.town.a.own(path)

    def _kind(self, folder: Path, token: str) -> None:
        """Another type of file in the place of one."""
        path = self._path(folder, token)
        path.unlink(missing_ok=True)
        a, b = self.town.a.home, self.town.b.home
        kind = self.dice.choice(["fifo", "socket", "device", "folder", "link", "hard link", "huge", "none"])
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        elif kind == "device":
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, self.dice.choice([3, 5, 7])))
        elif kind == "folder":
            path.mkdir()
        elif kind == "link":
            aims = ["/dev/zero", "/dev/tty", "/proc/self/mem", str(a / "settings.json"), str(a / "secret.txt"),
            str(path),
                    str(b / "record.json"), "/nowhere", "..", "/proc/self/fd/0"]  # fmt: skip
            path.symlink_to(self.dice.choice(aims))
            return
        elif kind == "hard link":
            path.hardlink_to(a / "settings.json")
        elif kind == "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        if path.exists() and kind != "hard link":
            self.town.a.own(path)

    def _mode(self, folder: Path, token: str) -> None:
        name = self.dice.choice([*FILES, *FOLDERS]).format(token=token)
        (folder / name).chmod(self.dice.choice([0o000, 0o777, 0o666, 0o2775, 0o200, 0o100, 0o444, 0o1777, 0o4755]))

    def _owner(self, folder: Path, token: str) -> None:
        name = self.dice.choice([*FILES, *FOLDERS, "", ""]).format(token=token)
        who: Person = self.dice.choice([self.town.b, self.town.c])
        if (folder / name).is_dir() and self.dice.random() < 0.5:
            who.own(folder / name)
        else:
            os.lchown(folder / name, self.dice.choice([who.user.uid, 0, 54321]), who.user.gid)

    def _folder(self, folder: Path, token: str) -> None:
        """A folder that is a link (into itself, into a's home, into another run), or not there, or a file."""
        path = folder / self.dice.choice(FOLDERS).format(token=token)
        away = self.town.folder / "away" / f"{folder.name}-{path.name}"
        away.parent.mkdir(exist_ok=True)
        path.rename(away)
        kind = self.dice.choice(["none", "link", "link", "link", "file", "cycle"])
        if kind == "link":
            aims = [
                away,
                self.town.a.home,
                self.town.a.home / "rc.d",
                self.town.b.home,
                folder.parent,
                Path("/proc/self"),
            ]
            path.symlink_to(self.dice.choice(aims))
        elif kind == "file":
            path.write_text("{}")
        elif kind == "cycle":
            path.symlink_to(path)

    def _name(self, folder: Path, token: str) -> None:
        folder.rename(folder.with_name(self.dice.choice(NAMES).format(self.dice.random())))
