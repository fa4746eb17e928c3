"""The rows of docs/guides.md: `python -m tests.guides` types their commands on a lab of two nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lab.cluster import Lab
from tests.support.folders import ROOT
from tests.support.installed_command import ALLREDUCE, CLUSTERRUN, Site
from tests.support.typed_lines import FILES, make_project

SHOWN = ROOT / "tests" / "data" / "guides_shown.txt"
LIMIT = 600  # seconds for a command, and for a job
SMALL = "set.steps = 20\nset.vocab = 300\nset.seq_len = 32\nset.eval_samples = 32\nset.log_every = 5\n"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: what a guide does, the cell with clusterrun's commands, the notes, and what shows it."""

    number: int
    guide: str
    cell: str
    notes: str
    shown: list[str]

    @property
    def commands(self) -> list[str]:
        return re.findall(r"`(clusterrun [^`]+)`", self.cell)

    @property
    def tests(self) -> list[str]:
        return [name for name in self.shown if name != "lab"]

    @property
    def missing(self) -> str:
        return self.notes.partition("missing: ")[2]

    @property
    def on_lab(self) -> bool:
        return "lab" in self.shown


def rows() -> dict[int, Row]:
    """Return the rows by number; tests/data/guides_shown.txt has the number, `lab` if typed there, tests."""
    shown = dict(line.partition(" ")[::2] for line in SHOWN.read_text().splitlines())
    found = {}
    for line in (ROOT / "docs" / "guides.md").read_text().splitlines():
        if re.match(r"\| \d+ \|", line):
            number, guide, cell, notes = (part.strip() for part in line.strip("|").split("|"))
            found[int(number)] = Row(int(number), guide, cell, notes, shown[number].split())
    return found


def _ranks(count: int) -> tuple[str, ...]:
    """Return what the logs of the guides' scripts have if that many ranks form one group."""
    return (rf"rank {count - 1} of {count}: sum {count * (count + 1) // 2}\b",)


#: Patterns that the output of a row's commands and the logs of its jobs must have.
EXPECTED: dict[int, tuple[str, ...]] = {
    1: _ranks(4),
    2: _ranks(4),
    3: ("num_machines: 2", "num_processes: 8"),
    4: _ranks(4),
    5: (*_ranks(4), r"--local-rank=3', '--distributed'"),
    6: _ranks(8),
    7: _ranks(8),
    8: ("step 20/20", r"rendezvous \S+:\d+"),
    9: ("sets num_machines to 1, but the job uses 2",),
    10: (*_ranks(2), "left out: CUDA_VISIBLE_DEVICES"),
    11: (*_ranks(4), "'--data_dir', 'shakespeare', '--fp16'"),
    12: _ranks(1),
    15: ("backend: gloo expected, gloo used",),
    16: _ranks(2),
    19: (r"(?m)^4\t8\t2\t1\t",),
    20: (r"(?m)^4\t1,024\t128\t2\t",),
    21: (r"7,375\t7,375", r"3,688\t3,687", r"1,844\t1,843", r"922\t921"),
    22: (r"\t50%", r"\t25%", r"\t12.5%"),
    23: (r"1\.25e-6", r"2\.5e-6", r"5\.0e-6", r"1\.0e-5"),
    24: ("below 256.*try the original learning rate first", "WARM-UP"),
    25: (r"samples: \d+ in the first epoch, each on exactly one rank",),
    26: ("COMPLETED", "step-00000020"),
    30: (r'"step": 0, "prompt"', r'"step": 20, "prompt"'),
    32: ("= 5.00 epochs", r"model written to \S*checkpoints_pretrained"),
    33: (
        *_ranks(4),
        r"'--train-data', 'train1.csv', 'train2.csv', '--formatter', 'hisco'",
        r"step 20/20.*accuracy_\w+ [\d.]+",
        r"step 20/20.*exact_sequence [\d.]+",
    ),
    37: ("Distributed environment: MULTI_CPU", "processes: 4 expected, 4 joined"),
    38: (r"model tiny: [\d.]+ M parameters, vocabulary \d+", r"global batch \d+ = micro batch \d+ x 4 ranks"),
    39: ("all-reduce over 8 ranks", "4 expected, 4 joined", r"steps per epoch: \d+ expected"),
    41: ("COMPLETED",),
    43: (*_ranks(2),),
    44: ("NCCL_TREE_THRESHOLD=0 has no effect",),
    45: ("grad_accum_steps=2 lr=0.001 warmup=15", "x 2 accumulation steps"),
    46: ("same loss at step 20, within 2%",),
    47: (r"8\t1\t[\d,]+\t8\.0x", r"LIMITED BY\n(.*\n)+?2\t2\t[\d,]+\t[\d.]+x.*"),
    48: (r"8\t1\t\S+\t\S+\t100%", r"16\t2\t\S+\t\S+\t59%"),
    49: ("RUNG", "same loss at step 20"),
    50: ("step 5/5",),
    51: ("global batch 16 = micro batch 2 x 2 ranks x 4 accumulation steps",),
    52: ("128 GB on every GPU", r"A100-80GB.*\n.*\tno"),
    53: ("all-reduce over 8 ranks",),
    55: ("step 20/20", r"model LLaDA-8B-Base: [\d.]+ M parameters", r"model written to \S+"),
    56: ("step 20/20", r"TRL: 4 steps on 2 ranks"),
    57: (r"samples: \d+ in the first epoch, each on exactly one rank",),
    58: ("same loss at step 20, within 2%",),
}


