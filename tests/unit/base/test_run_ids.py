"""Run ids in texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterrun.base.job import is_run_id, run_ids_in


@given(st.lists(st.sampled_from(["20261121-000001-aaaaaa", "2222222-000001-a", "20", "-", "222222", "x"]), max_size=9))
def test_run_ids_are_found_within_longer_words(words: list[str]) -> None:
    text = "".join(words)
    slices = {text[at : at + 22] for at in range(len(text))}
    assert run_ids_in(text.encode()) == {one for one in slices if is_run_id(one)}
