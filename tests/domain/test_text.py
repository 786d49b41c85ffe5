"""Text from anywhere, made safe to be stored, to stand in a line, to be shown."""

from unicodedata import bidirectional, category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.text import one_line, plain, printable, storable

# All code points: lone surrogates, NUL and controls more often than chance would have it.
text = st.text(st.characters() | st.characters(categories=["Cs", "Cc", "Cf", "Zl", "Zp"]))


LINES = str.maketrans("", "", "\n\t")


class NoText:
    def __str__(self):
        raise SystemExit


class TestStorable:
    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            ("", ""),
            ("Grüße, 🚀\n\tline two\x1b", "Grüße, 🚀\n\tline two\x1b"),
            ("a\x00b", "a\\x00b"),
            ("half \ud83d and \udc80", "half \\ud83d and \\udc80"),
            (42, "42"),
            (None, "None"),
            (b"\x00", "b'\\x00'"),
            (NoText(), "<NoText: its text cannot be had, __str__ raised SystemExit>"),
        ],
    )
    def test_shows_what_cannot_be_stored(self, given, stored):
        assert storable(given) == stored

    def test_cuts_what_is_too_long_and_says_how_long_it_was(self):
        assert storable("x" * 60, 60) == "x" * 60
        assert storable("x" * 61, 60) == "x" * 28 + " [... cut, 61 characters in all]"

    def test_may_keep_the_end_as_well(self):
        assert (
            storable("a" * 500 + "the cause", 60, tail=10)
            == "a" * 17 + " [... cut, 509 characters in all]\n" + "the cause"
        )

    def test_escapes_can_make_it_too_long(self):
        kept = storable("\x00" * 50, 60)
        assert len(kept) == 60
        assert kept.endswith("[... cut, 50 characters in all]")

    def test_two_megabytes_cost_no_more_than_their_head(self):
        assert len(storable("\x00" * 2_000_000, 100)) == 100

    @pytest.mark.parametrize("limit", range(80))
    @pytest.mark.parametrize("tail", [0, 1, 20])
    def test_never_exceeds_even_a_tiny_limit(self, limit, tail):
        assert len(storable("\x00x" * 200, limit, tail=tail)) <= limit

    @given(text, st.integers(0, 200), st.integers(0, 50))
    def test_is_always_short_enough_encodable_and_without_nul(self, value, limit, tail):
        kept = storable(value, limit, tail=tail)
        assert len(kept) <= limit
        assert b"\x00" not in kept.encode()

    @given(text)
    def test_leaves_good_text_alone(self, value):
        good = value.replace("\x00", "").encode(errors="ignore").decode()
        assert storable(good) == good


class TestPrintable:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            ("Grüße 🚀 שלום", "Grüße 🚀 שלום"),
            ("\x1b[2J\x1b]0;pwned\x07", "\\x1b[2J\\x1b]0;pwned\\x07"),
            ("\x9b31m", "\\x9b31m"),
            ("over\rwritten\b\x7f", "over\\x0dwritten\\x08\\x7f"),
            ("user\u202egnp.exe", "user\\u202egnp.exe"),
            ("\u2066\u2069\u200e\u061c\ufeff", "\\u2066\\u2069\\u200e\\u061c\\ufeff"),
            ("a\u2028b", "a\\u2028b"),
            ("\x00\ud800", "\\x00\\ud800"),
            ("👩\u200d🚀", "👩\u200d🚀"),  # joiners belong to letters
        ],
    )
    def test_takes_the_power_out_of_text(self, given, shown):
        assert printable(given) == shown

    def test_keeps_lines_or_not(self):
        assert printable("a\n\tb") == "a\n\tb"
        assert printable("a\n\tb", lines=False) == "a\\n\\tb"

    @given(text, st.booleans())
    def test_nothing_it_lets_through_is_a_control(self, value, lines):
        shown = printable(value, lines=lines)
        assert not {category(char) for char in shown.translate(LINES if lines else {})} & {"Cc", "Cs", "Zl", "Zp"}
        assert not {bidirectional(char) for char in shown} & {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "PDI"}


class TestOneLine:
    @pytest.mark.parametrize(
        ("given", "line"),
        [
            ("", ""),
            ("  two\r\n\t lines \n", "two lines"),
            ("a\u2028b\x85c\x0bd", "a b c d"),
            ("\x1b[31m\x00\ud800", "\\x1b[31m\\x00\\ud800"),
            (KeyError("subject"), "'subject'"),
            ("x" * 300, "x" * 300),
            ("x" * 301, "x" * 299 + "…"),
            ("x" * 5000, "x" * 299 + "…"),
            ("x" + " " * 5000, "x…"),
        ],
    )
    def test_examples(self, given, line):
        assert one_line(given) == line

    @given(text, st.integers(0, 40))
    def test_is_always_one_short_storable_line(self, value, limit):
        line = one_line(value, limit)
        assert len(line) <= limit
        assert len(line.splitlines()) <= 1
        assert storable(line) == line

    @given(text)
    def test_says_so_when_something_is_missing(self, value):
        assert one_line(value, 10).endswith("…") or one_line(value, 10) == one_line(value, 100_000)


class Sticky(str):
    """Text that claims to be other text, and its own text."""

    def __str__(self):
        return self

    def __len__(self):
        return 0


def test_plain_is_exactly_str():
    assert type(plain(Sticky("x"))) is str
    assert plain(Sticky("x")) == "x"
