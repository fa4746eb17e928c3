"""Which job a run is on a real cluster: renamed, submitted twice, on another cluster, in a moved project."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Lab
from tests.support.installed_command import Site, until
from tests.support.patience import HUNG
from tests.support.submit_tools import NEVER, light, runs_of, wrap_sbatch

MakeSite = Callable[[Lab | None], Site]


@pytest.fixture
def both(lab: Lab, lab_no_accounting: Lab, new_site: MakeSite) -> list[Site]:
    """A user on a cluster with accounting, and one on a cluster without: what either waits for passes at once."""
    return [new_site(lab), new_site(lab_no_accounting)]


def slurm(site: Site, *words: str) -> str:
    """The answer of one of Slurm's commands."""
    assert site.lab is not None
    done = site.lab.run(words)
    assert done.returncode == 0, f"{site.lab.name}: {done.stderr}"
    return done.stdout


def rename(site: Site, job_id: str) -> None:
    slurm(site, "scontrol", "update", f"JobId={job_id}", "JobName=site-rule")


# -- renamed -------------------------------------------------------------------------------------------------------


def test_a_renamed_job_is_known_listed_once_and_cancelled(both: list[Site], template: Path) -> None:
    jobs = [(site, "PENDING", light(site, template, NEVER)) for site in both]
    jobs += [(site, "RUNNING", site.rank("sleeps.sh", arguments=["600"])) for site in both]
    for site, state, job in jobs:
        site.wait_state(job, state)
        rename(site, job.id)
        found = site.state(job)
        assert (found["state"], found["source"]) == (state, "squeue")
        assert [row["job_id"] for row in site.json("list") if row["job_id"] == job.id] == [job.id]
        assert site.cli("cancel", job.id).stdout == f"Cancelled {job.id}\n"
    for site, _, job in jobs:
        site.wait_state(job, "CANCELLED")


def test_a_renamed_job_that_ended_is_known(both: list[Site], template: Path) -> None:
    jobs = [(site, light(site, template, NEVER)) for site in both]
    for site, job in jobs:
        rename(site, job.id)
        slurm(site, "scontrol", "update", f"JobId={job.id}", "StartTime=now")
    for site, job in jobs:
        assert site.cli("wait", job.id).returncode == 0
        assert site.state(job)["outcome"] == "done"


def test_a_plugin_that_renames_at_submit_makes_no_second_job(both: list[Site], template: Path, tmp_path: Path) -> None:
    """sbatch's answer is lost and the job bears another name: its script tells whose it is."""
    answer = 'echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1'
    body = f'real --job-name=renamed "$@" >/dev/null; {answer}'
    for site in both:
        path = wrap_sbatch(tmp_path, body, site.env["PATH"])
        job = light(site, template, NEVER, env={"PATH": path})
        names = slurm(site, "squeue", "--noheader", "--format=%A|%j|%o").splitlines()
        mine = [line for line in names if line.endswith(f"|{job.run_dir}/script.sh")]
        assert mine == [f"{job.id}|renamed|{job.run_dir}/script.sh"]
        assert site.state(job)["state"] == "PENDING"


# -- submitted twice -------------------------------------------------------------------------------------------------


def test_two_recovers_at_once_make_one_job_and_cancel_ends_every_copy(
    both: list[Site], template: Path, tmp_path: Path
) -> None:
    recovers = []
    for site in both:
        refuse = wrap_sbatch(tmp_path, "kill -KILL $PPID; sleep 60", site.env["PATH"])
        site.start("submit", *site.scheduler, "--gpus-per-node", "0", "--template", str(template), NEVER, "--", "true",
                   env={"PATH": refuse}).wait(timeout=HUNG)  # fmt: skip
        (run_dir,) = runs_of(site)
        recovers.append((site, run_dir, [site.start("submit", "--recover", run_dir.name) for _ in range(2)]))
    for site, run_dir, two in recovers:
        said = [process.communicate(timeout=120)[0] for process in two]
        assert sorted(process.returncode for process in two) in ([0, 0], [0, 75]), said
        script = f"{run_dir}/script.sh"
        lines = slurm(site, "squeue", "--noheader", "--format=%A|%o").splitlines()
        ids = [line.split("|")[0] for line in lines if line.endswith(script)]
        assert len(ids) == 1, said
        twin = slurm(site, "sbatch", "--parsable", NEVER.removeprefix("--sbatch-arg="), script).strip()
        assert site.cli("cancel", run_dir.name).returncode == 0
        left = slurm(site, "squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%A").split()
        assert not {ids[0], twin} & set(left)


# -- two clusters, one home --------------------------------------------------------------------------------------------


@pytest.fixture
def two(lab: Lab, lab_no_accounting: Lab, new_site: MakeSite) -> tuple[Site, dict[str, str]]:
    """A user on one cluster, and the environment that leads the same user to another."""
    return new_site(lab), {"SLURM_CONF": lab_no_accounting.env["SLURM_CONF"]}


