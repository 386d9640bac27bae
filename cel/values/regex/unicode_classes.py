"""What `\\p{name}` means to Go, translated for RE2.

Go looks names up without regard to case, spaces, hyphens and underscores, and knows the long names of categories and
`Any`, `Assigned`, `ASCII`, `Cn` and `LC`; RE2 knows short names of categories, and scripts by their exact name. To Go,
`C` includes unassigned code points; to RE2 it does not. Names of scripts with two capitals ("Old_Italic") are refused
by Go 1.25 and 1.26, whose lookup does not find them, so they are refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from dracaena.cel.values.regex import engine

_LONG_CATEGORIES: Final = {
    "Casedletter": "Lc", "Closepunctuation": "Pe", "Combiningmark": "M", "Connectorpunctuation": "Pc", "Control": "Cc",
    "Currencysymbol": "Sc", "Dashpunctuation": "Pd", "Decimalnumber": "Nd", "Enclosingmark": "Me",
    "Finalpunctuation": "Pf", "Format": "Cf", "Initialpunctuation": "Pi", "Letter": "L", "Letternumber": "Nl",
    "Lineseparator": "Zl", "Lowercaseletter": "Ll", "Mark": "M", "Mathsymbol": "Sm", "Modifierletter": "Lm",
    "Modifiersymbol": "Sk", "Nonspacingmark": "Mn", "Number": "N", "Openpunctuation": "Ps", "Other": "C",
    "Otherletter": "Lo", "Othernumber": "No", "Otherpunctuation": "Po", "Othersymbol": "So", "Paragraphseparator": "Zp",
    "Privateuse": "Co", "Punctuation": "P", "Separator": "Z", "Spaceseparator": "Zs", "Spacingmark": "Mc",
    "Surrogate": "Cs", "Symbol": "S", "Titlecaseletter": "Lt", "Unassigned": "Cn", "Uppercaseletter": "Lu",
    "Cntrl": "Cc", "Digit": "Nd", "Punct": "P",
}  # fmt: skip

_VISIBLE: Final = r"\pL\pM\pN\pP\pS\pZ"
# Names that RE2 lacks or understands differently: what they contain, or with True what they do not contain.
_COMPOSED: Final = {
    "Any": (r"\p{Any}", False),
    "Ascii": (r"\x00-\x7F", False),
    "Assigned": (rf"{_VISIBLE}\pC", False),
    "C": (_VISIBLE, True),
    "Cn": (rf"{_VISIBLE}\pC", True),
    "Lc": (r"\p{Lu}\p{Ll}\p{Lt}", False),
}


class NoSuchClassError(ValueError):
    """Go knows no Unicode class of this name."""


@dataclass(frozen=True, slots=True)
class UnicodeClass:
    """One class in RE2's syntax, `alone` or `within_brackets`, and how many instructions it takes."""

    alone: str
    within_brackets: str
    size: int


def unicode_class(name: str, *, negated: bool, fold: bool) -> UnicodeClass:
    """The class of this name, or everything else when `negated`. Raises NoSuchClassError."""
    name = name.replace("_", "").replace("-", "").replace(" ", "")
    name = name[:1].upper() + name[1:].lower() if name.isascii() else ""
    return _class(_LONG_CATEGORIES.get(name, name), negated=negated, fold=fold)


@cache  # some 200 names; others raise, which is not kept
def _class(name: str, *, negated: bool, fold: bool) -> UnicodeClass:
    if name in _COMPOSED:
        items, complement = _COMPOSED[name]
    else:
        items, complement = rf"\p{{{name}}}", False
        if not name.isalpha() or not _is_known(items):
            raise NoSuchClassError(name)
    negated = negated != complement
    alone = f"[^{items}]" if negated else f"[{items}]"
    within = items
    if negated:
        within = items.replace("p", "P", 1) if items.count("\\") == 1 else _ranges(alone, fold=fold)
    size = engine.program_size(f"(?i){alone}" if fold else alone)
    return UnicodeClass(alone, within, size)


def _is_known(pattern: str) -> bool:
    try:
        engine.program_size(pattern)
    except ValueError:
        return False
    return True


@cache
def _ranges(bracketed: str, *, fold: bool) -> str:
    """The content of a class as ranges: within brackets a union cannot be negated. Takes 0.2 s, once per class."""
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))  # no text contains a surrogate
    found = engine.runs(f"(?i){bracketed}+" if fold else f"{bracketed}+", everything)
    return "".join(f"\\x{{{ord(everything[begin]):X}}}-\\x{{{ord(everything[end - 1]):X}}}" for begin, end in found)
