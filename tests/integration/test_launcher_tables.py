"""The tables of other launchers' options have every option of the torch and accelerate that are installed."""

from __future__ import annotations

import argparse

import pytest

from clusterrun.submit.launcher_table import ACCELERATE, TORCHRUN, Launcher, parse_options

SUBCOMMAND_OPTIONS = ("-h", "--help")


def parsers() -> list[tuple[Launcher, argparse.ArgumentParser]]:
    run = pytest.importorskip("torch.distributed.run")
    launch = pytest.importorskip("accelerate.commands.launch")
    return [(TORCHRUN, run.get_args_parser()), (ACCELERATE, launch.launch_command_parser())]


def test_every_option_is_known_with_its_number_of_values() -> None:
    wrong = []
    for launcher, parser in parsers():
        for action in parser._actions:
            for spelled in set(action.option_strings) - set(SUBCOMMAND_OPTIONS):
                values = [] if action.nargs == 0 else ["1"]
                try:
                    found = parse_options(launcher, [spelled, *values, "train.py", "a"])
                except Exception as error:
                    wrong.append(f"{spelled}: {error}")
                else:
                    if len(found[0]) != 1 or found[1] != ["train.py", "a"]:
                        wrong.append(f"{spelled}: {found}")
    assert wrong == []
