"""``completion``: print the script by which a shell completes command lines of clusterrun, or install it."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path

import click

from clusterrun.base.errors import RequestError
from clusterrun.cli.common.session import json_option
from clusterrun.config.files import display_path, home_folder
from clusterrun.run_folder.atomic import replace
from clusterrun.terminal.ui import Ui

BASH = """\
_clusterrun_completion() {
    local value
    COMPREPLY=()
    while IFS= read -r value; do
        case $value in
            '<files>') compopt -o default ;;
            *=) COMPREPLY+=("$value"); compopt -o nospace ;;
            *) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE=${COMP_LINE:0:COMP_POINT} _CLUSTERRUN_COMPLETE=bash_complete "${1/#\\~/$HOME}" 2>/dev/null)
}
complete -o nosort -F _clusterrun_completion clusterrun 2>/dev/null || complete -F _clusterrun_completion clusterrun
"""
ZSH = """\
#compdef clusterrun
_clusterrun_completion() {
    local -a plain begun
    local value meaning
    while IFS=$'\\t' read -r value meaning; do
        case $value in
            '<files>') compset -P '*='; _files ;;
            *=) begun+=("$value${meaning:+:$meaning}") ;;
            *) plain+=("$value${meaning:+:$meaning}") ;;
        esac
    done < <(COMP_LINE="${words[1,CURRENT]}" _CLUSTERRUN_COMPLETE=zsh_complete ${words[1]} 2>/dev/null)
    (( $#plain )) && _describe -V clusterrun plain
    (( $#begun )) && _describe -V clusterrun begun -S ''
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _clusterrun_completion clusterrun
"""
FISH = """\
function _clusterrun_completion
    set -l line (commandline -cp)
    for item in (env COMP_LINE="$line" _CLUSTERRUN_COMPLETE=fish_complete clusterrun 2>/dev/null)
        if test "$item" = '<files>'
            __fish_complete_path (commandline -ct)
        else
            echo $item
        end
    end
end
complete --no-files --command clusterrun --arguments '(_clusterrun_completion)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


@click.command()
@click.argument("shell", type=click.Choice([*SCRIPTS]))
@click.option("--install", is_flag=True, help="Write the script to your home folder, where new shells find it.")
@json_option
def completion(shell: str, install: bool, as_json: bool) -> None:
    """Print the script by which SHELL (bash, zsh or fish) completes commands, options, jobs, job files and settings.

    \b
      clusterrun completion bash --install
      eval "$(clusterrun completion bash)"     this shell only
    """
    ui = Ui("completion", as_json=as_json)
    if not install:
        ui.data({"shell": shell, "script": SCRIPTS[shell]})
        if not as_json:
            ui.raw(SCRIPTS[shell])
        return
    _install(ui, shell)


def _install(ui: Ui, shell: str) -> None:
    """Write the script, name it in the shell's start file if that is needed, and say so. Raises RequestError."""
    home = home_folder(os.environ)
    if home is None:
        raise RequestError("no home folder is known", hint="without --install the script is printed")
    script, start_file = _places(shell, home)
    line = f"source {shlex.quote(str(script))} 2>/dev/null  # clusterrun completion"
    try:
        if start_file is not None:
            _require_regular(start_file)
        script.parent.mkdir(parents=True, exist_ok=True)
        replace(script, SCRIPTS[shell].encode(), 0o644)
        is_new = start_file is not None and _add_line(start_file, line)
    except OSError as error:
        message = f"cannot write {error.filename or script}: {error.strerror}"
        raise RequestError(message, hint="without --install the script is printed") from error
    ui.data({"shell": shell, "path": str(script), "start_file": str(start_file) if start_file else None})
    shown = display_path(script, home)
    ui.say(f"Wrote {shown}, which new shells read.")
    if start_file is not None:
        place = display_path(start_file, home)
        ui.say(f"Added to {place}:" if is_new else f"Already in {place}:", f"  {line}")
    ui.say(f"To undo: rm {shown}")


def _places(shell: str, home: Path) -> tuple[Path, Path | None]:
    """Return where the script belongs, and the file with which the shell starts if that must name the script."""
    if shell == "fish":  # it finds the script by its name
        return _folder("XDG_CONFIG_HOME", home / ".config") / "fish" / "completions" / "clusterrun.fish", None
    script = _folder("XDG_DATA_HOME", home / ".local" / "share") / "clusterrun" / f"completion.{shell}"
    return script, home / ".bashrc" if shell == "bash" else _folder("ZDOTDIR", home) / ".zshrc"


def _folder(variable: str, default: Path) -> Path:
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else default


def _require_regular(path: Path) -> None:
    """Raise OSError for a file that exists and is no regular one: a FIFO would block for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def _add_line(path: Path, line: str) -> bool:
    """Append a line to a file unless it has that line; return whether it was added.

    The file is appended to, not replaced: it may be a link to where the user keeps such files.
    """
    before = path.read_bytes() if path.exists() else b""
    if line.encode() in before.splitlines():
        return False
    gap = b"\n" if before and not before.endswith(b"\n") else b""
    with path.open("ab") as file:
        file.write(gap + line.encode() + b"\n")
    return True
