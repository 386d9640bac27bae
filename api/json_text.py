"""JSON as text: its parts are found and measured without parsing, in one pass, however deep or odd it is.

JSON parsers are recursive, so text that is nested deeply enough stops them (at 1,000 to 10,000 levels, depending on the
Python version), and they refuse escapes that kube-apiserver accepts (half a surrogate pair in opaque parameters). The
functions here only look at brackets and quotes. Cost: O(bytes), some 100 ns for each bracket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_TEXT: Final = rb'"(?:[^"\\]++|\\.)*+"'
_RUN: Final = re.compile(rb'(?:[^"\[\]{}]++|' + _TEXT + rb")*+([\[{]++|[\]}]++)", re.DOTALL)
"""The next brackets of one direction, past all strings and everything else. Use match, not search: a search in text
that is not JSON would start over at each byte."""
_GAP: Final = re.compile(rb"[\s,]*+")
_SCALAR: Final = re.compile(rb"(?:" + _TEXT + rb'|[^"\[\]{},\s]++)', re.DOTALL)
_OPENING: Final = b"[{"


def deeper_than(text: bytes, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than `levels`. For text that is not JSON the answer is
    arbitrary."""
    depth = 0
    at = 0
    while (run := _RUN.match(text, at)) is not None:
        at = run.end()
        width = at - run.start(1)
        if text[run.start(1)] not in _OPENING:
            depth -= width
        elif (depth := depth + width) > levels:
            return True
    return False


def set_apart(text: bytes, members: Iterable[str]) -> tuple[bytes, tuple[bytes, ...]]:
    """Take out each list and object that is a member with one of these names; return what is left, and what was taken.

    Each is replaced by a list of one number, its index. put_back() is the inverse, for any part of what is left. What
    is taken out is not searched. `text` has to be JSON.
    """
    begins = re.compile(_member(members) + rb"(?=[\[{])")
    left: list[bytes] = []
    taken: list[bytes] = []
    done = 0
    while (found := begins.search(text, done)) is not None:
        end = _end(text, found.end())
        left += (text[done : found.end()], b"[%d]" % len(taken))
        taken.append(text[found.end() : end])
        done = end
    return b"".join((*left, text[done:])), tuple(taken)


def put_back(text: bytes, members: Iterable[str], taken: Sequence[bytes]) -> bytes:
    """Return a value from what set_apart() left as it was before: what was taken, or a value that contains it."""
    if not taken:
        return text
    if text.startswith(b"["):
        return taken[int(text[1:-1])]
    place = re.compile(b"(" + _member(members) + rb")\[(\d+)\]")
    return place.sub(lambda found: found[1] + taken[int(found[2])], text)


def _member(names: Iterable[str]) -> bytes:
    # An unescaped quote followed by a name begins a string: no other string can contain one.
    return rb'(?<!\\)"(?:' + b"|".join(re.escape(name.encode()) for name in names) + rb')"\s*+:\s*+'


def elements(text: bytes) -> Iterator[bytes]:
    """Yield the text of each element of a list. For other text this ends where it can no longer be followed."""
    at = text.find(b"[") + 1
    while at:
        gap = _GAP.match(text, at)
        at = at if gap is None else gap.end()
        scalar = _SCALAR.match(text, at)
        if scalar is not None:
            end = scalar.end()
        elif text[at : at + 1] in (b"[", b"{"):
            end = _end(text, at)
        else:
            return
        yield text[at:end]
        at = end


def _end(text: bytes, begin: int) -> int:
    """Return where the list or object ends that begins here; the end of the text when it does not end."""
    depth = 0
    at = begin
    while (run := _RUN.match(text, at)) is not None:
        at = run.end()
        width = at - run.start(1)
        if text[run.start(1)] in _OPENING:
            depth += width
        elif width >= depth:
            return run.start(1) + depth
        else:
            depth -= width
    return len(text)
