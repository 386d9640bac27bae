from __future__ import annotations

import pytest
from conformance.random_patterns import Generator
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.values.regex import engine
from dracaena.cel.values.regex.syntax import MAX_HEIGHT, RegexError, read
from support.seeds import in_tiers


@pytest.mark.parametrize(
    ("pattern", "reason", "part"),
    [
        (r"(a)\1", "invalid escape sequence", r"\1"),
        ("a(?=b)", "invalid or unsupported Perl syntax", "(?="),
        ("a(?!b)", "invalid or unsupported Perl syntax", "(?!"),
        ("(?<=a)b", "invalid named capture", "(?<=a)b"),
        ("(?>a)", "invalid or unsupported Perl syntax", "(?>"),
        ("a++", "invalid nested repetition operator", "++"),
        ("a**", "invalid nested repetition operator", "**"),
        ("a{2}{3}", "invalid nested repetition operator", "{2}{3}"),
        ("a???", "invalid nested repetition operator", "???"),
        ("a{1001}", "invalid repeat count", "{1001}"),
        ("a{1,1001}", "invalid repeat count", "{1,1001}"),
        ("a{99999999999999999999}", "invalid repeat count", "{99999999999999999999}"),
        ("a{2,1}", "invalid repeat count", "{2,1}"),
        ("((a{10}){10}){11}", "invalid repeat count", "{11}"),
        ("*a", "missing argument to repetition operator", "*"),
        ("a|*", "missing argument to repetition operator", "*"),
        ("(+?a)", "missing argument to repetition operator", "+?"),
        ("(?i)*", "missing argument to repetition operator", "*"),
        ("(a", "missing closing )", "(a"),
        ("a)", "unexpected )", "a)"),
        ("[a", "missing closing ]", "[a"),
        ("[]", "missing closing ]", "[]"),
        ("[z-a]", "invalid character class range", "z-a"),
        ("[[:foo:]]", "invalid character class range", "[:foo:]"),
        (r"\pX", "invalid character class range", r"\pX"),
        (r"\p{Nope}", "invalid character class range", r"\p{Nope}"),
        (r"\p{Old_Italic}", "invalid character class range", r"\p{Old_Italic}"),  # Go's look-up does not find it
        (r"[\p{}]", "invalid character class range", r"\p{}"),
        (r"\pé", "invalid character class range", r"\pé"),
        (r"\p{L", "invalid character class range", r"\p{L"),
        (r"\p", "invalid character class range", r"\p"),
        ("a\\", "trailing backslash at end of expression", ""),
        (r"\8", "invalid escape sequence", r"\8"),
        (r"\y", "invalid escape sequence", r"\y"),
        (r"\C", "invalid escape sequence", r"\C"),
        (r"\xg", "invalid escape sequence", r"\xg"),
        (r"\x{110000}", "invalid escape sequence", r"\x{110000"),
        (r"\x{}", "invalid escape sequence", r"\x{}"),
        (r"[\b]", "invalid escape sequence", r"\b"),
        ("(?P<>a)", "invalid named capture", "(?P<>"),
        ("(?P<é>a)", "invalid named capture", "(?P<é>"),
        (r"a\E", "invalid escape sequence", r"\E"),
        ("(?P<a-b>a)", "invalid named capture", "(?P<a-b>"),
        ("(?P=a)", "invalid or unsupported Perl syntax", "(?P"),
        ("(?i-)", "invalid or unsupported Perl syntax", "(?i-)"),
        ("(?--i)", "invalid or unsupported Perl syntax", "(?--"),
        ("(?i", "invalid or unsupported Perl syntax", "(?i"),
    ],
)
def test_what_go_refuses_is_refused_with_the_part_that_is_wrong(pattern: str, reason: str, part: str) -> None:
    with pytest.raises(RegexError) as refused:
        read(pattern)
    assert str(refused.value) == f"error parsing regexp: {reason}: `{part}`"


@pytest.mark.parametrize(
    "pattern",
    ["a{1000}", "((a{10}){10}){10}", "(a{1000}){1}", "a{0}{", "(?i-s:a)", "(?)", "a{,5}", "a{01}", "{", "x{2}?", "()*"],
)
def test_what_go_takes_is_taken(pattern: str) -> None:
    engine.program_size(read(pattern).text)


@pytest.mark.parametrize("seeds", in_tiers(range(200), range(200, 3_000)))
def test_the_size_bounds_what_re2_makes_of_a_pattern(seeds: range) -> None:
    """It is what is charged before RE2 compiles."""
    compared = 0
    for seed in seeds:
        pattern = Generator(seed).pattern()
        try:
            made = read(pattern)
            taken = engine.program_size(made.text)
        except (RegexError, engine.TooLargeError):
            continue
        assert taken <= made.size + 20, pattern
        compared += 1
    assert compared > len(seeds) // 2


@pytest.mark.parametrize("opening", ["(", "(?:a|", "(?:"])
def test_deep_nesting_is_refused_and_not_a_crash(opening: str) -> None:
    pattern = opening * 5000 + "a" + ")*" * 5000
    with pytest.raises(RegexError, match="expression nests too deeply"):
        read(pattern)
    quarter = MAX_HEIGHT // 4
    engine.program_size(read(opening * quarter + "a" + ")*" * quarter).text)


@settings(derandomize=True)
@given(st.text(r"ab()[]{}|*+?.^$\-,:=!<>P01pLxQEdwi", max_size=24))
def test_any_text_is_refused_here_or_taken_by_re2(pattern: str) -> None:
    try:
        made = read(pattern)
    except RegexError as refused:
        assert str(refused).startswith("error parsing regexp: ")  # noqa: PT017 - either outcome is fine
    else:
        assert engine.program_size(made.text) <= made.size + 20
