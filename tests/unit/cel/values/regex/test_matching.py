from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.errors import CostLimitError, EvaluationError
from dracaena.cel.values.regex import engine, matching
from dracaena.cel.values.regex.pattern import Pattern


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
        (r"\p{ LC}+", "1aBǅ", "aBǅ"),
        (r"\pC", "\u0378", "\u0378"),  # to RE2 itself what is unassigned is no C
        (r"[^\pC\d]+", "\u03781a", "a"),
        (r"[\p{Cn}x]+", "ax\u0378", "x\u0378"),
        (r"(?i)[\P{LC}]+", "aA1-", "1-"),
        (r"\p{Assigned}", "\u0378a", "a"),
        ("[kK]|[0-9]", "\u212a", None),  # RE2 itself takes the Kelvin sign for a k here
        ("[sS]|x", "\u017f", None),
        (r"\B", "a漢b", None),  # RE2 itself finds it in the middle of the character
        (r"\B-", "a漢-", "-"),
        ("(?P<n>a)(?P<n>b)", "ab", "ab"),
        (r"\B\Q)(", "漢)(", ")("),
        ("a\x00b", "xa\x00b", "a\x00b"),
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
def test_a_pattern_finds_what_go_finds(pattern: str, text: str, found: str | None) -> None:
    assert matching.find(text, pattern) == (found or "")
    assert matching.search(text, pattern) == (found is not None)


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
        (r"\B", "漢a", -1, [""]),
        (r"\B", "a漢b", -1, []),
        (r"x|\B", "é漢x", 2, ["", ""]),
    ],
)
def test_matches_follow_each_other(pattern: str, text: str, limit: int, found: list[str]) -> None:
    assert matching.find_all(text, pattern, limit) == tuple(found)


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


@settings(derandomize=True)
@given(st.one_of(PATTERNS, OPTIONAL), TEXTS)
def test_the_same_is_found_as_by_pythons_engine(pattern: str, text: str) -> None:
    wanted = re.search(pattern, text, re.ASCII)
    assert matching.find(text, pattern) == ("" if wanted is None else wanted.group())
    assert matching.search(text, pattern) == (wanted is not None)


@settings(derandomize=True)
@given(st.one_of(PATTERNS, OPTIONAL), TEXTS)
def test_all_matches_are_those_of_pythons_engine_but_for_empty_ones_behind_a_match(pattern: str, text: str) -> None:
    wanted, end = [], -1
    for match in re.finditer(pattern, text, re.ASCII):
        if match.end() > match.start() or match.start() != end:
            wanted.append(match.group())
        end = match.end()
    assert matching.find_all(text, pattern) == tuple(wanted)


def test_no_answer_depends_on_groups() -> None:
    assert matching.find_all("abab", "(a)(b)") == ("ab", "ab")
    assert matching.find_all("ab漢b", r"(?:(a)|(\B))(?P<n>b)?") == ("ab",)


@pytest.mark.parametrize("pattern", [r"\pL{100}", "[^a]{1000}" * 20, "(.?){1000}" * 20])
def test_a_pattern_that_takes_too_much_memory_is_the_limit_and_no_match(pattern: str) -> None:
    matching.check(pattern)  # Go takes it
    for ask in (matching.search, matching.find, matching.find_all):
        with pytest.raises(CostLimitError, match="a regular expression is too large"):
            ask("a", pattern)


def test_a_pattern_that_is_refused_is_an_error_of_the_evaluation() -> None:
    for ask in (matching.search, matching.find, matching.find_all):
        with pytest.raises(EvaluationError, match=r"error parsing regexp: missing closing \): `\(`"):
            ask("a", "(")
    with pytest.raises(EvaluationError):
        matching.check("(")


def test_what_only_re2_would_refuse_is_an_error_of_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "read", lambda pattern: Pattern(pattern, 1))
    for ask in (matching.search, matching.find, matching.find_all):
        with pytest.raises(EvaluationError, match="error parsing regexp: missing"):
            ask("a", "(")


def test_nothing_is_written_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(engine.TooLargeError):
        engine.program_size(r"\pL{1000}")
    with pytest.raises(ValueError, match="missing"):
        engine.program_size("(")
    matching.search("ab" * 2_000, "(?:a?b?){500}c")  # RE2 runs out of memory for states
    assert capfd.readouterr() == ("", "")


def test_patterns_are_kept_by_us_alone_and_few_of_them() -> None:
    for number in range(200):
        matching.search("a", f"a{{{number}}}")
    import re2

    assert re2._Regexp._make.cache_info().currsize == 0
    assert engine._ready.cache_info().currsize <= 32


def test_threads_search_at_the_same_time() -> None:
    """RE2 lets the other threads run while it searches: a long search holds up nobody."""
    text, turns = "ab" * 2_000_000, []
    started, ended = threading.Event(), threading.Event()

    def search() -> None:
        started.set()
        assert not matching.search(text, "(?:a?b?){20}c")
        ended.set()

    thread = threading.Thread(target=search)
    thread.start()
    assert started.wait(10)
    while not ended.is_set():
        turns.append(1)
    thread.join()
    assert len(turns) > 1_000
