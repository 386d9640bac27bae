"""From text to tokens, and from the text of a literal to its value.

The grammar is CEL's (cel-spec, langdef.md, "Syntax"). Offsets count characters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dracaena.cel.source import Diagnostic, compile_error
from dracaena.cel.value import INT_MAX, INT_MIN, UINT_MAX, UInt

_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[0-3][0-7][0-7]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"

_TOKEN = re.compile(
    rf"""
      (?P<skip>[\t \r\n\f]+|//[^\n]*)
    | (?P<string>(?:
          [bB]?[rR](?:'''(?s:.*?)'''|\"\"\"(?s:.*?)\"\"\"|'[^'\n\r]*'|"[^"\n\r]*")
        | [bB]?(?:'''(?:{_ESCAPE}|[^\\])*?'''|\"\"\"(?:{_ESCAPE}|[^\\])*?\"\"\"
                 |'(?:{_ESCAPE}|[^\\'\n\r])*'|"(?:{_ESCAPE}|[^\\"\n\r])*")
      ))
    | (?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)
    | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
    | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
    | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<quoted>`[A-Za-z0-9_.\-/\ ]+`)
    | (?P<operator>==|!=|<=|>=|&&|\|\||[<>\[\]{{}}().,\-!?:+*/%])
    """,
    re.VERBOSE,
)

_SURROGATE = re.compile("[\ud800-\udfff]")
_KEYWORDS: Final = frozenset({"in", "true", "false", "null"})
END: Final = "end of expression"


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `kind` is the text of an operator or keyword, else "ident", "int", "uint", "float", "string" …"""

    kind: str
    text: str
    position: int


def tokens_of(text: str) -> list[Token]:
    """The tokens of an expression, followed by one of kind END. A character that begins no token is a CompileError."""
    surrogate = None if text.isascii() else _SURROGATE.search(text)
    if surrogate is not None:
        raise compile_error(
            text, [Diagnostic(surrogate.start(), "Syntax error: half of a character (a lone surrogate)")]
        )
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise compile_error(text, [Diagnostic(position, _unknown_token(text, position))])
        group = match.lastgroup or ""
        if group != "skip":
            found = match.group()
            own_kind = group == "operator" or (group == "ident" and found in _KEYWORDS)
            tokens.append(Token(found if own_kind else group, found, position))
        position = match.end()
    tokens.append(Token(END, "", len(text)))
    return tokens


def _unknown_token(text: str, position: int) -> str:
    rest = text[position : position + 20].partition("\n")[0]
    return f"Syntax error: token recognition error at: '{rest}'"


def int_value(text: str) -> int | None:
    """The value of an int literal with its sign, or None if int64 cannot hold it."""
    number = _whole_number(text)
    return number if number is not None and INT_MIN <= number <= INT_MAX else None


def uint_value(text: str) -> UInt | None:
    """The value of a uint literal, or None if uint64 cannot hold it."""
    number = _whole_number(text[:-1])
    return UInt(number) if number is not None and number <= UINT_MAX else None


_LONGEST_NUMBER = 400  # characters; more digits than any double needs, and far below Python's own limit of 4,300


def _whole_number(text: str) -> int | None:
    if len(text) > _LONGEST_NUMBER:
        digits = text.lstrip("-").removeprefix("0x").lstrip("0")
        if len(digits) > _LONGEST_NUMBER:
            return None
    negative = text.startswith("-")
    digits = text.lstrip("-")
    number = int(digits, 0) if digits.startswith("0x") else int(digits.lstrip("0") or "0")
    return -number if negative else number


def float_value(text: str) -> float | None:
    """The value of a double literal, or None if it is too large for one."""
    number = float(text)
    return None if number in (float("inf"), float("-inf")) else number


_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "`": "`",
    "?": "?",
}
_ANY_ESCAPE = re.compile(_ESCAPE)


def string_value(text: str) -> str | bytes | None:
    """The value of a string or bytes literal, or None if an escape names no character.

    Line ends in the literal become "\\n". In bytes `\\x` and octal escapes are bytes, other characters their UTF-8;
    `\\u` and `\\U` are not allowed there.
    """
    is_bytes = text[0] in "bB"
    body = text[1:] if is_bytes else text
    raw = body[0] in "rR"
    body = body[1:] if raw else body
    quotes = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    body = body[quotes:-quotes].replace("\r\n", "\n").replace("\r", "\n")
    if raw or "\\" not in body:
        return body.encode() if is_bytes else body
    return _unescaped_bytes(body) if is_bytes else _unescaped_string(body)


def _code_point(escape: str) -> int:
    digits = escape.lstrip("\\xXuU")
    return int(digits, 16) if escape[1] in "xXuU" else int(digits, 8)


def _unescaped_string(body: str) -> str | None:
    parts: list[str] = []
    start = 0
    for match in _ANY_ESCAPE.finditer(body):
        escape = match.group()
        parts.append(body[start : match.start()])
        start = match.end()
        if escape[1] in _SIMPLE_ESCAPES:
            parts.append(_SIMPLE_ESCAPES[escape[1]])
            continue
        code = _code_point(escape)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return None
        parts.append(chr(code))
    parts.append(body[start:])
    return "".join(parts)


def _unescaped_bytes(body: str) -> bytes | None:
    parts: list[bytes] = []
    start = 0
    for match in _ANY_ESCAPE.finditer(body):
        escape = match.group()
        parts.append(body[start : match.start()].encode())
        start = match.end()
        if escape[1] in _SIMPLE_ESCAPES:
            parts.append(_SIMPLE_ESCAPES[escape[1]].encode())
        elif escape[1] in "uU":
            return None
        else:
            parts.append(bytes((_code_point(escape),)))
    parts.append(body[start:].encode())
    return b"".join(parts)
