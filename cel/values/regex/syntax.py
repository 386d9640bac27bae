"""From the text of a pattern to its tree, by RE2's grammar with the Perl flags (the one that CEL uses).

Groups leave no node: nothing of ours asks what a group matched.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from dracaena.cel.values.regex.characters import (
    ESCAPED_CLASSES,
    MAX_CODE_POINT,
    POSIX_CLASSES,
    CharacterSet,
    Item,
    cases,
    ranges_item,
    unicode_item,
)

MAX_COUNT: Final = 1000  # copies that counted repetitions may ask for, nested ones multiplied; RE2's number

# Levels of nested operators. RE2 stops at 1,000; a fifth of that is far beyond any pattern written by people, and lets
# the tree be walked by plain recursion.
MAX_DEPTH: Final = 200


class RegexError(ValueError):
    """The pattern is none that RE2 would accept. Its text is the one that users of Kubernetes know."""

    def __init__(self, reason: str, part: str) -> None:
        super().__init__(f"error parsing regexp: {reason}: `{part}`")


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a pattern: `size` is how many instructions it takes at most, `copies` the product of nested counts."""

    size: int = field(default=1, kw_only=True)
    depth: int = field(default=1, kw_only=True)
    copies: int = field(default=1, kw_only=True)
    nullable: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """One character."""

    character: str


@dataclass(frozen=True, slots=True)
class Class(Node):
    """One character of a set."""

    set: CharacterSet


@dataclass(frozen=True, slots=True)
class Assertion(Node):
    """An empty match with a condition; `kind` is one of ^ $ (line), A z (text), b B (word boundary)."""

    kind: str


@dataclass(frozen=True, slots=True)
class Concatenation(Node):
    """One part after the other; without parts the empty match."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation(Node):
    """One of the parts, the first preferred."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition(Node):
    """At least `low` and at most `high` copies (None: no end), as many as possible when greedy."""

    part: Node
    low: int
    high: int | None
    greedy: bool


