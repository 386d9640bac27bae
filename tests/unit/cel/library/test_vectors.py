"""Every function and overload, with values and with errors, against recorded answers of the reference."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dracaena.cel.ast import Call, walk
from dracaena.cel.checker import check
from dracaena.cel.device import DeviceView, Version
from dracaena.cel.environment import environment_of
from dracaena.cel.errors import CompileError, EvaluationError
from dracaena.cel.parser import parse
from support.cel_rendering import FEATURES, evaluate, render

FOLDER = Path(__file__).parent / "vectors"
VECTORS: dict[str, list[dict[str, Any]]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
DEVICE = DeviceView.of_names(
    "d",
    {"s": "x", "i": 3, "b": True, "v": Version("1.2.3"), "is": (1, 2), "ss": ("a", "b")},
    {"q": "1Gi"},
)

# By what the reference answers and what we do. Errors that only read otherwise: one prefix less for networks, the
# reason why a text is no address, the name of what overflowed. Values: `flatten()` of a flat list that the checker did
# not know to be one, offsets of more than 24 hours, and the offset in the text of a timestamp.
DIFFERENCES = {
    ("compile_error", "compile_error"): 1,
    ("error", "error"): 29,
    ("value", "error"): 3,
    ("value", "value"): 2,
}

# Declared for the checker; the planner evaluates these itself, and no vector can tell which overload it was.
SYNTAX = {"_?_:_", "_&&_", "_||_", "@not_strictly_false", "_[_]", "_[?_]", "_?._"}


def answer(expression: str) -> dict[str, Any]:
    try:
        value, cost = evaluate(expression, DEVICE)
    except CompileError as error:
        return {"compile_error": error.rendered.split("\n")[0]}
    except EvaluationError as error:
        return {"error": error.message}
    return {"value": render(value), "cost": cost}


def agrees(said: dict[str, Any], wanted: dict[str, Any]) -> bool:
    if "value" in wanted:
        return said == {"value": wanted["value"], "cost": wanted.get("cost", said.get("cost"))}
    [(kind, text)] = wanted.items()
    if text.startswith("no such overload"):  # the reference goes on with the types, not always
        text = "no such overload"
    return said.keys() == wanted.keys() and (text in said[kind])


@pytest.mark.parametrize("library", VECTORS)
def test_every_vector_has_the_answer_of_the_reference(library: str) -> None:
    wrong = []
    for vector in VECTORS[library]:
        reference = {key: value for key, value in vector.items() if key not in ("expression", "ours")}
        wanted = vector.get("ours", reference)
        said = answer(vector["expression"])
        if not agrees(said, wanted):
            wrong.append({"expression": vector["expression"], "said": said, "wanted": wanted})
        elif "ours" in vector and agrees(said, reference):
            wrong.append({"expression": vector["expression"], "no longer differs": said})
    assert wrong == []


def test_what_we_answer_otherwise_is_counted() -> None:
    """A value that differs could choose another device; a differing text only reads otherwise."""
    kinds: Counter[tuple[str, str]] = Counter()
    for vectors in VECTORS.values():
        for vector in vectors:
            if "ours" in vector:
                [theirs] = {"value", "error", "compile_error"} & vector.keys()
                [mine] = {"value", "error", "compile_error"} & vector["ours"].keys()
                kinds[theirs, mine] += 1
    assert kinds == DIFFERENCES


def test_every_overload_has_a_vector() -> None:
    called = set()
    for vectors in VECTORS.values():
        for vector in vectors:
            called |= overloads_called(vector["expression"])
    declared = {
        overload.id
        for function in environment_of(FEATURES, new=False).functions.values()
        for overload in function.overloads
        if function.name not in SYNTAX
    }
    assert declared - called == set()


def overloads_called(expression: str) -> set[str]:
    """The overloads that the checker settled on alone."""
    try:
        tree = parse(expression)
        checked = check(tree, environment_of(FEATURES, new=False), expression)
    except CompileError:
        return set()
    resolved = [checked.calls[node] for node in walk(tree) if isinstance(node, Call) and node in checked.calls]
    return {call.overloads[0].id for call in resolved if len(call.overloads) == 1}
