"""Texts that have broken other programs' quoting, for every place that takes text."""

from __future__ import annotations

import os

from hypothesis import strategies as st

NASTY = (
    "'", '"', '\\', '\\\\', "\\'", '\\"', '\\n', '#', ' #', 'a#b', 'a b', '  ', ' lead', 'trail ', '\t', '$HOME',
    '$(id >&2)', '`id`', '${IFS}', "$'x'", '!', '!!', '~', '*', '?', '[a-z]', '{a,b}', 'a;b', 'a&b', 'a|b', '>x',
    '<x', '(', ')', '-', '--', '-x', '--output=/tmp/x', '" --output=/tmp/x "', "' --wrap=x '", '\\" #',
    '#SBATCH --wrap=x', '%j', '%%', '%', '%x%A', '{{ 7*7 }}', '{% if x %}', '{# x #}', '{##', '##}', '=', 'a=b',
    ',', 'a,b', ':', 'é', '🙂', '\u202e', '\ufeff', '\u2028', '\x85', '\r', 'a\rb', '\x1b[31m', '\x1b]0;t\x07',
    '\x01', '\x7f', '\x1f', '\x0b', '\x0c', '\x08', '\udcff', '\udc80x', 'EOF', '}', 'then', "x" * 300, 'a=b c',
    '\'"\'"\'', '../..', '-n',
)  # fmt: skip
FORBIDDEN = ("a\nb", "\n", "a\n", "\n#SBATCH --wrap=x", "a\0b", "\0", "a\r\n")

_letters = st.one_of(
    st.sampled_from(list("'\"\\#$`(){}%!*?~;&|<> \t\r\x1b-=,.:@aZ0é🙂\udcff")),
    st.characters(exclude_categories=("Cs",), exclude_characters="\n\0"),
    st.integers(0xDC80, 0xDCFF).map(chr),  # what Python makes of bytes that are not UTF-8
)
#: one line of text, of any kind, as Python would read its bytes
hostile = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY), min_size=2, max_size=4).map("".join),
    st.text(_letters, max_size=30),
).map(lambda text: os.fsdecode(os.fsencode(text)))
#: the same, and now and then a newline or a NUL
anything = st.one_of(hostile, hostile, hostile, st.sampled_from(FORBIDDEN))
