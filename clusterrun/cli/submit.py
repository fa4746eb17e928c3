"""``submit``: submit a job, several in a chain or a ladder, or an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common.after import after_options, find_after, plan_after
from clusterrun.cli.common.agent import check_typed
from clusterrun.cli.common.options import job_and_script, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.cli.common.submitting import How, announce, how_options, refuse_pairs, stay, submit_plan
from clusterrun.cluster import Cluster
from clusterrun.terminal.ui import Ui


@click.command()
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]")
@spec_options
@after_options
@how_options
@click.option("--chain", is_flag=True, help="Submit several job files, each starting after the previous one succeeds.")
@click.option(
    "--ladder",
    is_flag=True,
    help="Run the job with one process, then on one node, then on all nodes; report the speed-up.",
)
@click.option(
    "--array", "array", metavar="INDEXES", help="Submit an array of runs, with indexes as for sbatch --array (0-99%8)."
)
@click.option("--recover", metavar="RUN_ID", help="Finish a submission that was interrupted or exited with code 75.")
@json_option
@click.pass_context
def submit(
    ctx: click.Context, /, words: tuple[str, ...], profile: str | None, after: tuple[str, ...],
    after_ok: tuple[str, ...], follow: bool, wait: bool, dry_run: bool, as_script: bool, no_check: bool, chain: bool,
    ladder: bool, array: str | None, recover: str | None, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit a job file, your own script, or the default job.

    \b
      clusterrun submit --nodes 2 --gpus-per-node 4                    the default job
      clusterrun submit sft --time 2:00:00                             jobs/sft.toml
      clusterrun submit --nodes 2 --gpus-per-node 4 -- train.py --lr 1e-4
      clusterrun submit --nodes 2 -- -m package.train --epochs 3
      clusterrun submit --gpus-per-node 0 --tasks-per-node 8 -- train.py     ranks without GPUs
      clusterrun submit sft --nodes 2 --gpus-per-node 4 --ladder             1, 4 and 8 ranks (docs/ladder.md)
      clusterrun submit pretrain.toml sft.toml --chain                       sft starts when pretrain has succeeded
      clusterrun submit --after-ok last -- evaluate.py

    SCRIPT is a Python file, -m MODULE, or any executable. It runs once per GPU, with torch's environment variables
    set. A command line of torchrun, accelerate, srun or another launcher is translated (docs/from-other-launchers.md).
    Unset options use the cluster's defaults.
    """
    ui = Ui("submit", as_json=as_json)
    how = How(dry_run=dry_run, as_script=as_script, check=not no_check, follow=follow, wait=wait)
    refuse_pairs(how, as_json=as_json)
    session: Session = ctx.obj
    if session.for_agent:
        check_typed(ctx, words)
    cluster = session.planner(ui.note, submits=not dry_run)
    if ladder + chain + bool(recover) + bool(array) > 1:
        raise RequestError("--ladder, --chain, --array and --recover cannot be combined", hint="use one of them")
    if recover:
        ctx.exit(_recover(ui, cluster, recover, how, [*words, *after, *after_ok], session.script))
    others = find_after(cluster, after, after_ok)
    if chain:
        from clusterrun.cli.common.chain import submit_chain

        jobs = [submit_args(job, (), profile, dict(options)) for job in chained_jobs(words, session.script)]
        ctx.exit(submit_chain(ui, cluster, jobs, others, how))
    args = submit_args(*job_and_script(words, session.script), profile, options)
    if array:
        from clusterrun.cli.sweep import submit_array

        ctx.exit(submit_array(ui, cluster, args, others, array, how))
    if ladder:
        from clusterrun.cli.common.chain import submit_ladder

        ctx.exit(submit_ladder(ui, cluster, args, others, how))
    ctx.exit(submit_plan(ui, cluster, plan_after(cluster, args, others), how))


def _recover(
    ui: Ui, cluster: Cluster, run_id: str, how: How, words: Sequence[str], script: Sequence[str] | None
) -> int:
    """Finish a submission; raises RequestError if a job was typed too: the other ``words`` or the ``script``."""
    if how.dry_run or words or script is not None:
        raise RequestError(
            "--recover cannot be combined with a job, --dry-run, --after or --after-ok",
            hint=f"clusterrun submit --recover {run_id}",
        )
    run = cluster.recover(run_id)
    announce(ui, run, data=not how.wait)
    return stay(ui, cluster, run, how)


def chained_jobs(before: tuple[str, ...], after: Sequence[str] | None) -> tuple[str, ...]:
    """Return the jobs of ``--chain``; raises RequestError if there are not several, or a script."""
    if after is not None:
        hint = "submit the script separately: clusterrun submit --after-ok last -- SCRIPT"
        raise RequestError("--chain takes job files, not a script after --", hint=hint)
    if len(before) < 2:
        raise RequestError(
            "--chain needs at least two job files", hint="clusterrun submit first.toml second.toml --chain"
        )
    return before
