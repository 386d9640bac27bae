from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.values.regex.program import compile_pattern
from dracaena.cel.values.regex.search import Search


def find(pattern: str, text: str) -> str | None:
    match = Search(compile_pattern(pattern), text).find()
    return None if match is None else text[match[0] : match[1]]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a|ab", "ab", "a"),
        ("ab|a", "ab", "ab"),
        ("a*", "baa", ""),
        ("a+?", "aa", "a"),
        ("(?U)a+", "aa", "a"),
        ("(?U)a+?", "aa", "aa"),
        ("a??b", "ab", "ab"),
        ("a{2}", "aaa", "aa"),
        ("a{2,}?", "aaa", "aa"),
        ("a{0,2}", "aaa", "aa"),
        ("a{,2}", "a{,2}", "a{,2}"),
        ("x{0}y", "xy", "y"),
        ("(|a)*", "aa", ""),
        ("(a|b)*?c", "abc", "abc"),
        ("(?i)straße", "STRAẞE", "STRAẞE"),
        ("(?i)k", "\u212a", "\u212a"),
        ("(?i)[^k]", "K\u212ax", "x"),
        ("(?i)[[:upper:]]+", "abC", "abC"),
        ("(?i:a)b", "Ab", "Ab"),
        ("(?i:a)b", "AB", None),
        ("a(?i)b|c", "aB", "aB"),
        ("(a(?i)b)c", "aBC", None),
        ("(?s).", "\n", "\n"),
        (".", "\n", None),
        ("[^a]", "\n", "\n"),
        ("(?m)^b$", "a\nb\nc", "b"),
        ("^b", "a\nb", None),
        ("a$", "a\n", None),
        (r"\Ab", "ab", None),
        (r"a\z", "aa", "a"),
        (r"\bb\b", "ab b", "b"),
        (r"\Bb", "b ab", "b"),
        (r"\bé", "é", None),
        (r"\w+", "éab_1", "ab_1"),
        (r"\d", "٣", None),
        (r"\pN", "٣", "٣"),
        (r"\PL+", "ab12", "12"),
        (r"\p{^Lu}", "Aa", "a"),
        (r"\p{Greek}+", "abγδ", "γδ"),
        (r"\p{lowercase_letter}", "Aa", "a"),
        (r"(?i)\p{Lu}", "a", "a"),
        (r"[\d\-x]+", "a1-x", "1-x"),
        ("[]a]+", "]a", "]a"),
        ("[^]a]", "]ab", "b"),
        ("[a-]+", "-a", "-a"),
        ("[[:word:]]+", "-a_1", "a_1"),
        ("[[:^digit:]]+", "1a", "a"),
        (r"\x41\x{42}\103", "ABC", "ABC"),
        (r"\Qa.b\E+", "a.bb", "a.bb"),
        (r"\Q[", "[", "["),
        ("(?P<name>a)(?<other>b)", "ab", "ab"),
    ],
)
def test_a_pattern_finds_what_re2_finds(pattern: str, text: str, found: str | None) -> None:
    assert find(pattern, text) == found
    assert Search(compile_pattern(pattern), text).matches() == (found is not None)


@pytest.mark.parametrize(
    ("pattern", "text", "limit", "found"),
    [
        ("a*", "baac", -1, ["", "aa", ""]),
        ("", "éé", -1, ["", "", ""]),
        ("a|aa", "aaa", -1, ["a", "a", "a"]),
        ("a", "aaa", 2, ["a", "a"]),
        ("a", "aaa", 0, []),
        ("^a", "aa", -1, ["a"]),
        (r"\b", "ab c", -1, ["", "", "", ""]),
    ],
)
def test_matches_follow_each_other(pattern: str, text: str, limit: int, found: list[str]) -> None:
    assert Search(compile_pattern(pattern), text).find_all(limit) == found


BACKTRACKERS_BANE = [
    "(a*)*b",
    "(a|aa)+$",
    ".*.*.*x",
    "(a?){30}a{30}b",
    "(x+x+)+y",
    "((a|b)*|(b|a)*)*c",
    "([a-zA-Z]+)*!",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(\w*\s*)*;",
]


@pytest.mark.parametrize("pattern", BACKTRACKERS_BANE)
@pytest.mark.parametrize("letters", ["a", "ab", "x"])
def test_the_steps_of_a_search_grow_linearly_whatever_the_pattern(pattern: str, letters: str) -> None:
    program = compile_pattern(pattern)

    def steps(length: int) -> int:
        search = Search(program, (letters * length)[:length] + "?")
        search.matches()
        assert search.steps <= 2 * (length + 2) * len(program.instructions)
        return search.steps

    first, second, third = steps(200), steps(400), steps(600)
    assert third - second <= second - first + 2 * len(program.instructions)


@pytest.mark.parametrize("pattern", BACKTRACKERS_BANE)
def test_finding_where_a_match_is_takes_no_more_steps_than_the_bound(pattern: str) -> None:
    program = compile_pattern(pattern)
    search = Search(program, "a" * 300)
    search.find()
    assert search.steps <= 2 * 301 * len(program.instructions)


# Patterns that mean the same in Python: ASCII, and no repetition of what can be empty, where engines disagree.
LETTERS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\w", r"\d", r"\s", "[b-c1]", r"\."])
EDGES = st.sampled_from([r"\b", r"\B", "^", r"\A"])


def bigger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(parts, min_size=2, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda each: f"(?:{'|'.join(each)})"),
        st.tuples(parts, st.sampled_from(["+", "+?", "{1,2}", "{2}", "{2,}?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        st.tuples(EDGES, parts).map("".join),
    )


PATTERNS = st.recursive(LETTERS, bigger, max_leaves=8)
OPTIONAL = st.tuples(PATTERNS, st.sampled_from(["*", "*?", "?", "??"]), PATTERNS).map(
    lambda p: f"(?:{p[0]}){p[1]}{p[2]}"
)
TEXTS = st.text("abc1 .\n", max_size=14)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(PATTERNS, OPTIONAL), TEXTS)
def test_the_same_is_found_as_by_pythons_engine(pattern: str, text: str) -> None:
    wanted = re.search(pattern, text, re.ASCII)
    search = Search(compile_pattern(pattern), text)
    assert search.find() == (None if wanted is None else wanted.span())
    assert Search(search.program, text).matches() == (wanted is not None)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.one_of(PATTERNS, OPTIONAL), TEXTS)
def test_all_matches_are_those_of_pythons_engine_but_for_empty_ones_behind_a_match(pattern: str, text: str) -> None:
    wanted, end = [], -1
    for match in re.finditer(pattern, text, re.ASCII):
        if match.end() > match.start() or match.start() != end:
            wanted.append(match.group())
        end = match.end()
    assert Search(compile_pattern(pattern), text).find_all(-1) == wanted