class Guides:
    """The project of the guides on a lab: it types the commands of rows and keeps what they print."""

    def __init__(self, site: Site) -> None:
        self.site = site
        from tests.worker.small_llada import make_llada  # imports torch

        make_project(site.project)
        for name in FILES:
            if not FILES[name] and name.endswith(".py"):
                shutil.copy(ALLREDUCE, site.project / name)
        for task in ("lm", "sft", "diffusion", "classify", "debug"):
            name = "lm" if task == "debug" else task
            (site.project / "jobs").mkdir(exist_ok=True)
            (site.project / "jobs" / f"{task}.toml").write_text(f'task = "{name}"\n{SMALL}')
        (site.project / "shakespeare_processed").mkdir()
        (site.project / "shakespeare_processed" / "play.txt").write_text("To be, or not to be.\n" * 60)
        make_llada(site.project / "LLaDA-8B-Base")
        shutil.copy(ROOT / "tests" / "data" / "train_trl.py", site.project)
        bin_dir = Path(CLUSTERRUN[0]).parent
        self.env = site.env | {"PATH": f"{bin_dir}:{site.env['PATH']}", "TRL_PACKAGES": str(ROOT / "build" / "trl")}
        self._printed: dict[str, tuple[int, str]] = {}

    @cached_property
    def job(self) -> str:
        """The id of a job of 2 nodes x 2 ranks that has trained; it stands for JOBID."""
        _, text = self.type("clusterrun submit lm --nodes 2 --gpus-per-node 0 --tasks-per-node 2")
        return _job(text)

    def run(self, row: Row) -> str:
        """Type a row's commands in their order; return what matched the patterns. Raises AssertionError."""
        printed, line, refused = "", "", False
        for command in row.commands:
            assert line in ("", command), f"the refusal names another line: {line}"
            status, text = self.type(command.replace("JOBID", self.job) if "JOBID" in command else command)
            assert status in (0, 2), text
            refused = refused or status == 2
            line = text.partition("hint: ")[2].strip() if status == 2 and "hint: clusterrun " in text else ""
            printed += text
        assert refused == ("is refused" in row.cell), printed
        if "# on node 0" in printed:
            printed += self.by_hand(printed)
        found = [re.search(pattern, printed) for pattern in EXPECTED[row.number]]
        assert all(found), f"not all of {EXPECTED[row.number]} in:\n{printed}"
        return "; ".join(" ".join(match[0].split()) for match in found if match)

    def type(self, command: str) -> tuple[int, str]:
        """Type a command as it stands; return its status, what it printed, and the logs and samples of its job.

        A command that another row has typed already is not typed again.
        """
        if command not in self._printed:
            done = self._bash(["bash", "-c", command])
            text = done.stdout
            if (job := _job(text)) and done.returncode == 0:
                waited = self._bash([*CLUSTERRUN, "wait", job])
                text += waited.stdout + "".join(
                    path.read_text() for path in sorted((self.site.project / "logs").glob(f"train_{job}.*"))
                )
                assert waited.returncode == 0, text
                run_dir = Path(self.site.state(job)["run_dir"])
                text += "".join(path.read_text() for path in run_dir.glob("samples.jsonl"))
                text += "".join(f"{path}\n" for path in sorted(self.site.project.glob("ckpt/step-*")))
            self._printed[command] = done.returncode, text
        return self._printed[command]

    def by_hand(self, printed: str) -> str:
        """Type the lines of `render --per-node-commands` on the lab's first nodes; return what both printed."""
        lab = self.site.lab
        assert lab is not None
        common, *nodes = re.split(r"# on node \d+\n", printed.replace("ADDRESS_OF_NODE_0", lab.node_names[0]))
        with ThreadPoolExecutor(len(nodes)) as pool:
            shells = []
            for node, lines in zip(lab.node_names, nodes, strict=False):
                shell = ["unshare", "--uts", "bash", "-c", f"hostname {node}\n{common}{lines}"]
                shells.append(pool.submit(lab.on_node, node, shell, timeout=LIMIT))
            return "".join(shell.result().stdout for shell in shells)

    def _bash(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=self.site.project, env=self.env, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
        )  # fmt: skip


def _job(text: str) -> str:
    """Return the id of the job that a command submitted, empty if it submitted none."""
    match = re.search(r"(?m)^Submitted job (\w+)", text)
    return match[1] if match else ""


def main() -> int:
    """Print the rows with the given numbers (default: all), with what their commands printed; 1 if one failed."""
    chosen = [row for row in rows().values() if str(row.number) in (sys.argv[1:] or [str(row.number)])]
    failed, began = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Lab(name=f"g{os.getpid()}", nodes=2) as lab:
        guides = Guides(Site(Path(folder), lab))
        for row in chosen:
            start, result = time.monotonic(), "; ".join(row.tests)
            if row.on_lab:
                try:
                    result = f"ok: {guides.run(row)} ({time.monotonic() - start:.0f} s)"
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    result = f"FAILED: {error}"
            missing = f"; missing: {row.missing}" if row.missing else ""
            print(f"{row.number:>2}  {'; '.join(row.commands) or row.cell}\n    {result}{missing}", flush=True)
    typed = sum(row.on_lab for row in chosen)
    print(f"{len(chosen)} rows: {typed} typed on the lab, {failed} failed, {len(chosen) - typed} shown by tests, "
          f"{sum(bool(row.missing) for row in chosen)} with a part missing; "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
