"""What holds for every implementation, whatever it is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel import types
from dracaena.cel.cost import WORK_LIMIT, tree_size
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, Overload
from dracaena.cel.library import LIBRARIES
from dracaena.cel.types import Type
from dracaena.cel.value import INT_MAX, INT_MIN, NONE, UINT_MAX, Duration, Map, OptionalValue, Timestamp, UInt, equal
from dracaena.cel.values.ip import Address, Network
from dracaena.cel.values.named_format import NAMED_FORMATS
from dracaena.cel.values.quantity import QuantityValue
from dracaena.cel.values.semver import Semver
from dracaena.cel.values.url import Url
from support.seeds import fewer_examples

TEXTS = st.one_of(
    st.text("ab1.%/:+*[](){}-dsfe\\é ", max_size=10),
    st.sampled_from(
        ["1Gi", "1.2.3", "v1", "10.0.0.0/8", "::1", "https://h:1/p?q=1", "%s %d", "(a|b)*", "[0-9]+", "uuid"]
    ),
)
INTS = st.one_of(st.integers(-3, 12), st.sampled_from([INT_MIN, INT_MAX]))
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int": INTS,
    "uint": st.one_of(st.integers(0, 5), st.just(UINT_MAX)).map(UInt),
    "double": st.floats(),
    "bool": st.booleans(),
    "string": TEXTS,
    "bytes": st.binary(max_size=5),
    "duration": INTS.map(Duration),
    "timestamp": st.integers(-5, 5).map(Timestamp),
}
OPAQUE: dict[str, st.SearchStrategy[Any]] = {
    "kubernetes.Quantity": st.sampled_from(["0", "1Gi", "-5m", "10E", "99999999999999999999"]).map(QuantityValue.parse),
    "kubernetes.Semver": st.sampled_from(["1.2.3", "0.0.1-a.1+b", f"{UINT_MAX}.0.0"]).map(Semver.parse),
    "kubernetes.URL": st.sampled_from(["https://u@h:1/p?a=b&a#f", "/x", "a:b"]).map(Url.parse),
    "kubernetes.NamedFormat": st.sampled_from(list(NAMED_FORMATS.values())),
    "net.IP": st.sampled_from(["1.2.3.4", "::1", "ff02::1"]).map(Address.parse),
    "net.CIDR": st.sampled_from(["1.2.3.4/8", "::/0", "fe80::1/64"]).map(Network.parse),
}


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    kinds: list[st.SearchStrategy[Any]] = [
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXTS, inner, max_size=3).map(lambda entries: Map(entries.items())),
        inner.map(OptionalValue),
    ]
    return st.one_of(kinds)


SIMPLE: list[st.SearchStrategy[Any]] = [*SCALARS.values(), *OPAQUE.values(), st.none(), st.just(NONE)]
ANYTHING: st.SearchStrategy[Any] = st.recursive(st.one_of(SIMPLE), _containers, max_leaves=6)


def values_of(type_: Type) -> st.SearchStrategy[Any]:
    """Values that may be passed for a parameter; of lists only the outer type is promised."""
    if type_.kind == "list":
        return st.one_of(st.lists(values_of(type_.parameters[0]), max_size=5), st.lists(ANYTHING, max_size=4)).map(
            tuple
        )
    if type_.kind == "opaque":
        return OPAQUE[type_.name]
    return SCALARS.get(type_.kind, ANYTHING)


DECLARED: list[tuple[Function, Overload]] = [
    (function, overload) for function in LIBRARIES for overload in function.overloads
]
OVERLOADS = [pytest.param(*each, id=each[1].id) for each in DECLARED]
WORKING = [pytest.param(overload, id=overload.id) for _, overload in DECLARED if overload.work is not None]
SOME = settings(max_examples=fewer_examples(6), derandomize=True)


@pytest.mark.parametrize(("function", "overload"), OVERLOADS)
@SOME
@given(data=st.data())
def test_a_call_gives_a_value_of_its_type_or_an_error_and_a_cost(
    function: Function, overload: Overload, data: st.DataObject
) -> None:
    check_answer(function, overload, data)


@pytest.mark.long
@pytest.mark.parametrize(("function", "overload"), OVERLOADS)
@settings(SOME, max_examples=500)
@given(data=st.data())
def test_any_of_many_more_calls_does(function: Function, overload: Overload, data: st.DataObject) -> None:
    check_answer(function, overload, data)


def check_answer(function: Function, overload: Overload, data: st.DataObject) -> None:
    arguments = tuple(data.draw(values_of(parameter)) for parameter in overload.parameters)
    if overload.work is not None and overload.work(*arguments) > WORK_LIMIT:
        return
    price = function.cost if function.cost is not None else overload.cost
    result: Any = None
    try:
        result = overload.call(*arguments)
    except EvaluationError as error:
        refused = error.message
    else:
        refused = ""
        assert function.name in OF_ELEMENTS or fits(result, overload.result)
        again = overload.call(*arguments)
        assert equal(again, result) or repr(again) == repr(result)  # NaN equals nothing
    assert "\n" not in refused
    cost = price if price is None or isinstance(price, int) else price(arguments, result)
    assert cost is None or cost >= 0


# Their result is of the type of the elements, which may be another than the checker knew.
OF_ELEMENTS = ("max", "min", "sum")
KINDS: dict[str, type] = {
    "int": int, "uint": UInt, "double": float, "bool": bool, "string": str, "bytes": bytes, "list": tuple, "map": Map,
    "optional": OptionalValue, "duration": Duration, "timestamp": Timestamp,
}  # fmt: skip


def fits(value: Any, type_: Type) -> bool:
    if type_ == types.INT:
        return type(value) is int and INT_MIN <= value <= INT_MAX
    return type_.kind not in KINDS or type(value) is KINDS[type_.kind]


@pytest.mark.parametrize("overload", WORKING)
@SOME
@given(data=st.data())
def test_what_a_call_builds_is_not_more_than_it_said_it_would_work(overload: Overload, data: st.DataObject) -> None:
    check_work(overload, data)


@pytest.mark.long
@pytest.mark.parametrize("overload", WORKING)
@settings(SOME, max_examples=1_000)
@given(data=st.data())
def test_what_any_of_many_more_calls_builds_is_not_more(overload: Overload, data: st.DataObject) -> None:
    check_work(overload, data)


def check_work(overload: Overload, data: st.DataObject) -> None:
    arguments = tuple(data.draw(values_of(parameter)) for parameter in overload.parameters)
    assert overload.work is not None
    work = overload.work(*arguments)
    if work > WORK_LIMIT:
        return
    try:
        result = overload.call(*arguments)
    except EvaluationError:
        return
    given_size = sum(map(size_of_all, arguments))
    assert size_of_all(result) <= max(work, given_size) + 64


def size_of_all(value: Any) -> int:
    """Characters and elements."""
    if isinstance(value, str | bytes):
        return len(value)
    return tree_size(value) + sum(map(size_of_all, value)) if isinstance(value, tuple) else 1


def copies(value: Any, times: int) -> tuple[Any, ...]:
    """A list of one value again and again. As a function: mypy would give each copy a type of its own."""
    return (value,) * times


def test_a_huge_result_is_announced_before_it_is_made() -> None:
    functions = {overload.id: overload for function in LIBRARIES for overload in function.overloads}
    text = "x" * 100_000
    huge: list[tuple[str, tuple[Any, ...]]] = [
        ("lists_range", (10**12,)),
        ("string_replace_string_string", (text, "x", text)),
        ("list_join_string", (copies("a", 100_000), text)),
        ("string_format", ("%s", (copies(text, 1000),))),
        ("string_format", ("%s", (copies(copies(copies(1, 1000), 1000), 1000),))),
        ("list_flatten", (copies(copies(text, 10_000), 10_000),)),
        ("list_distinct", (tuple(range(100_000)),)),
        ("list_sets_contains_list", (copies(1, 100_000), copies(2, 100_000))),
        ("string_find_all_string", (text, "a.*?b|x")),
        ("string_find_string", (text, "(?:.{100}){10}")),
    ]
    for id_, arguments in huge:
        work = functions[id_].work
        assert work is not None, id_
        assert work(*arguments) > WORK_LIMIT, id_


def test_every_overload_is_declared_once() -> None:
    ids = [overload.id for function in LIBRARIES for overload in function.overloads]
    assert len(ids) == len(set(ids))
