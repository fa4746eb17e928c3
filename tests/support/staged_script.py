"""A staged run whose script is started here by bash, as a scheduler would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterrun.jobspec.render import Places, RunIdentity
from clusterrun.jobspec.spec import Command, Work
from clusterrun.submit.job_python import WORKER
from tests.support.rendered_scripts import make_script, make_spec
from tests.support.submit_tools import SHIPPED, light_template

TOKEN = "k3v7qaabcdefghij"
NOTHING = Command("true")
SURROUNDINGS = ("SLURM", "CLUSTERRUN_", "MASTER_", "TORCHELASTIC_")


@dataclass(frozen=True)
class Staged:
    """A run's folder as the login side left it; `start` runs its script."""

    run_dir: Path
    script: Path
    submission: Path

    @property
    def attempt(self) -> Path:
        return self.run_dir / "attempts" / f"{TOKEN}.0.0"

    def end(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.attempt / "end.json").read_text())
        return found

    def start(
        self, environ: Mapping[str, str] | None = None, *, stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(SURROUNDINGS)}
        return subprocess.Popen(
            ["bash", str(self.script)], env=clean | {"CLUSTERRUN_LOCAL_JOB_ID": "L1", **(environ or {})},
            cwd=self.run_dir.parent, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True,
        )  # fmt: skip

    def run(self, environ: Mapping[str, str] | None = None, status: int = 0) -> str:
        """Run it and return its output; fails on another exit status."""
        process = self.start(environ)
        out, err = process.communicate(timeout=150)
        assert process.returncode == status, f"{process.returncode}\n{out}\n{err}"
        return out + err


def stage(
    folder: Path, work: Work = NOTHING, *, body: str = "", local: bool = True, umask: int = 0o022,
    change: tuple[str, str] = ("", ""), **options: Any,
) -> Staged:  # fmt: skip
    """Stage a run; with `body` these lines of bash stand for the ranks. `change` replaces a text of the template."""
    run_dir = folder / "run"
    for name in ("submissions", "claims", "attempts"):
        (run_dir / name).mkdir(parents=True, mode=0o700)
    os.chmod(run_dir, 0o750 if options.get("shared") else 0o700)
    template = light_template(folder, body) if body else folder / "my.j2"
    text = (template if body else SHIPPED).read_text()
    assert change[0] in text
    template.write_text(text.replace(*change) if change[0] else text)
    spec = make_spec(work, python=sys.executable, template=str(template), **options)
    places = Places(workdir=folder, logs=folder, worker=WORKER, umask=umask)
    script = run_dir / "script.sh"
    script.write_text(make_script(spec, local=local, identity=RunIdentity("run1", run_dir, TOKEN), places=places))
    submission = run_dir / "submissions" / f"{TOKEN}.json"
    submission.write_text("{}")
    return Staged(run_dir, script, submission)
