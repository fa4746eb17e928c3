"""The page of a run at Weights & Biases, as its script prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.run_folder import run_link

PAGE = "https://wandb.ai/ann/lm-small/runs/k3v7qaab"


@pytest.mark.parametrize(("line", "page"), [
    (f"wandb: 🚀 View run at {PAGE}", PAGE),
    (f"wandb: 🚀 View run sunny-moon-5 at: \x1b[34m\x1b[4m{PAGE}\x1b[0m", PAGE),
    (f"see {PAGE}", ""),
    ("wandb: 🚀 View run at http://wandb.ai/ann/lm/runs/1", ""),
    ("wandb: 🚀 View run at https://wandb.ai.evil.org/ann/lm/runs/1", ""),
    ("wandb: 🚀 View run at https://wandb.ai@evil.org/ann/lm/runs/1", ""),
    ("wandb: 🚀 View project at https://wandb.ai/ann/lm", ""),
])  # fmt: skip
def test_a_page_is_found_in_wandbs_line_only(line: str, page: str) -> None:
    assert run_link.find(line, {}) == page


def test_the_jobs_own_server_is_believed() -> None:
    line = "wandb: 🚀 View run at https://wandb.corp.example:8443/ann/lm/runs/1"
    assert run_link.find(line, {"WANDB_BASE_URL": "https://wandb.corp.example:8443"}) == line.rpartition(" ")[2]
    assert run_link.find(line, {"WANDB_BASE_URL": "https://other.example"}) == run_link.find(line, {}) == ""


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert run_link.load(tmp_path) == ""
    run_link.write(tmp_path, PAGE)
    assert run_link.load(tmp_path) == PAGE


@pytest.mark.parametrize("page", ["javascript:1", PAGE + " x", PAGE + "\n", "http://wandb.ai/a/b/runs/1", 5, None])
def test_any_other_text_in_the_file_is_no_page(tmp_path: Path, page: Any) -> None:
    (tmp_path / run_link.FILE).write_text(json.dumps({"version": 1, "page": page}))
    assert run_link.load(tmp_path) == ""
