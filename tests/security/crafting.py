"""Run folders that an attacker crafts: whole and plausible, but for what the attack needs."""

from __future__ import annotations

import json
import os
import secrets
import time
from base64 import b32encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.security.people import Person, Town

RUN_ID = "20260101-010203-abcdef"


def new_token() -> str:
    return b32encode(secrets.token_bytes(10)).decode().lower()


@dataclass
class Crafted:
    """A run folder in the making; `write` puts it down as the owner's.

    `record` and `submission` are changes of the two files, `claim` is the text of the claim, None for no claim.
    `extra` are more files by name: a text, or a path where a link shall lead.
    """

    folder: Path
    owner: Person
    cluster: str
    run_id: str = RUN_ID
    token: str = field(default_factory=new_token)
    job_id: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)
    claim: str | None = None
    script: str = "#!/bin/bash\n"
    extra: Mapping[str, str | Path] = field(default_factory=dict)
    submissions: Path | None = None

    @property
    def root(self) -> Path:
        """The project, where the folder stands in one."""
        return self.folder.parents[2] if self.folder.parent.name == "runs" else self.folder

    def write(self) -> Path:
        for name in ("claims", "attempts"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        record = {
            "version": 1, "run_id": self.run_id, "root": str(self.root), "name": "train", "what": "script train.py",
            "scheduler": "slurm", "cluster": self.cluster, "user": self.owner.name, "at": int(time.time()) - 60,
            "nodes": 1, "workers_per_node": 1, "shared": True, "sources": {}, **self.record,
        }  # fmt: skip
        submission = {
            "version": 1, "token": self.token, "state": "accepted" if self.job_id else "submitting",
            "job_id": self.job_id, "at": int(time.time()) - 600, "submitter": ["", 0, 0], "cancel_asked": 0,
            "final": None, **self.submission,
        }  # fmt: skip
        (self.folder / "record.json").write_text(json.dumps(record))
        spec = {"version": 1, "workdir": str(self.root), "sbatch_args": [], "directives": []}
        (self.folder / "spec.json").write_text(json.dumps(spec))
        (self.folder / "script.sh").write_text(self.script)
        (self.folder / "script.sh").chmod(0o755)
        if self.submissions is None:
            (self.folder / "submissions").mkdir(exist_ok=True)
            name = submission["token"] if "/" not in str(submission["token"]) else "first"
            (self.folder / "submissions" / f"{name}.json").write_text(json.dumps(submission))
        else:
            (self.folder / "submissions").symlink_to(self.submissions)
        if self.claim is not None:
            self.put(f"claims/{self.token}/owner", self.claim)
        for name, content in self.extra.items():
            self.put(name, content)
        for path in (self.folder, *self.folder.rglob("*")):  # whoever is lured may write here
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o777)
        self.owner.own(self.folder)
        return self.folder

    def put(self, name: str, content: str | Path) -> None:
        """A file of the folder, or a link (a path); the text "FIFO" stands for one."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() or path.is_file():
            path.unlink()
        if isinstance(content, Path):
            path.symlink_to(content)
        elif content == "FIFO":
            os.mkfifo(path)
        else:
            path.write_text(content)


Trap = Callable[[Crafted, Town], None]


def token_is_a_path(crafted: Crafted, town: Town) -> None:
    """The token is the path of a file of a's: it names the file that is replaced when an end is seen."""
    crafted.token = str(town.a.home / "settings")


def token_leads_through_a_link(crafted: Crafted, town: Town) -> None:
    crafted.token = "home/settings"
    crafted.extra = {"submissions/home": town.a.home}


def token_goes_up(crafted: Crafted, town: Town) -> None:
    crafted.token = os.path.relpath(town.a.home / "settings", crafted.folder / "submissions")


def submissions_lead_to_a_run_of_the_reader(crafted: Crafted, town: Town) -> None:
    """The reader's own submission, with a claim beside it that says it is another job's."""
    own = next((town.a.project / ".clusterrun" / "runs").iterdir(), None)
    if own is not None:
        crafted.submissions = own / "submissions"
        crafted.token = next(crafted.submissions.iterdir()).stem
        crafted.claim = f"{crafted.cluster} 4711 0\n"


