"""Cleaning by cases worked out by hand; lower case against Perl's."""

import shutil
import subprocess

import pytest

from rbn_fairseq.corpora.clean import clean_pair, lower_case


def words(number, word="w"):
    return " ".join([word] * number)


@pytest.mark.parametrize(
    "source, target, kept",
    [
        (words(3), words(2), True),  # exactly 1.5
        (words(2), words(3), True),
        (words(16), words(10), False),
        (words(10), words(16), False),
        (words(175), words(175), True),
        (words(176), words(175), False),
        (words(175), words(176), False),
        ("", words(1), False),
        (words(1), " \u00a0", False),
        (words(1), "|", False),
        (words(1, "x" * 1000), words(1), True),
        (words(1, "x" * 1001), words(1), False),
        (words(1), words(1, "x" * 1001), False),
        (words(1), words(1), True),
    ],
)
def test_what_is_kept(source, target, kept):
    expected = (source, target) if kept else None
    assert clean_pair(source, target, longest=175, ratio=1.5) == expected


def test_limits_are_the_callers():
    assert clean_pair(words(9), words(1), longest=80, ratio=9) is not None
    assert clean_pair(words(10), words(1), longest=80, ratio=9) is None
    assert clean_pair(words(81), words(80), longest=80, ratio=9) is None


def test_white_space_and_bars_are_tidied():
    pair = clean_pair(" a\u2028b\u0085\u00a0c\t", "a|b  c ", longest=5, ratio=1.5)
    assert pair == ("a b c", "ab c")
    # Perl's white space ends here; str.split would cut.
    assert clean_pair("a\x1fb", "a", longest=1, ratio=1.0) == ("a\x1fb", "a")


@pytest.mark.skipif(shutil.which("perl") is None, reason="the oracle is Perl")
def test_lower_case_is_perls():
    # Latin, Greek, Cyrillic and Georgian as single characters, and sigma at the end of words.
    text = "\n".join([*map(chr, range(0x21, 0x1D00)), "ΟΔΟΣ ΑΣ, Σ ΣΑ", "İI ẞ"]) + "\n"
    perl = subprocess.run(
        ["perl", "-CSD", "-ne", "print lc"], input=text.encode(), capture_output=True, check=True
    )
    assert [lower_case(line) for line in text.split("\n")] == perl.stdout.decode().split("\n")
