"""The causes of a refusal as Kubernetes 1.37 gives them: those of declared rules last, in the order of the fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dracaena.demo.apiserver.fields import FieldError
from dracaena.demo.apiserver.schema import ListOf, MapOf, Struct, Type, ordered

_SEGMENT: Final = re.compile(r"([A-Za-z]+)((?:\[[^\]]*\])?)")

_FieldRank = tuple[int, int, str]
"""The rank of a field in its type, an index in a list, a key in a map."""

_OF_WHOLE_LIST: Final = -1
"""Before all indices: what is wrong with a list is found before what is wrong with its items."""


def older(errors: Iterable[FieldError]) -> list[FieldError]:
    """Return the causes as 1.36 finds them."""
    return [error for error in errors if not error.is_new]


def newer(errors: Iterable[FieldError], struct: Struct) -> list[FieldError]:
    """Return the causes found in an object of this type in 1.37's words and order, each once."""
    given = list(errors)
    found = [_found(said, struct) for error in given if error.is_declared for said in _said(error)]
    walked = [error for _, error in sorted(found, key=lambda one: one[0])]
    causes = [*(said for error in given if not error.is_declared for said in _said(error)), *walked]
    return list({(cause.type, str(cause)): cause for cause in causes}.values())


def _said(error: FieldError) -> tuple[FieldError, ...]:
    return (error,) if error.newer is None else error.newer


def _found(said: FieldError, struct: Struct) -> tuple[tuple[_FieldRank, ...], FieldError]:
    """Return where the walk over declared rules finds a cause, and how it says it."""
    places: list[_FieldRank] = []
    of: Type = struct
    for name, mark in _SEGMENT.findall(said.field):
        assert isinstance(of, Struct), said.field
        rank, of, key = list(of.fields).index(name), of.fields[name].type, mark.strip("[]")
        is_item = bool(mark) and isinstance(of, ListOf | MapOf)
        places.append((rank, int(key) if is_item and isinstance(of, ListOf) else 0, key))
        of = of.item if is_item and isinstance(of, ListOf | MapOf) else of
    if said.type == "FieldValueDuplicate":
        # A duplicate item is a fault of its list.
        rank, index, _ = places.pop()
        places.append((rank, _OF_WHOLE_LIST, f"{index:9}"))
    return tuple(places), replace(said, value=ordered(of, said.value))
