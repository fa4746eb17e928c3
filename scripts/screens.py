"""Capture the command line's screens as plain text into docs/screens: `python -m scripts.screens`.

Real jobs on a lab of its own: one that trains, one that waits, one that is held, one that failed. Each verb is then
shown on a terminal of 80 and of 200 columns, dark and light. Colours are not in the text: that the light and the dark
capture of a still screen are equal shows that nothing depends on colour alone. A missing verb is skipped with a note.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

from clusterrun.cli import VERBS
from lab.cluster import Lab
from tests.support.installed_command import CLUSTERRUN, Job, Site
from tests.support.patience import until

HOME = Path("/tmp/demo")  # appears in the captures: a neutral place
OUT = Path(__file__).resolve().parents[1] / "docs" / "screens"
SIZES = {80: 24, 200: 40}
THEMES = {"dark": "15;0", "light": "0;15"}  # COLORFGBG, by which a terminal announces it
ESCAPES = re.compile(r"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_=>]")


def main() -> None:
    """Bring the lab up, start the jobs, capture everything, and take it all down again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verbs", nargs="*", help="only these (default: list status why free top)")
    wanted = parser.parse_args().verbs or ["list", "status", "why", "free", "top"]
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    OUT.mkdir(parents=True, exist_ok=True)
    with Lab(name="gpu") as lab:
        site = Site(HOME, lab)
        try:
            capture(wanted, site, start_jobs(site))
        finally:
            site.close()


def start_jobs(site: Site) -> dict[str, Job]:
    """Start the jobs of the screens, and wait until each is in its state."""
    (site.project / "broken.py").write_text("import torchvison\n")
    two_by_two = ("--nodes", "2", "--tasks-per-node", "2", "--gpus-per-node", "0")
    train = ("--set", "steps=4000", "--set", "eval_every=0")
    jobs = {"failed": site.submit(*two_by_two, "--job-name", "typo", "--", "broken.py")}
    site.wait_end(jobs["failed"])
    jobs["running"] = site.submit(*two_by_two, "--time", "2:00:00", *train)
    jobs["waiting"] = site.submit(
        *two_by_two, "--job-name", "next", f"--sbatch-arg=--dependency=afterok:{jobs['running'].id}", *train
    )
    jobs["held"] = site.submit(*two_by_two, "--job-name", "later", "--sbatch-arg=--hold", *train)
    site.wait_joined(jobs["running"])
    metrics = jobs["running"].run_dir / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 4, 120)
    return jobs


def capture(wanted: list[str], site: Site, jobs: dict[str, Job]) -> None:
    """Write a file for each screen."""
    screens: dict[str, tuple[str, ...]] = {
        "list": ("list", "--all"),
        "status": ("status", jobs["running"].id),
        "why-waiting": ("why", jobs["waiting"].id),
        "why-failed": ("why", jobs["failed"].id),
        "free": ("free",),
    }
    for width, height in SIZES.items():
        for theme, colours in THEMES.items():
            for name, words in screens.items():
                if words[0] not in wanted:
                    continue
                if words[0] not in VERBS:
                    print(f"left out, as there is no such verb: {words[0]}", file=sys.stderr)
                    continue
                write(f"{name}-{width}-{theme}", typed(site, words, width, height, colours))
            if "top" in wanted:
                for name, text in top(site, jobs["running"], (width, height), theme).items():
                    write(f"{name}-{width}-{theme}", text)


def typed(site: Site, words: tuple[str, ...], width: int, height: int, colours: str) -> str:
    """Return a command line and what it prints on a terminal of that size."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    env = {**site.env, "TERM": "xterm-256color", "COLORFGBG": colours}
    process = subprocess.Popen(
        [*CLUSTERRUN, *words],
        cwd=site.project,
        env=env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    raw = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # how Linux reports that all writers are closed
            break
        if not data:
            break
        raw += data
    os.close(master)
    process.wait()
    return f"$ clusterrun {' '.join(words)}\n" + ESCAPES.sub("", raw.decode(errors="replace")).replace("\r\n", "\n")


def top(site: Site, job: Job, size: tuple[int, int], theme: str) -> dict[str, str]:
    """Return the screens of `top`: all jobs, and one job."""
    from clusterrun.cluster import Cluster
    from clusterrun.top.app import Top
    from clusterrun.top.source import TopData

    async def look() -> dict[str, str]:
        cluster = Cluster(cwd=site.project, environ=site.env)
        run = cluster.find(job.id).run
        app = Top(TopData(cluster, run), theme=theme, selected=run.run_id if run else "")
        async with app.run_test(size=size) as pilot:
            while "training" not in (one := screen(app)):
                await pilot.pause(0.2)
            await pilot.pause(2)
            one = screen(app)
            await pilot.press("escape")
            await pilot.pause(1)
            everything = screen(app)
            await pilot.press("up", "e")  # the job that waits for this one
            while "means" not in screen(app):
                await pilot.pause(0.2)
            return {"top-job": one, "top": everything, "top-explain": screen(app)}

    return asyncio.run(look())


def screen(app: Any) -> str:
    """Return the text on the app's screen, as textual's own screenshots find it."""
    from rich.console import Console

    width, height = app.size
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=True, record=True,
                      color_system="truecolor", legacy_windows=False, safe_box=False)  # fmt: skip
    console.print(app.screen._compositor.render_update(full=True))
    return console.export_text()


def write(name: str, text: str) -> None:
    """Write a capture, without blanks at the ends of lines."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
    print(f"docs/screens/{name}.txt")


if __name__ == "__main__":
    main()
