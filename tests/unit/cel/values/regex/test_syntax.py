from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.values.regex.program import MAX_SIZE, compile_pattern
from dracaena.cel.values.regex.syntax import MAX_DEPTH, RegexError, parse


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
        ("(?P<a-b>a)", "invalid named capture", "(?P<a-b>"),
        ("(?P=a)", "invalid or unsupported Perl syntax", "(?P"),
        ("(?i-)", "invalid or unsupported Perl syntax", "(?i-)"),
        ("(?--i)", "invalid or unsupported Perl syntax", "(?--"),
        ("(?i", "invalid or unsupported Perl syntax", "(?i"),
    ],
)
def test_what_re2_refuses_is_refused_with_the_part_that_is_wrong(pattern: str, reason: str, part: str) -> None:
    with pytest.raises(RegexError) as refused:
        parse(pattern)
    assert str(refused.value) == f"error parsing regexp: {reason}: `{part}`"


@pytest.mark.parametrize(
    "pattern",
    ["a{1000}", "((a{10}){10}){10}", "(a{1000}){1}", "a{0}{", "(?i-s:a)", "(?)", "a{,5}", "a{01}", "{", "x{2}?", "()*"],
)
def test_what_re2_takes_is_taken(pattern: str) -> None:
    parse(pattern)


def test_the_size_of_a_program_is_bounded_by_what_the_tree_says() -> None:
    for pattern in ("(a|bc*){7}", "((x+)?y{2,5})*", "[a-z]{3,}|^$", "(a{10}){10}", "", "(|a)+"):
        assert len(compile_pattern(pattern).instructions) <= parse(pattern).size + 2


def test_a_pattern_of_too_many_instructions_is_refused_before_they_are_made() -> None:
    piece = "a{1000}"
    with pytest.raises(RegexError, match="expression too large"):
        compile_pattern(piece * (MAX_SIZE // 1000 + 1))
    compile_pattern(piece * (MAX_SIZE // 1000 - 1))


@pytest.mark.parametrize("opening", ["(", "(?:a|", "(?:"])
def test_deep_nesting_is_refused_and_not_a_crash(opening: str) -> None:
    pattern = opening * 5000 + "a" + ")*" * 5000
    with pytest.raises(RegexError, match="expression nests too deeply"):
        compile_pattern(pattern)
    half = MAX_DEPTH // 4
    compile_pattern(opening * half + "a" + ")*" * half)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.text(r"ab()[]{}|*+?.^$\-,:=!<>P01pLxQEdwi", max_size=24))
def test_any_text_is_a_program_or_refused(pattern: str) -> None:
    try:
        program = compile_pattern(pattern)
    except RegexError as refused:
        assert str(refused).startswith("error parsing regexp: ")  # noqa: PT017 - either outcome is fine
    else:
        assert len(program.instructions) <= parse(pattern).size + 2
