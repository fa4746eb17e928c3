"""Foreign text reaches a terminal only spelled out."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.terminal.safe_text import safe_line, safe_text

# what a terminal acts on, whatever else we decide: C0 but tab and newline, DEL, C1
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# surrogates too: st.text() leaves them out by default
ANY_TEXT = st.text(st.characters())
#: Format characters that are drawn: signs that stand before a number or a verse.
DRAWN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}


@given(ANY_TEXT)
def test_no_control_character_comes_through(text):
    assert not CONTROL.search(safe_text(text))


@given(ANY_TEXT)
def test_the_result_can_be_sent_to_a_utf8_terminal(text):
    safe_text(text).encode("utf-8")


@given(ANY_TEXT)
def test_it_is_idempotent(text):
    assert safe_text(safe_text(text)) == safe_text(text)


@given(
    st.text(
        st.characters(categories=("L", "N", "P", "S", "Zs"), max_codepoint=0x24FF, exclude_characters="\u115f\u1160")
    )
)
def test_printable_text_is_left_alone(text):
    assert safe_text(text) == text


@given(ANY_TEXT)
def test_each_character_is_judged_alone(text):
    assert safe_text(text) == "".join(map(safe_text, text))


@given(ANY_TEXT)
def test_a_line_stays_one_line_on_any_reading_of_the_word(text):
    assert len(safe_line(text).splitlines()) <= 1
    assert "\t" not in safe_line(text)


def test_tab_and_newline_are_kept():
    assert safe_text("a\tb\nc\x1b") == "a\tb\nc\\x1b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),  # clipboard
        ("\x1b[2J", "\\x1b[2J"),  # clear the screen
        ("\x9b31m", "\\x9b31m"),  # CSI in one character
        ("\x1bP1$r\x1b\\", "\\x1bP1$r\\x1b\\"),  # DCS
        ("over\rwritten", "over\\x0dwritten"),
        ("\x00\x7f", "\\x00\\x7f"),
        ("abc\u202egpj.exe", "abc\\u202egpj.exe"),  # right-to-left override
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("two\u2028lines", "two\\u2028lines"),
        ("bytes \udcff", "bytes \\udcff"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("hangul \u3164filler", "hangul \\u3164filler"),
    ],
)
def test_what_could_deceive_is_spelled_out(text, shown):
    assert safe_text(text) == shown


@pytest.mark.parametrize(
    "text", ["größer 5 µs", "模型 训练", "loss [/bold]", "C:\\x1b", "done ✅ 100%|█████|", "\u2192 \ue0b0"]
)
def test_what_people_write_is_left_alone(text):
    assert safe_text(text) is text or safe_text(text) == text


def test_every_invisible_format_character_of_this_python_is_covered():
    formats = {i for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) in ("Cf", "Zl", "Zp", "Cs")}
    assert {i for i in formats - DRAWN if safe_text(chr(i)) == chr(i)} == set()
