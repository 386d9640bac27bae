"""Our language against cel-cpp (cel-expr-python), an implementation of its own, wherever both define the same thing.

cel-cpp knows neither the device nor Kubernetes' libraries, so the expressions here are made of literals. Where the two
define different things the expressions leave it out:

* cel-cpp walks maps in no fixed order, and has no two-variable macros;
* it lets lists and maps be of mixed types, which Kubernetes refuses; the expressions have none;
* it takes the elements of an empty list for any type, Kubernetes for the first that fits: no list here is empty;
* it evaluates the left side of `in []`, which Kubernetes knows to be false;
* it converts literals when they are asked for: what does not convert is a compile error in Kubernetes;
* it limits nesting to 32 levels and loops to 10,000 steps;
* it says that nothing is less or greater than NaN, Kubernetes (cel-go, common/types/double.go) that this is an error:
  examples that come to such an order are left out when they are evaluated.
"""

from __future__ import annotations

from typing import Any

import pytest
from cel_expr_python import cel
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dracaena.cel import CompileError, DeviceView, Failed, LanguageFeatures, Match, compile_selector

EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
ENVIRONMENT = cel.NewEnv(variables={})


def ours(expression: str) -> str:
    try:
        outcome = compile_selector(expression, EVERYTHING).evaluate(DeviceView("d"))
    except CompileError:
        return "no"
    if isinstance(outcome, Failed):
        return "NaN" if "NaN values cannot be ordered" in outcome.reason else "error"
    return "true" if isinstance(outcome, Match) else "false"


def theirs(expression: str) -> str:
    try:
        compiled = ENVIRONMENT.compile(expression)
    except RuntimeError:
        return "no"
    value: Any = compiled.eval(data={})
    if value.type() == cel.Type.ERROR:
        return "error"
    return "true" if value.value() is True else "false" if value.value() is False else "error"


INTS = st.one_of(st.integers(-20, 20), st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1, 2**32]))
UINTS = st.one_of(st.integers(0, 20), st.sampled_from([2**64 - 1, 2**63]))
DOUBLES = st.one_of(
    st.integers(-20, 20).map(float), st.sampled_from([0.5, -2.25, 1e15, 9007199254740992.0, 1e300, -1e300, 1e-300])
)
TEXTS = st.one_of(
    st.sampled_from(["", "a", "ab", "abc", "b", "é", "1", "-7", "1.5", "true", "1s"]), st.text("abé1", max_size=4)
)


def _text(value: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) > 126 else c for c in value) + '"'


LITERALS: dict[str, st.SearchStrategy[str]] = {
    "int": INTS.map(str),
    "uint": UINTS.map("{}u".format),
    "double": DOUBLES.map(repr),
    "string": TEXTS.map(_text),
    "bytes": TEXTS.map(lambda text: "b" + _text(text.replace("é", "e"))),
    "bool": st.sampled_from(["true", "false"]),
    "list": st.lists(st.integers(-3, 5).map(str), min_size=1, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
    "map": st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 3), max_size=2).map(
        lambda entries: "{" + ", ".join(f'"{key}": {value}' for key, value in entries.items()) + "}"
    ),
}  # fmt: skip


