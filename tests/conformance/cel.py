"""The cases of `cel.json`: a selector, a device, feature gates, and what Kubernetes answers.

`expectCompileError` and `expectMatchError` are parts of the wanted message. `expectCost` is the worst case that the API
server computes when an expression is admitted, so an evaluation may cost less, but never more.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from conformance.case import Case, UnreadableCasesError
from dracaena.cel import (
    AttributeValue,
    CompileError,
    DeviceView,
    Failed,
    LanguageFeatures,
    Match,
    Outcome,
    Version,
    compile_selector,
)
from dracaena.controller.allocation.legal.read.features import Features, KubernetesVersion

FILE = "cel.json"


def cases(folder: Path, version: KubernetesVersion) -> list[Case]:
    """The cases of the folder's `cel.json`, none if it has no such file. `version`: of their answers."""
    path = folder / FILE
    if not path.is_file():
        return []
    try:
        documents = json.loads(path.read_text(encoding="utf-8"))
        return [Case(f"cel/{document['name']}", partial(_differences, document, version)) for document in documents]
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableCasesError(f"{path}: wanted a JSON list of objects with a name each: {error}") from error


def _differences(case: dict[str, Any], version: KubernetesVersion) -> list[str]:
    features = LanguageFeatures(
        consumable_capacity=bool(case["enableConsumableCapacity"]),
        list_type_attributes=bool(case["enableListTypeAttributes"]),
        stored_lists=Features.of(version).stored_lists,
        strict_optionals=Features.of(version).strict_optionals,
    )
    try:
        selector = compile_selector(case["expression"], features, new=case["envType"] == "NewExpressions")
    except CompileError as error:
        return _shown(case, f"compile error: {error}", _compile_error_fits(case, error))
    outcome, cost = selector.evaluate_with_cost(device_of(case))
    wrong = _shown(case, _in_words(outcome), _outcome_fits(case, outcome))
    if cost > case["expectCost"] and not case["expectCompileError"]:
        wrong.append(f"cost {cost}, wanted at most {case['expectCost']}")
    return wrong


def _compile_error_fits(case: dict[str, Any], error: CompileError) -> bool:
    # Kubernetes puts these words before what its compiler says; ours says the rest.
    return bool(case["expectCompileError"]) and case["expectCompileError"] in f"compilation failed: {error}"


def _outcome_fits(case: dict[str, Any], outcome: Outcome) -> bool:
    if case["expectCompileError"]:
        return False
    if case["expectMatchError"]:
        return isinstance(outcome, Failed) and case["expectMatchError"] in outcome.reason
    return not isinstance(outcome, Failed) and isinstance(outcome, Match) is case["expectMatch"]


def _in_words(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return f"error: {outcome.reason}"
    return "match" if isinstance(outcome, Match) else "no match"


def _wanted(case: dict[str, Any]) -> str:
    if case["expectCompileError"]:
        return f"compile error with {case['expectCompileError']!r}"
    if case["expectMatchError"]:
        return f"error with {case['expectMatchError']!r}"
    return "match" if case["expectMatch"] else "no match"


def _shown(case: dict[str, Any], answer: str, fits: bool) -> list[str]:
    return (
        [] if fits else [f"expression  {case['expression']}", f"wanted      {_wanted(case)}", f"answered    {answer}"]
    )


def device_of(case: dict[str, Any]) -> DeviceView:
    """The device of a case, with attributes and capacity as the API writes them."""
    return DeviceView.of_names(
        case["driver"],
        {name: _attribute(value) for name, value in (case["attributes"] or {}).items()},
        {name: value["value"] for name, value in (case["capacity"] or {}).items()},
        allow_multiple_allocations=bool(case["allowMultipleAllocations"]),
    )


def _attribute(attribute: dict[str, Any]) -> AttributeValue | None:
    """An attribute as the API has it: one of bool, int, string, version, or a list of one of them."""
    for kind, value in attribute.items():
        if kind in ("bool", "int", "string"):
            return value  # type: ignore[no-any-return]
        if kind == "version":
            return Version(value)
        if kind in ("bools", "ints", "strings"):
            return tuple(value)
        if kind == "versions":
            return tuple(Version(each) for each in value)
    return None