def jobs_lead_to_what_a_shell_sources(crafted: Crafted, town: Town) -> None:
    """The short cut `jobs/CLUSTER/ID` is a line in a file of a's shell, and the run's id is that line."""
    crafted.run_id = f"{town.mark('sourced')} #"
    crafted.claim = f"{crafted.cluster} 4711 0\n"
    for cluster in (crafted.cluster, "local"):
        link = crafted.root / ".clusterrun" / "jobs" / cluster
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(town.a.home / "rc.d")
    crafted.owner.own(crafted.root / ".clusterrun")


def local_jobs_lead_to_what_a_shell_sources(crafted: Crafted, town: Town) -> None:
    jobs_lead_to_what_a_shell_sources(crafted, town)
    crafted.record |= {"scheduler": "local", "cluster": "local"}
    crafted.claim, crafted.job_id = "local L4711 0\n", crafted.job_id or "L4712"


def cluster_goes_up(crafted: Crafted, town: Town) -> None:
    crafted.run_id = f"{town.mark('sourced')} #"
    crafted.record |= {"cluster": str(town.a.home / "rc.d")}
    crafted.claim = f"{crafted.cluster} 4711 0\n"


def root_is_the_readers_project(crafted: Crafted, town: Town) -> None:
    """The short cut is added to a's own project, under whatever id the claim names."""
    crafted.record |= {"root": str(town.a.project)}
    crafted.claim = f"{crafted.cluster} 4711 0\n"


def root_is_the_readers_home(crafted: Crafted, town: Town) -> None:
    crafted.record |= {"root": str(town.a.home)}
    crafted.claim = f"{crafted.cluster} 4711 0\n"


def it_says_that_it_is_the_readers(crafted: Crafted, town: Town) -> None:
    crafted.record |= {"user": town.a.name}
    crafted.claim = f"{crafted.cluster} 4711 0\n"


def it_ended_well(crafted: Crafted, town: Town) -> None:
    """An end that was not seen yet is written down by whoever sees it."""
    crafted.record |= {"user": town.a.name}
    end = {"version": 1, "status": 0, "signal": "", "reason": "", "due": "", "restart": 0, "launch": 0, "time": 1}
    crafted.extra = {f"attempts/{crafted.token}.0.0/end.json": json.dumps(end)}


#: Files of a run that readers open, each below the run's folder; {token} is the submission's.
READ = (
    "record.json", "spec.json", "script.sh", "submissions/{token}.json", "submissions/second.json",
    "claims/{token}/owner", "metrics.jsonl", "samples.jsonl", "latest", "checkpoints/latest", "attempt_number",
    "attempts/{token}.0.0/start.json", "attempts/{token}.0.0/end.json", "attempts/{token}.0.0/first_failure.json",
    "attempts/{token}.0.0/stopped", "attempts/{token}.0.0/node-0.ranks",
    "attempts/{token}.0.0/log-clock", "attempts/{token}.0.0/log-start",
)  # fmt: skip


def all_else_is(content: str | Path) -> Trap:
    """Every file that a reader may open besides the record is a FIFO, or a link to a device."""

    def trap(crafted: Crafted, town: Town) -> None:
        names = [name.format(token=crafted.token) for name in READ]
        kept = ("record.json", "script.sh", f"submissions/{crafted.token}.json")
        crafted.extra = {name: content for name in names if name not in kept}

    return trap


def one_is(name: str, content: str | Path) -> Trap:
    def trap(crafted: Crafted, town: Town) -> None:
        crafted.extra = {name.format(token=crafted.token): content}

    return trap


TRAPS: dict[str, Trap] = {
    trap.__name__: trap
    for trap in (
        token_is_a_path, token_leads_through_a_link, token_goes_up, submissions_lead_to_a_run_of_the_reader,
        jobs_lead_to_what_a_shell_sources, local_jobs_lead_to_what_a_shell_sources, cluster_goes_up,
        root_is_the_readers_project, root_is_the_readers_home, it_says_that_it_is_the_readers, it_ended_well,
    )
} | {
    "record_is_a_fifo": one_is("record.json", "FIFO"),
    "submission_is_a_fifo": one_is("submissions/{token}.json", "FIFO"),
    "second_submission_is_a_fifo": one_is("submissions/second.json", "FIFO"),
    "claim_is_a_fifo": one_is("claims/{token}/owner", "FIFO"),
    "all_else_is_a_fifo": all_else_is("FIFO"),
    "record_is_endless": one_is("record.json", Path("/dev/zero")),
    "submission_is_endless": one_is("submissions/{token}.json", Path("/dev/zero")),
    "all_else_is_endless": all_else_is(Path("/dev/zero")),
}  # fmt: skip
