"""Lexer and parser: literals, precedence, where errors point, and how deep an expression may nest."""

from __future__ import annotations

import pytest

from dracaena.cel import CompileError, DeviceView, LanguageFeatures, Match, compile_selector

EVERYTHING = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
DEVICE = DeviceView.of_names("gpu.example.com", {"model": "A100", "index": 3})


def holds(expression: str) -> bool:
    outcome = compile_selector(expression, EVERYTHING).evaluate(DEVICE)
    assert type(outcome).__name__ in ("Match", "NoMatch"), outcome
    return isinstance(outcome, Match)


def refusal(expression: str) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_selector(expression, EVERYTHING)
    return caught.value


@pytest.mark.parametrize(
    "expression",
    [
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "10 - 3 - 2 == 5",
        "8 / 2 / 2 == 2",
        "7 % 4 * 2 == 6",
        "1 + 1 < 3 == true",
        "true || false && false",
        "!false && true",
        "-(1) == -1 && - 1 == -1 && 1 - -1 == 2",
        "--1 == 1 && !!true",
        "false ? false : true ? true : false",
        "1 in [1] && !(2 in [1])",
    ],
)
def test_operators_bind_as_the_language_defines(expression: str) -> None:
    assert holds(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "0x1F == 31 && 0xFFu == 255u && 1e3 == 1000.0 && .5 == 0.5 && 1.5E-1 == 0.15",
        "-9223372036854775808 < -9223372036854775807 && -0x8000000000000000 < 0",
        "18446744073709551615u > 0u",
        r"""'\x41\u0041\101\U00000041' == "AAAA" """,
        r"""r'\n' == "\\n" && R"\t".size() == 2 && '''a'b''' == "a'b" """,
        r"""b'\xff\377' == b"\xff\xff" && b'é' == b"\xc3\xa9" && br"\d" == b"\\d" """,
        '"""two\nlines""" == "two\\nlines" && "a\\r" != "a"',
        '"""two\r\nlines""" == "two\\nlines"',
        "'é'.size() == 1 && '😀'.size() == 1",
        "[1, 2,].size() == 2 && {'a': 1,}.size() == 1 && [,].size() == 0",
        "true // and a comment",
        "null == null",
    ],
)
def test_literals_have_their_values(expression: str) -> None:
    assert holds(expression)


@pytest.mark.parametrize(
    ("expression", "line", "column", "message"),
    [
        ("?!", 1, 1, "Syntax error"),
        ("1 +", 1, 4, "Syntax error"),
        ("(true", 1, 6, "Syntax error"),
        ("true true", 1, 6, "Syntax error"),
        ("true &&\n  1 = 1", 2, 5, "Syntax error: token recognition error at: '= 1'"),
        ("'abc", 1, 1, "Syntax error"),
        (r"'\q'", 1, 1, "Syntax error"),
        (r"'\uD800' == ''", 1, 1, "invalid escape"),
        ("9223372036854775808 == 0", 1, 1, "invalid int literal"),
        ("true && 18446744073709551616u == 0u", 1, 9, "invalid uint literal"),
        ("1e400 == 0.0", 1, 1, "invalid double literal"),
        ("9" * 5000 + " == 0", 1, 1, "invalid int literal"),
        ("package == 1", 1, 1, "reserved identifier: package"),
        ("device.`model` == 1", 1, 8, "unsupported syntax: '`'"),
        ("[1].all(1, true)", 1, 9, "argument must be a simple name"),
        ("[1].all(x, x, true)", 1, 12, "duplicate variable name: x"),
        ("has(device)", 1, 5, "invalid argument to has() macro"),
        ("a ? b ? c : d : e", 1, 7, "Syntax error"),
        ("true && '\ud800' == b''", 1, 10, "Syntax error: half of a character"),
        ("1 + 2", 1, 3, "must evaluate to bool or the unknown type, not int"),
    ],
)
def test_an_error_points_at_its_place(expression: str, line: int, column: int, message: str) -> None:
    error = refusal(expression)
    assert error.message.startswith(message)
    assert (error.line, error.column) == (line, column)
    shown = expression.split("\n")[line - 1]
    assert error.rendered.split("\n")[-2:] == [f" | {shown}", f" | {'.' * (column - 1)}^"]


def test_position_counts_characters_of_the_whole_expression() -> None:
    error = refusal("true &&\n  'é' == nosuch")
    assert (error.position, error.line, error.column) == (17, 2, 10)
    assert error.rendered == (
        "ERROR: <input>:2:10: undeclared reference to 'nosuch' (in container '')\n |   'é' == nosuch\n | .........^"
    )


def test_all_type_errors_are_told_in_the_order_of_the_text() -> None:
    error = refusal("nosuch == 1 && device.drvr == 'x' && 1 + 'a' == 2")
    assert [line for line in error.rendered.split("\n") if line.startswith("ERROR")] == [
        "ERROR: <input>:1:1: undeclared reference to 'nosuch' (in container '')",
        "ERROR: <input>:1:22: undefined field 'drvr'",
        "ERROR: <input>:1:40: found no matching overload for '_+_' applied to '(int, string)'",
    ]


# Forms that nest, each with the most levels that Kubernetes accepts.
NESTINGS = {
    "parentheses": ("(", "true", ")", 249),
    "conditionals": ("true ? true : ", "true", "", 249),
    "lists": ("size([", "[]", "]) == 1 ? [] : []", 120),
    "calls": ("dyn(", "true", ")", 240),
    "negations": ("!(", "true", ")", 240),
    "loops": ("[1].all(x, ", "true", ")", 240),
    "bindings": ("cel.bind(x, 1, ", "true", ")", 240),
    "indexes": ("[0][", "0", "]", 240),
    "sums": ("1 + ", "1", "", 249),
}


@pytest.mark.parametrize("form", ["parentheses", "conditionals", "calls", "negations", "loops", "bindings"])
def test_an_expression_may_nest_as_deeply_as_in_kubernetes(form: str) -> None:
    opening, inner, closing, levels = NESTINGS[form]
    expression = opening * levels + inner + closing * levels
    outcome = compile_selector(expression, EVERYTHING).evaluate(DEVICE)
    assert type(outcome).__name__ in ("Match", "NoMatch"), outcome


@pytest.mark.parametrize("form", sorted(NESTINGS))
@pytest.mark.parametrize("levels", [300, 1_000, 10_000])
def test_deeper_nesting_is_an_error_and_no_crash(form: str, levels: int) -> None:
    opening, inner, closing, _ = NESTINGS[form]
    error = refusal(opening * levels + inner + closing * levels)
    assert "recursion" in error.message


def test_chains_of_logical_operators_may_be_of_any_length() -> None:
    assert holds(" || ".join(["false"] * 2_000 + ["true"]))
    assert not holds(" && ".join(["true"] * 2_000 + ["false"]))


def test_an_expression_that_uses_up_the_callers_stack_is_an_error_and_no_crash() -> None:
    def deep(levels: int) -> str:
        if levels:
            return deep(levels - 1)
        return refusal("(" * 240 + "true" + ")" * 240).message

    assert deep(600) == "expression nests too deeply for the calling program's stack"