def _join(template: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(lambda made: template.format(*made))


def _any(*strategies: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(list(strategies))


def _expressions(depth: int) -> dict[str, st.SearchStrategy[str]]:
    """For each type the expressions that nest at most this deep."""
    if depth == 0:
        return dict(LITERALS)
    of = _expressions(depth - 1)
    numbers = ("int", "uint", "double")
    same = st.sampled_from(["int", "uint", "double", "string", "bytes", "bool", "list", "map"]).flatmap(
        lambda name: _join("{} {} {}", of[name], st.sampled_from(["==", "!="]), of[name])
    )
    ordered = st.sampled_from([*numbers, "string", "bytes", "bool"]).flatmap(
        lambda name: _join("{} {} {}", of[name], st.sampled_from(["<", "<=", ">", ">="]), of[name])
    )
    mixed = st.tuples(st.sampled_from(numbers), st.sampled_from(numbers)).flatmap(
        lambda names: _join(
            "dyn({}) {} dyn({})", of[names[0]], st.sampled_from(["<", "<=", ">", ">=", "=="]), of[names[1]]
        )
    )
    loops = st.sampled_from(["all", "exists", "exists_one"])
    step = st.sampled_from(["x > 1", "4 / x > 1", "x == 2 || 1 / x == 1", "x in [1, 2]", "x != 0 && 6 % x == 0"])
    change = st.sampled_from(["x", "x * 2", "x + 1", "10 / x", "-x", "[x, x].size()"])
    return {
        "bool": _any(
            of["bool"], _join("({})", same), _join("({})", ordered), _join("({})", mixed),
            _join("({} && {})", of["bool"], of["bool"]), _join("({} || {})", of["bool"], of["bool"]),
            _join("!{}", of["bool"]), _join("({} ? {} : {})", of["bool"], of["bool"], of["bool"]),
            _join("({} in [0] + {})", of["int"], of["list"]), _join("({} in {})", of["string"], of["map"]),
            _join("{}.{}(x, {})", of["list"], loops, step), _join("{}.startsWith({})", of["string"], of["string"]),
            _join("{}.contains({})", of["string"], of["string"]), _join("{}.endsWith({})", of["string"], of["string"]),
            _join("has({}.a)", of["map"]), _join("bool({} + '')", of["string"]),
        ),
        "int": _any(
            of["int"], _join("({} {} {})", of["int"], st.sampled_from("+-*/%"), of["int"]), _join("-({})", of["int"]),
            _join("{}.size()", of["string"]), _join("size({})", of["list"]), _join("size({})", of["bytes"]),
            _join("{}[{}]", of["list"], of["int"]), _join("{}[{}]", of["map"], of["string"]),
            _join("int({} + 0.0)", of["double"]), _join("int({} + 0u)", of["uint"]),
            _join("int({} + '')", of["string"]),
            _join("({} ? {} : {})", of["bool"], of["int"], of["int"]),
        ),
        "uint": _any(
            of["uint"], _join("uint({} + 0)", of["int"]),
            _join("({} {} {})", of["uint"], st.sampled_from("+-*/%"), of["uint"]),
        ),
        "double": _any(
            of["double"], _join("({} {} {})", of["double"], st.sampled_from("+-*/"), of["double"]),
            _join("double({})", of["int"]), _join("double({})", of["uint"]),
        ),
        "string": _any(
            of["string"], _join("({} + {})", of["string"], of["string"]), _join("string({})", of["int"]),
            _join("string({})", of["uint"]), _join("string({})", of["bool"]), _join("string({} + b'')", of["bytes"]),
        ),
        "bytes": _any(of["bytes"], _join("({} + {})", of["bytes"], of["bytes"]), _join("bytes({})", of["string"])),
        "list": _any(
            of["list"], _join("({} + {})", of["list"], of["list"]), _join("{}.map(x, {})", of["list"], change),
            _join("{}.filter(x, {})", of["list"], step), _join("{}.map(x, {}, {})", of["list"], step, change),
        ),
        "map": of["map"],
    }  # fmt: skip


def agree(expression: str) -> bool:
    return ours(expression) in ("NaN", theirs(expression))


@settings(max_examples=500, derandomize=True)
@given(_expressions(3)["bool"])
@example("9223372036854775807 + 1 == 0")
@example("[0, 1].exists(x, 4 / x > 1)")
@example("0.0 < 0.0 / 0.0")
def test_we_answer_as_cel_cpp_does(expression: str) -> None:
    assert agree(expression)


@pytest.mark.long
@pytest.mark.timeout(900)
@settings(max_examples=20_000, derandomize=True)
@given(_expressions(3)["bool"])
def test_we_answer_as_cel_cpp_does_many_more_expressions(expression: str) -> None:
    assert agree(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "timestamp('2024-02-29T12:30:15.25Z').getFullYear() == 2024",
        "timestamp('2024-02-29T12:30:15.25Z').getMonth() == 1",
        "timestamp('2024-02-29T12:30:15.25Z').getDayOfYear() == 59",
        "timestamp('2024-02-29T12:30:15.25Z').getDayOfMonth() == 28",
        "timestamp('2024-02-29T12:30:15.25Z').getDate() == 29",
        "timestamp('2024-02-29T12:30:15.25Z').getDayOfWeek() == 4",
        "timestamp('2024-02-29T12:30:15.25Z').getHours('+02:00') == 14",
        "timestamp('2024-02-29T12:30:15.25Z').getMilliseconds() == 250",
        "timestamp('2024-02-29T12:30:15Z') + duration('1h') > timestamp('2024-02-29T13:00:00Z')",
        "timestamp('2024-03-01T00:00:00Z') - timestamp('2024-02-29T00:00:00Z') == duration('24h')",
        "duration('1h30m').getMinutes() == 90",
        "string(duration('90s')) == '90s'",
        "type(1) == int && type('a') == string && type(1u) != int && type(null) == null_type",
        "cel.bind(x, 2, x * x == 4)",
        "optional.of(1).orValue(2) == 1 && optional.none().orValue(2) == 2",
        "{'a': 1}[?'b'].hasValue()",
        "{'a': 1}.?a.optMap(x, x + 1).orValue(0) == 2",
        "'abc'.matches('^a.c$')",
        r"'\x41\u0041\101' == 'AAA' && b'\xff' == b'\377' && r'\n'.size() == 2",
        "1 == 1u",
        "1 + 'a' == 2",
        "nosuch == 1",
        "true ? 1 : 'a'",
        "1 +",
    ],
)
def test_we_answer_as_cel_cpp_does_in_single_cases(expression: str) -> None:
    extensions = cel.NewEnv(variables={}, extensions=_extensions())
    try:
        value: Any = extensions.compile(expression).eval(data={})
        wanted = "error" if value.type() == cel.Type.ERROR else str(value.value()).lower()
    except RuntimeError:
        wanted = "no"
    assert ours(expression) == wanted


def _extensions() -> list[object]:
    from cel_expr_python.ext import ext_bindings, ext_optional

    return [ext_bindings.ExtBindings(), ext_optional.ExtOptional()]
