"""The grammar of Go's `regexp/syntax`, which users of Kubernetes know: what it refuses, and in its words.

RE2 and Go share their grammar except for a few corners: Go refuses `\\C` and names of groups beyond ASCII, and knows
more names of Unicode classes. So a pattern is read here first; the result means the same to RE2. Groups are not kept,
because nothing in CEL asks what a group matched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dracaena.cel.values.regex.pattern import Pattern
from dracaena.cel.values.regex.unicode_classes import NoSuchClassError, UnicodeClass, unicode_class

MAX_COUNT: Final = 1000  # copies that counted repetitions may ask for, nested ones multiplied
MAX_HEIGHT: Final = 1000  # levels of nested operators

# Most instructions that RE2 creates for one part of a pattern, as UTF-8 is matched byte by byte. Measured, and enforced
# by a test that compiles random patterns.
_ASCII_SIZE: Final = 1
_CHARACTER_SIZE: Final = 8  # a character above ASCII with all its cases
_ANY_SIZE: Final = 10  # `.`
_RANGE_SIZE: Final = 32  # a range of characters that goes beyond ASCII, or everything but some characters
_FOLDED_RANGE_SIZE: Final = 1_500  # the same with the cases of all its characters; as many as Unicode has

_LITERALS: Final = re.compile(r"[^\\()\[{.*+?^$|]+")
_COUNTS: Final = re.compile(r"\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\}")
_PERL_CLASSES: Final = frozenset("dswDSW")
_POSIX_CLASSES: Final = frozenset(
    {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower"}
    | {"print", "punct", "space", "upper", "word", "xdigit"}
)
# The letters that have a case variant beyond ASCII. RE2 adds it when it joins this class to another one: to RE2,
# [kK]|[0-9] contains the Kelvin sign. Written as alternatives they are safe.
_THREE_CASES: Final = {frozenset("kK"): "(?:k|K)", frozenset("sS"): "(?:s|S)"}
_CONTROL_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_OCTAL: Final = frozenset("01234567")
_MAX_CODE_POINT: Final = 0x10FFFF


class RegexError(ValueError):
    """Go would refuse the pattern. Its text is the one that users of Kubernetes know."""

    def __init__(self, reason: str, part: str) -> None:
        super().__init__(f"error parsing regexp: {reason}: `{part}`")


# Patterns remembered. The caller bounds their length (`matching.MOST_CHARACTERS`), so all are below 8 MB.
_REMEMBERED: Final = 64


@lru_cache(maxsize=_REMEMBERED)
def read(pattern: str) -> Pattern:
    """The pattern for RE2. Raises RegexError for what Go refuses. Takes time linear in the pattern."""
    return _PatternReader(pattern).read()


@dataclass(slots=True)
class _RepeatedPart:
    """What a repetition repeats: its instructions, the product of nested counts, and the levels of its tree."""

    size: int
    copies: int = 1
    height: int = 1


@dataclass(slots=True)
class _OpenGroup:
    """What is open at one level of parentheses."""

    fold_before: bool
    captures: bool
    last: _RepeatedPart | None = None
    """The part that an operator would repeat. None: there is nothing before it."""
    size: int = 0
    """Of all parts before `last`, including what joins the alternatives."""
    copies: int = 1
    height: int = 1
    parts: int = 0
    alternatives: int = 1

    def add(self, part: _RepeatedPart) -> None:
        self._settle()
        self.last = part

    def next_alternative(self) -> None:
        self._settle()
        self.size += 1
        self.alternatives += 1

    def closed(self) -> _RepeatedPart:
        """The whole group as a part."""
        self._settle()
        levels = self.captures + (self.parts > 1) + (self.alternatives > 1)
        return _RepeatedPart(self.size + 1 + 2 * self.captures, self.copies, self.height + levels)

    def _settle(self) -> None:
        if self.last is not None:
            self.size += self.last.size
            self.copies = max(self.copies, self.last.copies)
            self.height = max(self.height, self.last.height)
            self.parts += 1
            self.last = None


class _PatternReader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.fold = False
        self.walks = False
        self.groups = [_OpenGroup(fold_before=False, captures=False)]
        self.written: list[str] = []

    def read(self) -> Pattern:
        repetition_from: int | None = None  # where the repetition operator that was just read begins
        while self.at < len(self.pattern):
            begin = self.at
            counts = None
            if self.pattern[begin] in "*+?" or (counts := _COUNTS.match(self.pattern, begin)):
                self._repetition(counts, repetition_from)
                repetition_from = begin
            else:
                self._one(self.pattern[begin])
                repetition_from = None
        if len(self.groups) != 1:
            raise RegexError("missing closing )", self.pattern)
        text, size = "".join(self.written), self._bounded(self.groups[0].closed()).size
        return Pattern(f"(?s:.)*?({text})", size + _ANY_SIZE + 4, walks=True) if self.walks else Pattern(text, size)

    def _one(self, character: str) -> None:
        match character:
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                self.groups[-1].next_alternative()
                self._verbatim(1)
            case "[":
                self._class()
            case "\\":
                self._escape()
            case "^" | "$":
                self._verbatim(1, size=1)
            case ".":
                self._verbatim(1, size=_ANY_SIZE)
            case "{":
                self._verbatim(1, size=_ASCII_SIZE)
            case _:
                self._literals()

    # What is written for RE2

    def _verbatim(self, length: int, *, size: int | None = None) -> None:
        """Take this many characters as they are; with a size they are one part."""
        self.written.append(self.pattern[self.at : self.at + length])
        self.at += length
        if size is not None:
            self.groups[-1].add(_RepeatedPart(size))

    def _literals(self) -> None:
        """A run of plain characters: an operator after it repeats the last one."""
        run = _LITERALS.match(self.pattern, self.at)
        assert run is not None
        self._literal_parts(run.group())
        self._verbatim(len(run.group()))

    def _literal_parts(self, characters: str) -> None:
        ascii_size = _CHARACTER_SIZE if self.fold else _ASCII_SIZE
        before = characters[:-1]
        if before:
            ascii_only = len(before) if before.isascii() else sum(map(str.isascii, before))
            self.groups[-1].add(_RepeatedPart(ascii_only * ascii_size + (len(before) - ascii_only) * _CHARACTER_SIZE))
        self.groups[-1].add(_RepeatedPart(ascii_size if characters[-1].isascii() else _CHARACTER_SIZE))

    def _bounded(self, part: _RepeatedPart) -> _RepeatedPart:
        if part.height > MAX_HEIGHT:
            raise RegexError("expression nests too deeply", self.pattern)
        return part

    # Repetition

    def _repetition(self, counts: re.Match[str] | None, previous_from: int | None) -> None:
        begin, end = self.at, self.at + 1
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self.pattern[begin], (0, None))
        if counts is not None:
            low, end = _count(counts[1]), counts.end()
            high = low if not counts[2] else _count(counts[3]) if counts[3] else None
            if low > MAX_COUNT or (high is not None and (high > MAX_COUNT or low > high)):
                raise RegexError("invalid repeat count", self.pattern[begin:end])
        if self.pattern.startswith("?", end):
            end += 1
        if previous_from is not None:
            raise RegexError("invalid nested repetition operator", self.pattern[previous_from:end])
        group = self.groups[-1]
        if group.last is None:
            raise RegexError("missing argument to repetition operator", self.pattern[begin:end])
        repeated = _repeated(group.last, low, high, counted=counts is not None)
        if counts is not None and repeated.copies > MAX_COUNT and (low >= 2 or (high or 0) >= 2):
            raise RegexError("invalid repeat count", self.pattern[begin:end])
        group.last = self._bounded(repeated)
        self._verbatim(end - begin)

    # Groups

    def _open(self) -> None:
        if not self.pattern.startswith("(?", self.at):
            self.at += 1
            self.written.append("(?:")
            self.groups.append(_OpenGroup(self.fold, captures=True))
        elif self.pattern.startswith(("(?P<", "(?<"), self.at) and self.at + 3 < len(self.pattern):
            self._open_named()
        else:
            self._open_with_flags()

    def _open_named(self) -> None:
        begin = self.at
        end = self.pattern.find(">", begin)
        if end < 0:
            raise RegexError("invalid named capture", self.pattern[begin:])
        name = self.pattern[self.pattern.index("<", begin) + 1 : end]
        if not (name.isascii() and name.replace("_", "a").isalnum()):
            raise RegexError("invalid named capture", self.pattern[begin : end + 1])
        self.at = end + 1
        self.written.append("(?:")
        self.groups.append(_OpenGroup(self.fold, captures=True))

    def _open_with_flags(self) -> None:
        begin, at = self.at, self.at + 2
        fold, on, seen = self.fold, True, False
        while at < len(self.pattern):
            character = self.pattern[at]
            at += 1
            if character in "imsU":
                fold, seen = on if character == "i" else fold, True
            elif character == "-" and on:
                on, seen = False, False
            elif character in ":)" and (on or seen):
                if character == ":":
                    self.groups.append(_OpenGroup(self.fold, captures=False))
                self.fold = fold
                self._verbatim(at - begin)
                return
            else:
                break
        raise RegexError("invalid or unsupported Perl syntax", self.pattern[begin:at])

    def _close(self) -> None:
        if len(self.groups) == 1:
            raise RegexError("unexpected )", self.pattern)
        group = self.groups.pop()
        self.fold = group.fold_before
        self.groups[-1].add(self._bounded(group.closed()))
        self._verbatim(1)

    # Escapes

    def _escape(self) -> None:
        follows = self.pattern[self.at + 1 : self.at + 2]
        if follows and follows in "AbBz":
            self.walks = self.walks or follows == "B"
            self._verbatim(2, size=1)
        elif follows == "Q":
            end = self.pattern.find("\\E", self.at + 2)
            characters = self.pattern[self.at + 2 : end] if end >= 0 else self.pattern[self.at + 2 :]
            if characters:
                self._literal_parts(characters)
            self._verbatim(2 + len(characters) + 2 * (end >= 0))
            if end < 0:
                self.written.append("\\E")  # more may follow it
        elif follows in ("p", "P"):
            found = self._unicode_class()
            self.written.append(found.alone)
            self.groups[-1].add(_RepeatedPart(found.size))
        elif follows in _PERL_CLASSES:
            self._verbatim(2, size=_RANGE_SIZE)
        else:
            begin = self.at
            character = self._escaped_character()
            self.at, end = begin, self.at
            self._literal_parts(character)
            self._verbatim(end - begin)

    def _unicode_class(self) -> UnicodeClass:
        """`\\pL`, `\\p{Greek}`, `\\P{^Lu}` from here."""
        begin = self.at
        end = begin + 3
        if self.pattern.startswith("{", begin + 2):
            end = self.pattern.find("}", begin) + 1
            if end == 0:
                raise RegexError("invalid character class range", self.pattern[begin:])
        self.at = end
        written = self.pattern[begin:end]
        name = written[3:-1] if written[2:3] == "{" else written[2:]
        negated = (written[1] == "P") != name.startswith("^")
        try:
            return unicode_class(name.removeprefix("^"), negated=negated, fold=self.fold)
        except NoSuchClassError:
            raise RegexError("invalid character class range", written) from None

    def _escaped_character(self) -> str:
        """The character that an escape from here stands for."""
        begin = self.at
        self.at += 2
        follows = self.pattern[begin + 1 : begin + 2]
        if not follows:
            raise RegexError("trailing backslash at end of expression", "")
        if follows in _CONTROL_ESCAPES:
            return _CONTROL_ESCAPES[follows]
        if follows == "0" or (follows in _OCTAL and self._is_at(_OCTAL)):
            while self.at < begin + 4 and self._is_at(_OCTAL):
                self.at += 1
            return chr(int(self.pattern[begin + 1 : self.at], 8))
        if follows == "x":
            return self._hexadecimal(begin)
        if follows.isascii() and not follows.isalnum():
            return follows
        raise RegexError("invalid escape sequence", self.pattern[begin : self.at])

    def _is_at(self, characters: frozenset[str]) -> bool:
        return self.at < len(self.pattern) and self.pattern[self.at] in characters

    def _hexadecimal(self, begin: int) -> str:
        """`\\x7f` or `\\x{1f600}`."""
        if not self.pattern.startswith("{", self.at):
            self.at = min(self.at + 2, len(self.pattern))
            digits = self.pattern[begin + 2 : self.at]
            if len(digits) == 2 and _HEX.issuperset(digits):
                return chr(int(digits, 16))
            raise RegexError("invalid escape sequence", self.pattern[begin : self.at])
        self.at += 1
        code_point, digits_seen = 0, False
        while self.at < len(self.pattern):
            digit = self.pattern[self.at]
            self.at += 1
            if digit == "}" and digits_seen:
                return chr(code_point)
            code_point = code_point * 16 + int(digit, 16) if digit in _HEX else _MAX_CODE_POINT + 1
            digits_seen = True
            if code_point > _MAX_CODE_POINT:
                break
        raise RegexError("invalid escape sequence", self.pattern[begin : self.at])

    # Classes in brackets

    def _class(self) -> None:
        begin = kept_from = self.at
        self.at += 1
        negated = self.pattern.startswith("^", self.at)
        self.at += negated
        size, first = 1, True  # a ] that comes first is a plain character
        held: set[str] = set()
        while first or not self.pattern.startswith("]", self.at):
            first = False
            if self.pattern.startswith(("\\p", "\\P"), self.at):
                self.written.append(self.pattern[kept_from : self.at])
                found = self._unicode_class()
                self.written.append(found.within_brackets)
                kept_from = self.at
                size += found.size
                held.add("")
            elif self._named_class():
                size += _RANGE_SIZE
                held.add("")
            else:
                low, high = self._range(begin)
                size += self._range_size(low, high)
                held.update((low, high) if low == high else ("",))
        self.at += 1
        rewritten = None if negated or self.fold else _THREE_CASES.get(frozenset(held))
        self.written.append(rewritten or self.pattern[kept_from : self.at])
        self.groups[-1].add(_RepeatedPart(_RANGE_SIZE + 2 * size if negated else size))

    def _named_class(self) -> bool:
        """Step over `\\d`, `[:alpha:]` or `[:^alpha:]`, if one is here."""
        if self.pattern.startswith("\\", self.at) and self.pattern[self.at + 1 : self.at + 2] in _PERL_CLASSES:
            self.at += 2
            return True
        if not self.pattern.startswith("[:", self.at):
            return False
        end = self.pattern.find(":]", self.at + 2) + 2
        if end < 2:
            return False
        if self.pattern[self.at + 2 : end - 2].removeprefix("^") not in _POSIX_CLASSES:
            raise RegexError("invalid character class range", self.pattern[self.at : end])
        self.at = end
        return True

    def _range(self, class_begin: int) -> tuple[str, str]:
        """Step over a character or a range."""
        begin = self.at
        low = high = self._class_character(class_begin)
        if self.pattern.startswith("-", self.at) and self.pattern[self.at + 1 : self.at + 2] not in ("", "]"):
            self.at += 1
            high = self._class_character(class_begin)
        if high < low:
            raise RegexError("invalid character class range", self.pattern[begin : self.at])
        return low, high

    def _range_size(self, low: str, high: str) -> int:
        if high.isascii():
            return _RANGE_SIZE if self.fold else _ASCII_SIZE
        if low == high:
            return _CHARACTER_SIZE
        return _FOLDED_RANGE_SIZE if self.fold else _RANGE_SIZE

    def _class_character(self, class_begin: int) -> str:
        if self.at >= len(self.pattern):
            raise RegexError("missing closing ]", self.pattern[class_begin:])
        if self.pattern[self.at] == "\\":
            return self._escaped_character()
        self.at += 1
        return self.pattern[self.at - 1]


def _count(digits: str) -> int:
    """The number; numbers that are too large become the smallest such number."""
    return int(digits) if len(digits) <= len(str(MAX_COUNT)) else MAX_COUNT + 1


def _repeated(part: _RepeatedPart, low: int, high: int | None, *, counted: bool) -> _RepeatedPart:
    """The part with its repetition: `x{2,}` is xx+, `x{2,4}` is xx(x(x)?)?."""
    most = low if high is None else high
    copies = part.copies if not counted or (most == 0 and high is None) else part.copies * most
    size = part.size * max(low, 1) + 2 if high is None else part.size * high + high - low
    return _RepeatedPart(max(1, size), max(1, copies), part.height + 1)