def test_list_and_selectors_mean_the_cluster_at_hand(two: tuple[Site, dict[str, str]], template: Path) -> None:
    site, other = two
    for _ in range(2):
        light(site, template, NEVER)
    there = light(site, template, NEVER, env=other)
    first = site.state(there, env=other)["cluster"]
    shown = site.cli("list", "--json", env=other)
    assert [row["job_id"] for row in ours(site, shown.stdout)] == [there.id]
    assert "not shown: 2 jobs on other clusters" in shown.stderr and "--all-clusters" in shown.stderr
    runs = ours(site, site.cli("list", "--json", "--all-clusters", env=other).stdout)
    assert len(runs) == 3 and len({row["cluster"] for row in runs}) == 2
    done = site.cli("cancel", "--all", "--yes", env=other)
    assert f"Cancelled {there.id}" in done.stdout
    assert {row["state"] for row in site.listed()} == {"PENDING"}, "those of the first cluster wait on"
    assert first == there_cluster(site, other)


def test_a_cluster_out_of_reach_is_listed_and_each_cluster_has_its_profile(
    two: tuple[Site, dict[str, str]], template: Path
) -> None:
    site, other = two
    names = [there_cluster(site, env) for env in ({"SLURM_CONF": site.env["SLURM_CONF"]}, other)]
    tables = [
        f'[profile.{key}]\ncluster = "{name}"\ncomment = "{key}"\n' for key, name in zip("ab", names, strict=True)
    ]
    (site.project / "clusterrun.toml").write_text("".join(tables))
    here, there = light(site, template, NEVER), light(site, template, NEVER, env=other)
    for env, job, key in (({}, here, "a"), (other, there, "b")):
        record = json.loads((job.run_dir / "record.json").read_text())
        assert record["sources"]["comment"] == [key, f"clusterrun.toml [profile.{key}]"]
        refused = site.cli("submit", "--profile", "ba"[key == "b"], "--", "true", env=env, status=2)
        assert "this shell is configured for" in refused.stderr
    shown = site.cli("list", "--json", "--cluster", names[1])
    assert [row["job_id"] for row in ours(site, shown.stdout)] == [there.id]
    assert shown.stderr.count("\n") == 1 and f"cannot reach cluster {names[1]}" in shown.stderr
    at_hand = site.cli("list", "--json", "--cluster", names[1], env=other)
    (row,) = ours(site, at_hand.stdout)
    assert (row["job_id"], row["state"], at_hand.stderr) == (there.id, "PENDING", "")


def ours(site: Site, envelope: str) -> list[dict[str, Any]]:
    """The rows of a list that are runs of the site's project; other tests' jobs are in the same queue."""
    return [row for row in json.loads(envelope)["data"] if (row["run_dir"] or "").startswith(str(site.project))]


def there_cluster(site: Site, env: dict[str, str]) -> str:
    assert site.lab is not None
    conf = Path(env["SLURM_CONF"]).read_text()
    return next(line.partition("=")[2] for line in conf.splitlines() if line.startswith("ClusterName="))


def use_up_ids(site: Site, count: int, env: dict[str, str]) -> None:
    """Submit so many jobs that never start, by sbatch alone."""
    assert site.lab is not None
    for _ in range(count):
        done = site.lab.run(["sbatch", "--parsable", "--hold", "--wrap=true"], env=env)
        assert done.returncode == 0, done.stderr


def test_the_same_id_on_two_clusters_means_the_one_at_hand(two: tuple[Site, dict[str, str]], template: Path) -> None:
    site, other = two
    here, there = light(site, template, NEVER), light(site, template, NEVER, env=other)
    while here.id != there.id:  # ids rise on each cluster: let the lower one catch up
        env = {} if int(here.id) < int(there.id) else other
        use_up_ids(site, abs(int(here.id) - int(there.id)) - 1, env)
        if env:
            there = light(site, template, NEVER, env=env)
        else:
            here = light(site, template, NEVER)
    assert site.state(here)["run_dir"] == str(here.run_dir)
    assert site.state(there, env=other)["run_dir"] == str(there.run_dir)


# -- moved -------------------------------------------------------------------------------------------------------------


def test_a_moved_project_keeps_its_runs_and_logs(both: list[Site]) -> None:
    jobs = [(site, site.rank("says_hello.sh")) for site in both]
    for site, job in jobs:
        site.wait_end(job)
        moved = site.project.with_name("moved")
        shutil.move(site.project, moved)
        said = site.cli("logs", job.id, cwd=moved)
        assert "hello" in said.stdout
        until(lambda s=site, j=job, m=moved: s.json("status", j.id, cwd=m)[0]["outcome"] == "done", 60, pause=0.5)
        shutil.move(moved, site.project)