def _concatenation(parts: list[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    return Concatenation(
        tuple(parts),
        size=max(1, sum(part.size for part in parts)),
        depth=1 + max((part.depth for part in parts), default=0),
        copies=max((part.copies for part in parts), default=1),
        nullable=all(part.nullable for part in parts),
    )


def _alternation(parts: list[Node]) -> Node:
    if len(parts) == 1:
        return parts[0]
    return Alternation(
        tuple(parts),
        size=sum(part.size for part in parts) + len(parts) - 1,
        depth=1 + max(part.depth for part in parts),
        copies=max(part.copies for part in parts),
        nullable=any(part.nullable for part in parts),
    )


def _repetition(part: Node, low: int, high: int | None, *, greedy: bool, counted: bool) -> Node:
    most = low if high is None else high
    copies = part.copies if not counted or (most == 0 and high is None) else part.copies * most
    size = part.size * max(low, 1) + 2 if high is None else part.size * high + high - low
    return Repetition(
        part,
        low,
        high,
        greedy,
        size=max(1, size),
        depth=1 + part.depth,
        copies=max(1, copies),
        nullable=low == 0 or part.nullable,
    )


@dataclass(frozen=True, slots=True)
class _Flags:
    """What `(?imsU)` switches on."""

    fold: bool = False
    lines: bool = False
    dot_all: bool = False
    lazy: bool = False


_FLAG_NAMES: Final = {"i": "fold", "m": "lines", "s": "dot_all", "U": "lazy"}


@dataclass(slots=True)
class _Group:
    """What stands open at one level of parentheses: finished alternatives and the one being read."""

    flags_before: _Flags
    captures: bool
    alternatives: list[list[Node]] = field(default_factory=lambda: [[]])

    def node(self) -> Node:
        return _alternation([_concatenation(parts) for parts in self.alternatives])


def parse(pattern: str) -> Node:
    """The tree of a pattern. Raises RegexError. Takes time linear in the pattern."""
    return _Parser(pattern).parse()


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.flags = _Flags()
        self.groups = [_Group(self.flags, captures=False)]

    def parse(self) -> Node:
        repetition_from: int | None = None  # where the repetition operator that was just read begins
        while self.at < len(self.pattern):
            character = self.pattern[self.at]
            if character in "*+?" or (character == "{" and self._counts() is not None):
                repetition_from = self._repetition(repetition_from)
                continue
            repetition_from = None
            self._one(character)
        if len(self.groups) != 1:
            raise RegexError("missing closing )", self.pattern)
        return self._checked(self.groups[0].node())

    def _one(self, character: str) -> None:
        match character:
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                self.groups[-1].alternatives.append([])
                self.at += 1
            case "[":
                self._push(Class(self._class()))
            case "\\":
                self._escape()
            case "^":
                self._assertion("^" if self.flags.lines else "A", 1)
            case "$":
                self._assertion("$" if self.flags.lines else "z", 1)
            case ".":
                self.at += 1
                self._push(Class(_ANY if self.flags.dot_all else _ANY_BUT_NEWLINE))
            case _:
                self.at += 1
                self._literal(character)

    def _push(self, node: Node) -> None:
        self.groups[-1].alternatives[-1].append(node)

    def _literal(self, character: str) -> None:
        others = cases(ord(character)) if self.flags.fold else ()
        if len(tuple(others)) > 1:
            ranges = tuple((code_point, code_point) for code_point in others)
            self._push(Class(CharacterSet((ranges_item(ranges),))))
        else:
            self._push(Literal(character))

    def _assertion(self, kind: str, length: int) -> None:
        self.at += length
        self._push(Assertion(kind, nullable=True))

    def _checked(self, node: Node) -> Node:
        if node.depth > MAX_DEPTH:
            raise RegexError("expression nests too deeply", self.pattern)
        return node

    # Repetition

    def _repetition(self, previous_from: int | None) -> int:
        begin = self.at
        counts = self._counts()
        if counts is None:
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.pattern[begin]]
            self.at += 1
        else:
            low, high, self.at = counts
            if low > MAX_COUNT or (high is not None and (high > MAX_COUNT or low > high)):
                raise RegexError("invalid repeat count", self.pattern[begin : self.at])
        greedy = not self.flags.lazy
        if self.pattern.startswith("?", self.at):
            self.at += 1
            greedy = not greedy
        if previous_from is not None:
            raise RegexError("invalid nested repetition operator", self.pattern[previous_from : self.at])
        parts = self.groups[-1].alternatives[-1]
        if not parts:
            raise RegexError("missing argument to repetition operator", self.pattern[begin : self.at])
        node = _repetition(parts[-1], low, high, greedy=greedy, counted=counts is not None)
        if counts is not None and node.copies > MAX_COUNT and (low >= 2 or (high or 0) >= 2):
            raise RegexError("invalid repeat count", self.pattern[begin : self.at])
        parts[-1] = self._checked(node)
        return begin

    def _counts(self) -> tuple[int, int | None, int] | None:
        """`{2}`, `{2,}` or `{2,5}` from here: the counts and where it ends. None: the brace is a plain character."""
        at = self.at
        if not self.pattern.startswith("{", at):
            return None
        low, at = self._count(at + 1)
        if low is None:
            return None
        high: int | None = low
        if self.pattern.startswith(",", at):
            high, at = self._count(at + 1)
            if high is None and not self.pattern.startswith("}", at):
                return None
        return (low, high, at + 1) if self.pattern.startswith("}", at) else None

    def _count(self, at: int) -> tuple[int | None, int]:
        """A decimal number without leading zeros, and where it ends. Too large ones are given as just too large."""
        end = at
        while end < len(self.pattern) and "0" <= self.pattern[end] <= "9":
            end += 1
        digits = self.pattern[at:end]
        if not digits or (len(digits) > 1 and digits[0] == "0"):
            return None, at
        return (int(digits) if len(digits) <= len(str(MAX_COUNT)) else MAX_COUNT + 1), end

    # Groups

    def _open(self) -> None:
        if not self.pattern.startswith("(?", self.at):
            self.at += 1
            self.groups.append(_Group(self.flags, captures=True))
        elif self.pattern.startswith(("(?P<", "(?<"), self.at):
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
        self.groups.append(_Group(self.flags, captures=True))

    def _open_with_flags(self) -> None:
        begin = self.at
        self.at += 2
        flags, on, seen = self.flags, True, False
        while self.at < len(self.pattern):
            character = self.pattern[self.at]
            self.at += 1
            if character in _FLAG_NAMES:
                flags, seen = replace(flags, **{_FLAG_NAMES[character]: on}), True
            elif character == "-" and on:
                on, seen = False, False
            elif character in ":)" and (on or seen):
                if character == ":":
                    self.groups.append(_Group(self.flags, captures=False))
                self.flags = flags
                return
            else:
                break
        raise RegexError("invalid or unsupported Perl syntax", self.pattern[begin : self.at])

    def _close(self) -> None:
        if len(self.groups) == 1:
            raise RegexError("unexpected )", self.pattern)
        group = self.groups.pop()
        self.at += 1
        self.flags = group.flags_before
        node = group.node()
        self._push(self._checked(replace(node, depth=node.depth + 1) if group.captures else node))

    # Escapes and classes

    def _escape(self) -> None:
        follows = self.pattern[self.at + 1 : self.at + 2]
        if follows and follows in "AzbB":
            self._assertion(follows, 2)
        elif follows == "Q":
            self._quoted()
        elif (item := self._class_escape()) is not None:
            self._push(Class(CharacterSet((item,))))
        else:
            self._literal(self._escaped_character())

    def _quoted(self) -> None:
        """\\Q…\\E: all literal; without \\E to the end."""
        quoted, end, _ = self.pattern[self.at + 2 :].partition("\\E")
        self.at += 2 + len(quoted) + len(end)
        for character in quoted:
            self._literal(character)

    def _class_escape(self) -> Item | None:
        """`\\d`, `\\pL`, `\\P{Greek}` and the like from here; None when it is something else."""
        begin = self.at
        follows = self.pattern[begin + 1 : begin + 2] if self.pattern.startswith("\\", begin) else ""
        ranges = ESCAPED_CLASSES.get(follows.lower())
        if ranges is not None:
            self.at += 2
            return ranges_item(ranges, negated=follows.isupper(), fold=self.flags.fold)
        if not follows or follows not in "pP":
            return None
        end = begin + 3
        name = self.pattern[begin + 2 : end]
        if name == "{":
            end = self.pattern.find("}", begin) + 1
            if not end:
                raise RegexError("invalid character class range", self.pattern[begin:])
            name = self.pattern[begin + 3 : end - 1]
        negated = (follows == "P") != name.startswith("^")
        item = unicode_item(name.removeprefix("^"), negated=negated, fold=self.flags.fold)
        if item is None:
            raise RegexError("invalid character class range", self.pattern[begin:end])
        self.at = end
        return item

    def _escaped_character(self) -> str:
        begin = self.at
        self.at += 2
        follows = self.pattern[begin + 1 : begin + 2]
        if not follows:
            raise RegexError("trailing backslash at end of expression", "")
        if follows in _CONTROL_ESCAPES:
            return _CONTROL_ESCAPES[follows]
        if follows == "0" or (follows in "1234567" and self._digit(self.at, "01234567")):
            while self.at < begin + 4 and self._digit(self.at, "01234567"):
                self.at += 1
            return chr(int(self.pattern[begin + 1 : self.at], 8))
        if follows == "x":
            return self._hexadecimal(begin)
        if follows.isascii() and not follows.isalnum():
            return follows
        raise RegexError("invalid escape sequence", self.pattern[begin : self.at])

    def _digit(self, at: int, digits: str) -> bool:
        return at < len(self.pattern) and self.pattern[at] in digits

    def _hexadecimal(self, begin: int) -> str:
        """`\\x7f` or `\\x{1f600}`."""
        if not self._digit(self.at, "{"):
            for _ in range(2):
                self.at = min(self.at + 1, len(self.pattern))
            digits = self.pattern[begin + 2 : self.at]
            if len(digits) == 2 and all(digit in _HEX for digit in digits):
                return chr(int(digits, 16))
            raise RegexError("invalid escape sequence", self.pattern[begin : self.at])
        self.at += 1
        code_point, digits_seen = 0, False
        while self.at < len(self.pattern):
            digit = self.pattern[self.at]
            self.at += 1
            if digit == "}" and digits_seen:
                return chr(code_point)
            code_point = code_point * 16 + int(digit, 16) if digit in _HEX else MAX_CODE_POINT + 1
            digits_seen = True
            if code_point > MAX_CODE_POINT:
                break
        raise RegexError("invalid escape sequence", self.pattern[begin : self.at])

    def _class(self) -> CharacterSet:
        begin = self.at
        self.at += 1
        negated = self._digit(self.at, "^")
        self.at += negated
        items: list[Item] = []
        ranges: list[tuple[int, int]] = []
        first = True  # a ] that comes first is a plain character
        while first or not self._digit(self.at, "]"):
            first = False
            item = self._named_class() or self._class_escape()
            if item is not None:
                items.append(item)
            else:
                ranges.append(self._range(begin))
        self.at += 1
        if ranges:
            items.append(ranges_item(_merged(ranges), fold=self.flags.fold))
        return CharacterSet(tuple(items), negated)

    def _named_class(self) -> Item | None:
        """`[:alpha:]` or `[:^alpha:]` from here."""
        if not self.pattern.startswith("[:", self.at):
            return None
        end = self.pattern.find(":]", self.at + 2) + 2
        if end < 2:
            return None
        name = self.pattern[self.at + 2 : end - 2]
        ranges = POSIX_CLASSES.get(name.removeprefix("^"))
        if ranges is None:
            raise RegexError("invalid character class range", self.pattern[self.at : end])
        self.at = end
        return ranges_item(ranges, negated=name.startswith("^"), fold=self.flags.fold)

    def _range(self, class_begin: int) -> tuple[int, int]:
        begin = self.at
        low = high = self._class_character(class_begin)
        if self.pattern.startswith("-", self.at) and self.pattern[self.at + 1 : self.at + 2] not in ("", "]"):
            self.at += 1
            high = self._class_character(class_begin)
        if high < low:
            raise RegexError("invalid character class range", self.pattern[begin : self.at])
        return ord(low), ord(high)

    def _class_character(self, class_begin: int) -> str:
        if self.at >= len(self.pattern):
            raise RegexError("missing closing ]", self.pattern[class_begin:])
        if self.pattern[self.at] == "\\":
            return self._escaped_character()
        self.at += 1
        return self.pattern[self.at - 1]


_ANY: Final = CharacterSet((), negated=True)
_ANY_BUT_NEWLINE: Final = CharacterSet((ranges_item(((10, 10),)),), negated=True)
_CONTROL_ESCAPES: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_HEX: Final = "0123456789abcdefABCDEF"


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same code points as ranges in rising order that neither overlap nor touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)
