"""The public names of the package, and the script that its docstring shows."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import types

import pytest

import clusterrun
from clusterrun import RequestError, SubmitArgs
from clusterrun.worker.rank.progress import Progress
from tests.support.command_desk import Desk
from tests.support.patience import HUNG

assert clusterrun.__doc__
DOCUMENTED = re.findall(r"^    (\w+) {2,}\S", clusterrun.__doc__, re.MULTILINE)
(EXAMPLE,) = re.findall(r"::\n\n(    from clusterrun.*?)\n\n(?! )", clusterrun.__doc__, re.DOTALL)


def test_the_documented_names_are_the_public_ones() -> None:
    assert sorted(DOCUMENTED) == clusterrun.__all__ == sorted(set(clusterrun.__all__))
    assert set(clusterrun.__all__) <= set(dir(clusterrun))


@pytest.mark.parametrize("name", clusterrun.__all__)
def test_a_public_name_is_a_class_or_function_of_that_name(name: str) -> None:
    assert getattr(clusterrun, name).__name__ == name


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Clutser'"):
        clusterrun.Clutser  # noqa: B018


def test_importing_the_package_imports_no_other_module() -> None:
    code = "import sys; before = set(sys.modules); import clusterrun; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "clusterrun"]


def test_the_script_of_the_docstring_runs_without_slurm(desk: Desk) -> None:
    desk.without_slurm()
    assert "nodes=2, gpus_per_node=4" in EXAMPLE
    script = textwrap.dedent(EXAMPLE).replace("nodes=2, gpus_per_node=4", "gpus_per_node=0")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HUNG)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_options_are_those_of_submit() -> None:
    args = SubmitArgs.of("train.py", "--lr", "1", nodes=2, gpus_per_node=4)
    assert args.command == ("train.py", "--lr", "1") and args.job is None
    assert {name: value.value for name, value in args.flags.items()} == {"nodes": 2, "gpus-per-node": 4}
    with pytest.raises(RequestError, match=r"no such option: gpus_per_nod$") as error:
        SubmitArgs.of("train.py", gpus_per_nod=4)
    assert "gpus_per_node" in error.value.hint


def test_a_heartbeat_sets_the_step_of_the_rank_and_does_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clusterrun.heartbeat(3)
    worker = types.SimpleNamespace(here=Progress())
    monkeypatch.setitem(sys.modules, "_clusterrun.worker.rank.progress", worker)  # type: ignore[arg-type]
    clusterrun.heartbeat(4)
    clusterrun.heartbeat(5, total=9, loss=0.5)
    clusterrun.heartbeat(6)
    here = worker.here
    assert (here.first_step, here.step, here.steps, here.loss) == (4, 6, 9, 0.5)
    clusterrun.heartbeat(1, total=9)
    assert (here.first_step, here.step, here.steps) == (1, 1, None), "it counts anew in each epoch"
