"""``render``: print the script that ``submit`` would use."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.common import complete
from clusterrun.cli.common.options import BARE, Grouped, job_and_script, spec_options, submit_args
from clusterrun.cli.common.session import Session, json_option
from clusterrun.terminal.ui import Ui

if TYPE_CHECKING:
    from clusterrun.submit.plan import Plan


@click.command(cls=Grouped)
@click.argument("words", nargs=-1, metavar="[JOB] [-- SCRIPT [ARGS]...]", shell_complete=complete.job_files)
@functools.partial(spec_options, bare="accelerate-config")
@click.option(
    "--per-node-commands", is_flag=True, help="Print the torchrun commands to run on each node, instead of the script."
)
@click.option("--explain", is_flag=True, help="Print the source of each value to standard error.")
@json_option
@click.pass_context
def render(
    ctx: click.Context, /, words: tuple[str, ...], profile: str | None, per_node_commands: bool, explain: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Print the sbatch script that `submit` would use. Slurm is not required.

    \b
      clusterrun render --nodes 2 --gpus-per-node 4 | less
      clusterrun render sft --explain >/dev/null
      clusterrun render --nodes 2 --gpus-per-node 4 --per-node-commands -- train.py     (docs/without-slurm.md)
      clusterrun render --nodes 2 --gpus-per-node 4 --accelerate-config >multi_node.yaml

    --accelerate-config without FILE prints a YAML file for `accelerate launch --config_file` with the same numbers of
    nodes and ranks.
    """
    ui = Ui("render", as_json=as_json)
    session: Session = ctx.obj
    cluster = session.planner(ui.note, submits=False)
    job, script = job_and_script(words, session.script)
    print_yaml = options["accelerate_config"] == BARE
    if print_yaml:
        options["accelerate_config"] = None
    plan = cluster.plan(submit_args(job, script, profile, options), named=False)
    for notice in plan.notices:
        ui.note(notice)
    sources = plan.record.sources
    if explain and not as_json:
        for name, (value, source) in sources.items():
            ui.note(f"{name} = {value!r}  ({source})")
    text = plan.script
    if print_yaml or per_node_commands:
        text = _by_hand(ui, plan, as_yaml=print_yaml, as_commands=per_node_commands)
    ui.data({"script": text, "sources": {k: {"value": v, "source": s} for k, (v, s) in sources.items()}})
    if not as_json:
        ui.raw(text)


def _by_hand(ui: Ui, plan: Plan, *, as_yaml: bool, as_commands: bool) -> str:
    """Return what starts the job without a batch script: the file for accelerate, the commands for each node."""
    from clusterrun.jobspec import by_hand
    from clusterrun.submit.job_python import WORKER

    text = ""
    if as_yaml:
        if plan.spec.world_size > 1 and plan.spec.gpus_per_node == 0:
            ui.note(
                "on CPUs, `accelerate launch` starts only one process;"
                " use `clusterrun submit --launcher accelerate` to start all ranks"
            )
        text += by_hand.accelerate_yaml(plan.spec)
    if as_commands:
        text += by_hand.node_commands(plan.spec, plan.submission.workdir, WORKER)
    return text
