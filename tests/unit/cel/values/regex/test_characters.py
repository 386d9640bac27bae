from __future__ import annotations

import re
import unicodedata

import pytest

from dracaena.cel.values.regex.characters import MAX_CODE_POINT, POSIX_CLASSES, cases, script_ranges, unicode_item
from dracaena.cel.values.regex.scripts import SCRIPTS


def test_the_cases_of_a_character_are_the_cases_of_each_of_them() -> None:
    for code_point in range(0x1F000):
        found = tuple(cases(code_point))
        assert code_point in found
        assert all(tuple(cases(other)) == found for other in found)


@pytest.mark.parametrize(
    ("character", "others"),
    [
        ("k", "Kk\u212a"),
        ("\u017f", "Ss\u017f"),
        ("ß", "ß\u1e9e"),
        ("µ", "µ\u039c\u03bc"),
        ("\u0130", "\u0130"),
        ("\u0131", "\u0131"),
        ("1", "1"),
        ("ǅ", "Ǆǅǆ"),
    ],
)
def test_case_folding_is_unicodes_simple_one(character: str, others: str) -> None:
    assert "".join(map(chr, cases(ord(character)))) == others


def test_scripts_do_not_overlap() -> None:
    owner: dict[int, str] = {}
    for name in SCRIPTS:
        ranges = script_ranges(name)
        assert all(low <= high for low, high in ranges)
        assert list(ranges) == sorted(ranges)
        for low, high in ranges:
            for code_point in range(low, high + 1):
                assert owner.setdefault(code_point, name) == name
    assert owner[ord("a")] == "Latin"
    assert owner[ord("γ")] == "Greek"
    assert owner[ord("ж")] == "Cyrillic"
    assert owner[ord("漢")] == "Han"
    assert owner[ord("1")] == "Common"
    assert len(SCRIPTS) == 163


def test_characters_that_are_assigned_have_a_script_if_any() -> None:
    for low, high in (span for name in SCRIPTS for span in script_ranges(name)):
        assert unicodedata.category(chr(low)) != "Cs"
        assert high <= MAX_CODE_POINT


@pytest.mark.parametrize("name", ["L", "Lu", "Nd", "P", "Zs", "Sm", "LC", "Cased_Letter", "punct"])
def test_categories_hold_what_unicode_says(name: str) -> None:
    cased = ("Lu", "Ll", "Lt")
    wanted = {"LC": cased, "Cased_Letter": cased, "punct": ("P",)}.get(name, (name,))
    item = unicode_item(name, negated=False, fold=False)
    opposite = unicode_item(name, negated=True, fold=False)
    assert item is not None
    assert opposite is not None
    for code_point in range(0, MAX_CODE_POINT, 37):
        holds = unicodedata.category(chr(code_point)).startswith(wanted)
        assert item.has(code_point) == holds
        assert opposite.has(code_point) != holds


def test_posix_classes_are_those_of_ascii() -> None:
    python = {
        "alnum": str.isalnum,
        "alpha": str.isalpha,
        "digit": str.isdigit,
        "lower": str.islower,
        "upper": str.isupper,
    }
    for name, ranges in POSIX_CLASSES.items():
        members = {chr(code_point) for low, high in ranges for code_point in range(low, high + 1)}
        assert all(character.isascii() for character in members)
        if name in python:
            assert members == {chr(n) for n in range(128) if python[name](chr(n))}
    word = {chr(n) for low, high in POSIX_CLASSES["word"] for n in range(low, high + 1)}
    assert word == {chr(n) for n in range(128) if re.match(r"\w", chr(n), re.ASCII)}
