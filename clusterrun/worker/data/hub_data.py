"""Find the files of a data set of the Hugging Face Hub, `hf:org/name:config[split]`, in the hub's cache or on the hub.

A data set is its repository's files of rows or texts, which the readers of files read. Its code is never run. Which
files belong to a configuration and a split is what the repository's card says (`configs` in its README.md), else what
their names say: `config/train-00000-of-00002.parquet`, `data/test.jsonl`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import WorkerError, suggestion
from .. import hub
from .formats import READERS, first_line, format_of, shown

PREFIX = "hf:"
FORM = re.compile(r"hf:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^\[\]]+))?(?:\[(?P<split>[\w.-]+)\])?")
CARD, MOST = "README.md", 4 * 1024 * 1024  # bytes of a card that are read
TRAIN = "train"
SPLITS = {TRAIN: (TRAIN,), "validation": ("validation", "valid", "val", "dev"), "test": ("test", "testing", "eval")}
LOOK_S = 8.0  # for a look before a job is queued; the hub's client may wait for minutes


class Named(NamedTuple):
    """What `hf:org/name:config[split]` names; `config` is empty if none is named."""

    name: str
    config: str
    split: str

    def __str__(self) -> str:
        return PREFIX + self.name + (f":{self.config}" if self.config else "") + f"[{self.split}]"


def fetch(source: str) -> list[str]:
    """Return the paths of a data set's files, downloaded unless they are in the cache; raises WorkerError."""
    named = parse(source)
    chosen = _within(hub.ANSWER_S, named)
    if chosen is None:
        hint = "if the cache has it, set HF_HUB_OFFLINE=1"
        raise WorkerError(f"cannot get {named}: the hub did not respond within {hub.ANSWER_S:.0f} s; {hint}")
    with _explained(named):
        folder = _snapshot(named.name, chosen)
    return [str(folder / name) for name in chosen]


def check(data: Sequence[str], *, looks: bool) -> list[str]:
    """Check the data sets of the hub among names of data, only their forms unless one `looks`; return what is doubtful.

    Raises WorkerError as look() does, and for a wrong form (status 2).
    """
    sources = [name for name in data if name.startswith(PREFIX)]
    for source in sources:
        parse(source)
    return list(filter(None, map(look, sources))) if looks else []


def look(source: str) -> str:
    """Check a data set without downloading its rows; return why it was not checked, or an empty text.

    Raises WorkerError if the hub does not have it, if this user cannot read it, or if it has no such files. Without a
    connection to the hub it raises only if the job has none either, by HF_HUB_OFFLINE.
    """
    named = parse(source)
    try:
        chosen = _within(LOOK_S, named)
    except WorkerError as error:
        from huggingface_hub.constants import HF_HUB_OFFLINE

        if hub.answers() or HF_HUB_OFFLINE:
            raise
        return str(error)
    return f"{named} was not checked: the hub did not respond within {LOOK_S:.0f} s" if chosen is None else ""


def _within(seconds: float, named: Named) -> list[str] | None:
    """Return the names of the files, None if that takes longer: the hub's client waits without limit for an answer."""
    results: list[list[str] | WorkerError] = []

    def choose() -> None:
        try:
            results.append(_chosen(named))
        except WorkerError as error:
            results.append(error)

    choosing = threading.Thread(target=choose, daemon=True)
    choosing.start()
    choosing.join(seconds)
    for result in results:
        if isinstance(result, WorkerError):
            raise result
        return result
    return None


def parse(source: str) -> Named:
    """Return what a name of data means; raises WorkerError (status 2)."""
    form = FORM.fullmatch(source)
    if form is None:
        expected = "hf:org/name, hf:org/name:config or hf:org/name:config[split]"
        raise WorkerError(f"{shown(source)} is not of the form {expected}", status=2)
    return Named(form["name"], form["config"] or "", form["split"] or TRAIN)


def _chosen(named: Named) -> list[str]:
    """Return the names of the files in the repository; raises WorkerError."""
    with _explained(named):
        folder = _snapshot(named.name, [CARD])
        from huggingface_hub import get_cached_repo_tree

        names = [file.path for file in get_cached_repo_tree(named.name, repo_type="dataset")]
        configs = _configs(folder / CARD)
    readable = sorted(name for name in names if _is_readable(name))
    if not readable:
        known = ", ".join(READERS)
        raise WorkerError(f"{named} has no files of rows ({known}); a data set's own code is never run", status=2)
    return _by_card(configs, named, readable) if configs else _by_name(named, readable)


def _is_readable(name: str) -> bool:
    is_inside = not name.startswith("/") and ".." not in name.split("/")
    return is_inside and (format_of(name) is not None or name.endswith(".txt"))


