"""`link.json` of an attempt: the page of the run at Weights & Biases, as its script printed it; shown as text only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..base.decode import as_text
from .files import read_json, write_record

FILE = "link.json"
HOST = "wandb.ai"
_PAGE = re.compile(r"https://([a-z0-9.-]{1,100})(?::\d{1,5})?/[\w./%~-]{1,300}/runs/[\w-]{1,100}", re.ASCII)


def find(line: str, environ: Mapping[str, str]) -> str:
    """Return the page that a line of the log names, if it is at wandb.ai or at the job's own WANDB_BASE_URL."""
    if "View run" not in line:
        return ""
    page = _PAGE.search(line)
    own = environ.get("WANDB_BASE_URL", "").removeprefix("https://").partition("/")[0].partition(":")[0]
    return page[0] if page is not None and page[1] in (HOST, own) else ""


def write(attempt: Path, page: str) -> None:
    """Write the file; raises OSError."""
    write_record(attempt / FILE, {"page": page})


def load(attempt: Path) -> str:
    """Return the page, empty without one and for any other text."""
    page = as_text((read_json(attempt / FILE) or {}).get("page"))
    return page if _PAGE.fullmatch(page) else ""
