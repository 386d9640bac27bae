"""The type checker: what is a mistake whatever the device, and what the values must decide."""

from __future__ import annotations

import pytest

from dracaena.cel import CompileError, DeviceView, LanguageFeatures, Match, compile_selector

DEFAULT = LanguageFeatures()
LISTS = LanguageFeatures(list_type_attributes=True)
NEITHER = LanguageFeatures(consumable_capacity=False)


def message_of(expression: str, features: LanguageFeatures = LISTS, *, new: bool = False) -> str:
    with pytest.raises(CompileError) as caught:
        compile_selector(expression, features, new=new)
    return caught.value.message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.drvr == 'x'", "undefined field 'drvr'"),
        ("has(device.drvr)", "undefined field 'drvr'"),
        ("device.driver == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("device.driver.model == 'x'", "type 'string' does not support field selection"),
        (
            "device['driver'] == 'x'",
            "found no matching overload for '_[_]' applied to '(kubernetes.DRADevice, string)'",
        ),
        ("device.attributes[1].x == 1", "found no matching overload for '_[_]'"),
        ("1 in device.attributes", "found no matching overload for '@in'"),
        (
            "device.capacity['x'].y == 1",
            "found no matching overload for '_==_' applied to '(kubernetes.Quantity, int)'",
        ),
        ("device.capacity['x'].y > 1", "found no matching overload for '_>_' applied to '(kubernetes.Quantity, int)'"),
        ("quantity(1) == quantity('1')", "found no matching overload for 'quantity' applied to '(int)'"),
        ("nosuch(1)", "undeclared reference to 'nosuch' (in container '')"),
        ("'a'.nosuch()", "undeclared reference to 'nosuch' (in container '')"),
        ("1 == 1u", "found no matching overload for '_==_' applied to '(int, uint)'"),
        ("1 + 1u == 2", "found no matching overload for '_+_' applied to '(int, uint)'"),
        ("[1, 'a'] == []", "expected type 'int' but found 'string'"),
        ("[1, dyn(1)] == []", "expected type 'int' but found 'dyn'"),
        ("{'a': 1, 2: 1} == {}", "expected type 'string' but found 'int'"),
        ("{'a': 1, 'b': 'c'} == {}", "expected type 'int' but found 'string'"),
        ("[?1] == []", "expected type 'optional_type(int)' but found 'int'"),
        ("true ? 1 : 'a'", "found no matching overload for '_?_:_' applied to '(bool, int, string)'"),
        ("1 ? true : false", "found no matching overload for '_?_:_' applied to '(int, bool, bool)'"),
        ("1 && true", "expected type 'bool' but found 'int'"),
        ("[1].all(x, x)", "expected type 'bool' but found 'int'"),
        ("1.exists(x, true)", "expression of type 'int' cannot be range of a comprehension"),
        ("cel.bind(x, 1, y)", "undeclared reference to 'y'"),
        ("[1].all(x, true) && x == 1", "undeclared reference to 'x'"),
        ("Foo{a: 1} == 1", "undeclared reference to 'Foo'"),
        ("google.protobuf.Int32Value{value: 1} == 1", "message literals are not supported"),
        ("timestamp('x') == timestamp(0)", "invalid timestamp argument"),
        ("duration('1x') == duration('1s')", "invalid duration argument"),
        ("'a'.matches('(?=a)')", "invalid matches argument"),
        ("int('x') == 1", "program instantiation failed: type conversion error from 'string' to 'int'"),
    ],
)
def test_a_mistake_is_found_before_any_device_is_seen(expression: str, message: str) -> None:
    assert message_of(expression).startswith(message)


@pytest.mark.parametrize(
    ("expression", "type_"),
    [("1", "int"), ("device.driver", "string"), ("device", "kubernetes.DRADevice"), ("[true]", "list(bool)"),
     ("{'a': 1}", "map(string, int)"), ("null", "null_type"), ("quantity('1')", "kubernetes.Quantity")],
)  # fmt: skip
def test_a_selector_must_be_bool(expression: str, type_: str) -> None:
    assert message_of(expression) == f"must evaluate to bool or the unknown type, not {type_}"


def test_an_attribute_alone_may_be_a_selector() -> None:
    compile_selector("device.attributes['x'].y", DEFAULT)
    compile_selector("device.attributes['x'].y", LISTS)


def test_dyn_may_be_a_new_selector_only_with_list_attributes() -> None:
    compile_selector("dyn(true)", LISTS, new=True)
    compile_selector("dyn(true)", DEFAULT)
    assert message_of("dyn(true)", DEFAULT, new=True) == "must evaluate to bool or the unknown type, not dyn"


def test_without_list_attributes_no_macro_of_a_new_expression_walks_over_an_attribute() -> None:
    expression = "device.attributes['x'].y.exists(z, z == 1)"
    compile_selector(expression, LISTS, new=True)
    compile_selector(expression, DEFAULT)
    message = message_of(expression, DEFAULT, new=True)
    assert message.startswith("expression of type 'any' cannot be range of a comprehension")


@pytest.mark.parametrize(
    ("expression", "gate_off", "message"),
    [
        ("device.allowMultipleAllocations", NEITHER, "undefined field 'allowMultipleAllocations'"),
        ("device.attributes['x'].y.includes(1)", DEFAULT, "undeclared reference to 'includes' (in container '')"),
    ],
)
def test_a_gate_that_is_off_counts_for_new_expressions_only(
    expression: str, gate_off: LanguageFeatures, message: str
) -> None:
    everything = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
    assert message_of(expression, gate_off, new=True) == message
    compile_selector(expression, gate_off)
    compile_selector(expression, everything, new=True)


def test_numbers_of_different_types_may_be_ordered_but_not_added() -> None:
    selector = compile_selector("1 < 2u && 2u > 1.5 && 1.5 >= 1 && 1 <= 1.0")
    assert isinstance(selector.evaluate(DeviceView("d")), Match)


def test_a_loop_variable_hides_the_device_and_a_leading_dot_finds_it() -> None:
    device = DeviceView("d")
    assert isinstance(compile_selector("[1].exists(device, device == 1)").evaluate(device), Match)
    assert isinstance(compile_selector("[1].exists(device, .device.driver == 'd')").evaluate(device), Match)
    assert message_of("[1].exists(device, device.driver == 'd')").startswith("type 'int' does not support")


def test_type_parameters_are_followed_through_calls() -> None:
    assert message_of("[[1], [2]].map(l, l[0]) == ['a']").startswith("found no matching overload for '_==_'")
    assert message_of("optional.of(1).orValue('a') == 1").startswith("found no matching overload for 'orValue'")
    assert message_of("{'a': 1}.transformMap(k, v, k) == {'a': 1}").startswith("found no matching overload for '_==_'")
    compile_selector("[[], [1]].map(l, l.size()) == [0, 1]")
