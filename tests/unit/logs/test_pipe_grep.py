"""--grep looks at whole texts where that finds the same lines, and only there."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.logs import filters
from clusterrun.logs.filters import PatternFilter, is_local
from clusterrun.logs.labels import Labels


@pytest.mark.parametrize(
    "pattern",
    ["loss", "größer", r"loss 0\.1\d* lr", "nan|inf", "(?i)cuda", "[a-z]+ [0-9.]{2,}", r"\berror\b", "(?:a|b)c?",
     "[]x]", "x.*?y", "((a)|b)*", r"\(x\)\+"],
)  # fmt: skip
def test_what_asks_only_for_its_own_characters_is_looked_for_in_whole_texts(pattern):
    assert is_local(re.compile(pattern))


@pytest.mark.parametrize(
    "pattern",
    ["^loss", "loss$", r"\Aloss", r"\Bx", "(?<= )x", "(?=x)", "(?!x)", "(?<!x)y", r"a\s+b", r"\D", r"\W", "[^x]*y",
     r"[\s]", "a\nb", "a\tb", "[\t-z]", "a++", "a*+b", "a{2}+", "(?>a)", "(?s)a.b", "(?m)a", "(?x)a b", "(?:(?s:.))",
     r"(a)\1", "(?P<n>a)", "(a)?(?(1)b)", r"\x0a", "[\\n]", "{"],
)  # fmt: skip
def test_what_may_look_around_itself_or_past_the_line_is_not(pattern):
    assert not is_local(re.compile(pattern))


def test_flags_that_change_what_a_newline_is_are_not():
    assert not any(is_local(re.compile("a.b", flag)) for flag in (re.DOTALL, re.MULTILINE, re.VERBOSE))


ATOM = st.sampled_from([*"ab ö.", r"\d", r"\w", r"\S", r"\b", "[ab]", "[0-9 ]", r"\.", "(?:a|b )", "(b|)", "a|"])
PATTERN = st.lists(st.tuples(ATOM, st.sampled_from(["", "", "*", "+?", "{2}"])), max_size=4).map(
    lambda parts: "".join(atom + count for atom, count in parts if (atom, count[:1]) != (r"\b", "{"))
)
LINES = st.lists(
    st.builds("".join, st.tuples(st.sampled_from(["", " 1: "]), st.text("ab 1.ö:", max_size=12))),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("near", [0, 20, 2048])
@given(pattern=PATTERN, lines=LINES)
def test_the_same_lines_are_found_as_by_a_look_at_each(near, pattern, lines):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filters, "_NEAR", near)
        check(pattern, lines)


def check(pattern, lines):
    try:
        compiled = re.compile(pattern)
    except re.error:
        return
    labels, block = Labels(20), "".join(f"{line}\n" for line in lines).encode()
    for exclude in (False, True):
        wanted = [x for x in lines if (compiled.search(x[4:] if x[:4] == " 1: " else x) is None) == exclude]
        assert PatternFilter(compiled, labels, exclude=exclude).select(block).decode().split("\n")[:-1] == wanted