def _snapshot(name: str, files: Sequence[str]) -> Path:
    """Return the folder of the cache with these files of a repository; what the hub has newer is downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # else the log has them once per rank, and each retry
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    patterns = list(map(glob.escape, files))
    offline = not hub.answers()
    return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns, local_files_only=offline))


def _configs(card: Path) -> dict[str, Mapping[str, Any]]:
    """Return the configurations of a card with files, by name; empty without a card or if it names none."""
    from huggingface_hub import metadata_load

    if not card.is_file() or card.stat().st_size > MOST:
        return {}
    listed = (metadata_load(card) or {}).get("configs")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {str(row.get("config_name", "default")): row for row in rows if row.get("data_files")}


def _by_card(configs: Mapping[str, Mapping[str, Any]], named: Named, names: Sequence[str]) -> list[str]:
    """Return the files that a card gives to a configuration and split; raises WorkerError (status 2)."""
    config = named.config or _default(configs)
    if config not in configs:
        wrong = f"no configuration {config!r}" if config else "several configurations: name one"
        raise _unknown(named, wrong, config, configs)
    by_split = _patterns(configs[config]["data_files"])
    if named.split not in by_split:
        raise _unknown(named, f"no split {named.split!r}", named.split, by_split)
    patterns = by_split[named.split]
    chosen = [name for name in names if any(map(fnmatch.fnmatchcase, [name] * len(patterns), patterns))]
    if not chosen:
        raise WorkerError(f"{named.name} has no readable files {', '.join(patterns[:3])}, which its card names")
    return chosen


def _default(configs: Mapping[str, Mapping[str, Any]]) -> str:
    marked = [name for name, row in configs.items() if row.get("default") is True or name == "default"]
    return next(iter([*marked, *(configs if len(configs) == 1 else ())]), "")


def _patterns(files: Any) -> dict[str, list[str]]:
    """Return the patterns of names by split; those of a list without splits are the training's."""
    rows = files if isinstance(files, list) else [files]
    by_split: dict[str, list[str]] = {}
    for row in rows:
        split, path = (row.get("split", TRAIN), row.get("path")) if isinstance(row, dict) else (TRAIN, row)
        paths = path if isinstance(path, list) else [path]
        by_split.setdefault(str(split), []).extend(str(each).replace("**/", "*") for each in paths if each)
    return by_split


def _by_name(named: Named, names: Sequence[str]) -> list[str]:
    """Return the files whose names say that they are a configuration's and a split's; raises WorkerError (status 2)."""
    folders = sorted(set(map(os.path.dirname, names)) - {"", "data"})
    if named.config:
        names = _inside(named, names, folders)
    by_split: dict[str, list[str]] = {}
    for name in names:
        by_split.setdefault(_split_of(name), []).append(name)
    if named.split not in by_split:
        raise _unknown(named, f"no split {named.split!r}", named.split, by_split)
    chosen = by_split[named.split]
    if not named.config and len(set(map(os.path.dirname, chosen))) > 1:
        raise _unknown(named, "several configurations: name one", "", folders)
    return _in_one_format(chosen)


def _inside(named: Named, names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Return the files in a folder with a configuration's name; raises WorkerError (status 2)."""
    inside = [name for name in names if named.config in name.split("/")[:-1]]
    if not inside:
        raise _unknown(named, f"no configuration {named.config!r}", named.config, folders)
    return inside


def _in_one_format(names: Sequence[str]) -> list[str]:
    """Return the parquet files, else those in the first known format: a repository may have the same rows in two."""
    formats = set(map(format_of, names))
    best = next((suffix for suffix in (".parquet", *READERS) if suffix in formats), None)
    return [name for name in names if format_of(name) == best]


def _split_of(name: str) -> str:
    words = re.split(r"[/._-]", name.lower())
    return next((split for split, synonyms in SPLITS.items() if set(synonyms) & set(words)), TRAIN)


def _unknown(named: Named, wrong: str, word: str, known: Mapping[str, Any] | Sequence[str]) -> WorkerError:
    listed = f"; it has: {', '.join(map(shown, list(known)[:20]))}" if known else ""
    is_split = word == named.config and word in SPLITS
    hint = f"; for the split write {PREFIX}{named.name}[{word}]" if is_split else suggestion(word, known)
    return WorkerError(f"{named.name} has {wrong}{hint}{listed}", status=2)


@contextlib.contextmanager
def _explained(named: Named) -> Iterator[None]:
    """Turn errors of the hub's client into a WorkerError with one line."""
    try:
        yield
    except ImportError as error:
        raise WorkerError(f"reading {named} needs huggingface_hub ({error}): pip install -U huggingface_hub") from None
    except Exception as error:  # the client, its HTTP library and the card's YAML have no common class
        raise WorkerError(f"cannot get {named}: {_reason(error, named)}") from None


def _reason(error: Exception, named: Named) -> str:
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, LocalEntryNotFoundError | CachedRepoTreeNotFoundError):
        fill = f"where there is a network, `hf download --repo-type dataset {named.name}` fills it"
        return f"the hub does not respond, and the cache lacks files of it; {fill}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, RepositoryNotFoundError) or status in (401, 403):
        return f"no data set {named.name}, or it is private or gated: check the name and {hub.TOKENS[0]}"
    said = hub.scrub(first_line(error), os.environ)
    return f"{type(error).__name__}: {said}"
