"""The lab's command line: `python -m lab up`, then `eval "$(python -m lab env)"`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time

from lab import claims, config, releases
from lab.cluster import Lab
from lab.errors import LabError

EPILOG = """\
try it:
  python -m lab up                      4 nodes x 4 GPUs with accounting; nodes are node1 to node4
  eval "$(python -m lab env)"           Slurm's commands in this shell now talk to the lab
  srun -N2 hostname
  python -m lab run -- sinfo            one command, without the eval
  python -m lab up --name b --no-accounting --set SlurmdTimeout=30      a second one beside it
  python -m lab fault kill slurmctld    then: fault start slurmctld
  python -m lab fault cut node2         then: fault restore node2
  python -m lab down
"""
DAEMON_VERBS = {
    "stop": "freeze a daemon (SIGSTOP)",
    "cont": "continue a frozen daemon (SIGCONT)",
    "kill": "end a daemon as a crash would (SIGKILL)",
    "term": "end a daemon gracefully (SIGTERM)",
    "start": "start a daemon that is dead and wait until it works",
    "restart": "term, then start",
}
LINK_VERBS = {"cut": "pull a node's cable", "restore": "put it back, at full speed", "slow": "limit it to --rate"}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `python -m lab`."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m lab", description="A real Slurm cluster on this machine.", epilog=EPILOG, formatter_class=raw
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.add_argument("--name", default="dev", help="which lab (default: dev)")
        return sub

    up = verb("up", "bring a lab up, repairing what a crash left; does nothing if it is up with these settings")
    up.add_argument("--nodes", type=int, default=4, help="number of nodes (default: 4)")
    up.add_argument("--gpus", type=int, default=4, help="GPUs per node, 0 for none (default: 4)")
    up.add_argument("--gpu-type", default="", help="the GPUs' type, as in gpu:a100:4 (default: none)")
    up.add_argument("--cpus", type=int, default=16, help="CPUs per node, whatever the machine has (default: 16)")
    up.add_argument("--no-accounting", action="store_true", help="without slurmdbd and its database")
    up.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="a setting of slurm.conf, repeatable; an empty value removes the lab's own",
    )  # fmt: skip
    up.add_argument(
        "--slurm",
        default="",
        metavar="VERSION",
        help=f"the version of Slurm: {', '.join(releases.RELEASES)} (default: this machine's own)",
    )
    down = verb("down", "end every process of a lab and remove all it made")
    down.add_argument("--all", action="store_true", help="all labs on this machine")
    status = verb("status", "show the labs on this machine, or with --name one of them with daemons and nodes")
    status.set_defaults(name=None)
    verb("env", 'print the lines for eval "$(python -m lab env)"')
    run = verb("run", "run a command in the lab's environment: run -- squeue")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command and its arguments")
    reset = verb("reset", "mend daemons and links, end all jobs, bring all nodes back to idle")
    reset.add_argument("--timeout", type=float, default=60, help="seconds to wait (default: 60)")
    fault = verb("fault", "break or mend one part of a lab")
    fault.formatter_class = raw
    fault.epilog = "actions:\n" + "\n".join(f"  {k:8} {v}" for k, v in {**DAEMON_VERBS, **LINK_VERBS}.items())
    fault.add_argument("action", choices=[*DAEMON_VERBS, *LINK_VERBS], metavar="ACTION", help="see below")
    fault.add_argument("target", help="slurmctld, slurmdbd, mariadbd, munged, or a node (its slurmd, or its link)")
    fault.add_argument("--rate", default="1mbit", help="for slow: as tc writes it (default: 1mbit)")
    return parser


def show_env(lab: Lab) -> None:
    """Print shell lines that point Slurm's commands to the lab."""
    for key, value in lab.env.items():
        print(f"export {key}={shlex.quote(value)}")
    if lab.slurm:
        print(f'export PATH={shlex.quote(str(releases.programs(lab.slurm)))}:"$PATH"')


def do_up(args: argparse.Namespace) -> None:
    """Bring a lab up and say how to use it."""
    try:
        settings = config.parse_settings(args.settings)
    except ValueError as error:
        raise LabError(f"--set {error}") from None
    began = time.monotonic()
    lab = Lab(
        name=args.name, nodes=args.nodes, gpus=args.gpus, cpus=args.cpus, gpu_type=args.gpu_type,
        accounting=not args.no_accounting, settings=settings,
        slurm=args.slurm or releases.default(),
    ).up()  # fmt: skip
    names, option = lab.node_names, "" if lab.name == "dev" else f" --name {lab.name}"
    print(f"lab {lab.name} is up ({time.monotonic() - began:.1f} s): {names[0]} to {names[-1]}, {lab.gpus} GPUs each,")
    print(f"partitions gpu (default), low (preempted), short (1 min); accounting {'on' if lab.accounting else 'off'}")
    print(f'  eval "$(python -m lab env{option})"     then: sinfo; srun -N2 hostname')
    print(f"  python -m lab fault{option} kill slurmctld     more: python -m lab --help")
    print(f"  python -m lab down{option}")


def do_status(name: str | None) -> None:
    """Print the labs, or one lab's daemons and nodes."""
    known = claims.claims()
    for claim in known.values() if name is None else ():
        try:
            lab = Lab.attach(claim.name)
            state = "up" if lab.healthy() else "broken"
            shape = f"{lab.nodes} nodes x {lab.gpus} GPUs, accounting {'on' if lab.accounting else 'off'}"
        except LabError:
            state, shape = "broken", "half of it is there"
        print(f"{claim.name:16} {state:7} {shape}, {claim.subnet}.0/24, {claim.folder}")
    if name is None and not known:
        print("no lab on this machine; python -m lab up")
    if name is not None:
        lab = Lab.attach(name)
        for daemon in lab.daemons.values():
            print(f"{daemon.name:16} {daemon.state:8} pid {daemon.pid or '-':<8} {daemon.log}")
        for node, state in lab.node_states().items():
            print(f"{node:16} {state:8} {lab.address(node)}")


def do_fault(args: argparse.Namespace) -> None:
    """Break or mend one daemon or link."""
    lab = Lab.attach(args.name)
    if args.action in LINK_VERBS:
        if args.action == "slow":
            lab.slow_link(args.target, args.rate)
        else:
            (lab.cut_link if args.action == "cut" else lab.restore_link)(args.target)
        return
    daemon = lab.daemon(args.target)
    getattr(daemon, "terminate" if args.action == "term" else args.action)()
    print(f"{daemon.name}: {daemon.state}")


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 done, 1 not done, and for `run` that of the command."""
    args = build_parser().parse_args(argv)
    try:
        if args.verb == "up":
            do_up(args)
        elif args.verb == "down":
            for name in list(claims.claims()) if args.all else [args.name]:
                Lab(name=name).down()
        elif args.verb == "status":
            do_status(args.name)
        elif args.verb == "env":
            show_env(Lab.attach(args.name))
        elif args.verb == "reset":
            Lab.attach(args.name).reset(args.timeout)
        elif args.verb == "fault":
            do_fault(args)
        elif args.verb == "run":
            command = args.command[1:] if args.command[:1] == ["--"] else args.command
            if not command:
                raise LabError("run: which command? python -m lab run -- squeue")
            sys.stdout.flush()
            os.execvpe(command[0], command, Lab.attach(args.name).full_env())
    except (LabError, OSError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
