"""Sets of characters: what `[a-z]`, `\\d`, `\\pL`, `[[:alpha:]]` and `.` stand for.

A general category comes from Python's `unicodedata`, so what Unicode added lately is in it only on a newer Python.
Scripts have a table of their own, because Python has none.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final

from dracaena.cel.values.regex.scripts import SCRIPTS

MAX_CODE_POINT: Final = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """A union of items, or everything else when `negated`."""

    items: tuple[Item, ...]
    negated: bool = False

    def __contains__(self, character: str) -> bool:
        code_point = ord(character)
        return any(item.has(code_point) for item in self.items) != self.negated


@dataclass(frozen=True, slots=True)
class Item:
    """One part of a set: what `test` says, or the opposite when `negated`; `fold` counts all cases of a character."""

    test: Callable[[int], bool]
    negated: bool = False
    fold: bool = False

    def has(self, code_point: int) -> bool:
        """Whether the code point is in the part."""
        if self.fold:
            return any(map(self.test, cases(code_point))) != self.negated
        return self.test(code_point) != self.negated


def ranges_item(ranges: Ranges, *, negated: bool = False, fold: bool = False) -> Item:
    """The part that holds these inclusive ranges, given in rising order without overlap."""
    if len(ranges) == 1:
        [(low, high)] = ranges
        return Item(lambda code_point: low <= code_point <= high, negated, fold)
    lows = [low for low, _ in ranges]
    highs = [high for _, high in ranges]

    def test(code_point: int) -> bool:
        at = bisect_right(lows, code_point) - 1
        return at >= 0 and code_point <= highs[at]

    return Item(test, negated, fold)


def _spans(text: str) -> Ranges:
    """Ranges from pairs of characters: "09az" is 0 to 9 and a to z."""
    return tuple((ord(text[at]), ord(text[at + 1])) for at in range(0, len(text), 2))


# The escapes that Perl has and RE2 knows, all of ASCII only.
ESCAPED_CLASSES: Final[dict[str, Ranges]] = {
    "d": _spans("09"),
    "s": _spans("\t\n\f\r  "),
    "w": _spans("09AZ__az"),
}

# [[:name:]] of POSIX, all of ASCII only.
POSIX_CLASSES: Final[dict[str, Ranges]] = {
    "alnum": _spans("09AZaz"),
    "alpha": _spans("AZaz"),
    "ascii": _spans("\x00\x7f"),
    "blank": _spans("\t\t  "),
    "cntrl": _spans("\x00\x1f\x7f\x7f"),
    "digit": _spans("09"),
    "graph": _spans("!~"),
    "lower": _spans("az"),
    "print": _spans(" ~"),
    "punct": _spans("!/:@[`{~"),
    "space": _spans("\t\r  "),
    "upper": _spans("AZ"),
    "word": _spans("09AZ__az"),
    "xdigit": _spans("09AFaf"),
}

_CATEGORIES: Final = frozenset(
    f"{group}{kind}"
    for group, kinds in {
        "C": "cfnos",
        "L": "lmotu",
        "M": "cen",
        "N": "dlo",
        "P": "cdefios",
        "S": "ckmo",
        "Z": "lps",
    }.items()
    for kind in ("", *kinds)
)

# The long names of categories (PropertyValueAliases.txt of Unicode), as `_canonical` writes them.
_LONG_CATEGORIES: Final = {
    "Casedletter": "LC", "Closepunctuation": "Pe", "Combiningmark": "M", "Connectorpunctuation": "Pc", "Control": "Cc",
    "Currencysymbol": "Sc", "Dashpunctuation": "Pd", "Decimalnumber": "Nd", "Enclosingmark": "Me",
    "Finalpunctuation": "Pf", "Format": "Cf", "Initialpunctuation": "Pi", "Letter": "L", "Letternumber": "Nl",
    "Lineseparator": "Zl", "Lowercaseletter": "Ll", "Mark": "M", "Mathsymbol": "Sm", "Modifierletter": "Lm",
    "Modifiersymbol": "Sk", "Nonspacingmark": "Mn", "Number": "N", "Openpunctuation": "Ps", "Other": "C",
    "Otherletter": "Lo", "Othernumber": "No", "Otherpunctuation": "Po", "Othersymbol": "So", "Paragraphseparator": "Zp",
    "Privateuse": "Co", "Punctuation": "P", "Separator": "Z", "Spaceseparator": "Zs", "Spacingmark": "Mc",
    "Surrogate": "Cs", "Symbol": "S", "Titlecaseletter": "Lt", "Unassigned": "Cn", "Uppercaseletter": "Lu",
    "Cntrl": "Cc", "Digit": "Nd", "Punct": "P",
}  # fmt: skip

_SCRIPT_NAMES: Final = {name.replace("_", "").capitalize(): name for name in SCRIPTS}


def unicode_item(name: str, *, negated: bool, fold: bool) -> Item | None:
    """The part that `\\p{name}` stands for: a category, a script, Any, Assigned or ASCII. None: no such name."""
    name = name.replace("_", "").replace("-", "").replace(" ", "").capitalize()
    if name == "Any":
        return ranges_item(((0, MAX_CODE_POINT),), negated=negated)
    if name == "Ascii":
        return ranges_item(((0, 0x7F),), negated=negated, fold=fold)
    if name == "Assigned":
        return Item(lambda code_point: _category(code_point) != "Cn", negated)
    category = name if name in _CATEGORIES else "LC" if name == "Lc" else None
    if category is None and name in _SCRIPT_NAMES:
        return ranges_item(script_ranges(_SCRIPT_NAMES[name]), negated=negated, fold=fold)
    category = category or _LONG_CATEGORIES.get(name)
    if category is None:
        return None
    wanted = ("Lu", "Ll", "Lt") if category == "LC" else category
    return Item(lambda code_point: _category(code_point).startswith(wanted), negated, fold)


def _category(code_point: int) -> str:
    return unicodedata.category(chr(code_point))


@cache
def script_ranges(name: str) -> Ranges:
    """The ranges of one script, in rising order."""
    ranges: list[tuple[int, int]] = []
    for part in SCRIPTS[name].split():
        low, _, rest = part.partition("-")
        high, _, stride = rest.partition("/")
        start, end = int(low, 16), int(high or low, 16)
        if stride:
            ranges += [(code_point, code_point) for code_point in range(start, end + 1, int(stride, 16))]
        else:
            ranges.append((start, end))
    return tuple(ranges)


def cases(code_point: int) -> Iterable[int]:
    """The code point with all that differ from it by case alone (Unicode's simple case folding)."""
    if code_point < 0x80:
        return _ASCII_CASES[code_point]
    return _other_cases().get(_folded(code_point), (code_point,))


def _folded(code_point: int) -> int:
    """One representative for all cases of a character. Mappings to several characters are no simple folding."""
    if code_point in _ALONE:
        return code_point
    character = chr(code_point)
    upper = character.upper()
    if len(upper) == 1:
        character = upper
    lower = character.lower()
    return ord(lower) if len(lower) == 1 else code_point


_ALONE: Final = frozenset(
    {0x130, 0x131}
)  # I with dot and i without: their cases belong to Turkish, not to simple folding


def _ascii_cases(code_point: int) -> tuple[int, ...]:
    character = chr(code_point)
    found = {code_point, ord(character.lower()), ord(character.upper())}
    if character in "kK":
        found.add(0x212A)  # Kelvin sign
    if character in "sS":
        found.add(0x17F)  # long s
    return tuple(sorted(found))


_ASCII_CASES: Final = tuple(_ascii_cases(code_point) for code_point in range(0x80))


@cache
def _other_cases() -> dict[int, tuple[int, ...]]:
    """From the representative to all cases, where there is more than one. Built when first asked: it takes 50 ms."""
    groups: dict[int, list[int]] = {}
    for code_point in range(_LAST_CASED + 1):
        folded = _folded(code_point)
        if folded != code_point:
            groups.setdefault(folded, [folded]).append(code_point)
    return {folded: tuple(sorted(members)) for folded, members in groups.items()}


_LAST_CASED: Final = 0x1E943  # Adlam's last letter; Unicode has no cased characters above it
