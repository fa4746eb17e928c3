"""Options of sbatch that exclude each other: the one at a higher level takes the place of those below it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from clusterrun.base.errors import RequestError
from clusterrun.jobspec.fields import Value, sbatch_option

#: What sbatch refuses together. Those that are no options of clusterrun come with --sbatch-arg.
_RIVALS = (("mem", "mem-per-cpu", "mem-per-gpu"), ("cpus-per-task", "cpus-per-gpu"))
_ARGUMENTS = "sbatch-arg"


def drop_rivals(levels: Sequence[Mapping[str, Value]], merged: dict[str, Value]) -> list[str]:
    """Take options out of ``merged`` that one of a higher level excludes; return notices.

    ``levels`` are those that were merged, highest first. Raises RequestError for two of one level.
    """
    in_use = [{name: value for name, value in level.items() if merged.get(name) is value} for level in levels]
    return [notice for rivals in _RIVALS for notice in _drop(rivals, in_use, merged)]


def argument_beside(name: str, arguments: Sequence[str]) -> str:
    """Return the first --sbatch-arg that sets this option or excludes it; empty without one."""
    rivals = next((rivals for rivals in _RIVALS if name in rivals), (name,))
    return next((argument for argument in arguments if _meant(rivals, sbatch_option(argument))), "")


def _drop(rivals: Sequence[str], levels: Sequence[Mapping[str, Value]], merged: dict[str, Value]) -> Iterator[str]:
    chosen = ""
    for level in levels:
        given = _given(rivals, level)
        if given and not chosen:
            chosen, *others = dict.fromkeys(name for name, _ in given.values())
            if others:
                message = f"{' and '.join(given)} exclude each other: sbatch takes only one of them"
                raise RequestError(message, hint="keep one of them")
        for spelled, (name, source) in given.items():
            if name != chosen:
                _take_out(spelled, name, merged)
                yield f"ignoring {spelled} of {source}: --{chosen} takes its place"


def _given(rivals: Sequence[str], level: Mapping[str, Value]) -> dict[str, tuple[str, str]]:
    """Return the rivals that a level sets: the name and the source of each by how it is spelled."""
    given = {f"--{name}": (name, level[name].source) for name in rivals if name in level}
    for argument in _sbatch_arguments(level):
        if name := _meant(rivals, sbatch_option(argument)):
            given[f"--sbatch-arg={argument}"] = name, level[_ARGUMENTS].source
    return given


def _sbatch_arguments(level: Mapping[str, Value]) -> list[str]:
    """Return the values of --sbatch-arg; none if it is no list, which is refused later."""
    arguments = level[_ARGUMENTS].value if _ARGUMENTS in level else ()
    return list(map(str, arguments)) if isinstance(arguments, list | tuple) else []


def _meant(rivals: Sequence[str], option: str) -> str:
    """Return the rival that an option of sbatch is, or the only one that begins so; empty if there is none."""
    if option in rivals:
        return option
    meant = [name for name in rivals if name.startswith(option)]
    return meant[0] if len(meant) == 1 else ""


def _take_out(spelled: str, name: str, merged: dict[str, Value]) -> None:
    if spelled == f"--{name}":
        del merged[name]
        return
    arguments = merged[_ARGUMENTS]
    kept = [argument for argument in arguments.value if f"--sbatch-arg={argument}" != spelled]
    merged[_ARGUMENTS] = Value(kept, arguments.source)
