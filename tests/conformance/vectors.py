"""Expressions with the answers that Kubernetes 1.36.3 itself gave: compile error, error or answer, and the cost.

A file holds the device and the feature gates that its expressions are asked with, and its vectors, one on a line. The
expressions are ours; `conformance.record_vectors` asks the reference for the answers. A message is kept where ours says
the same; where it is empty, only the kind of answer counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cel import device_of
from dracaena.cel import CompileError, DeviceView, Failed, LanguageFeatures, Match, compile_selector

COMPILE_ERROR = "compile error"
ERROR = "error"
MATCH = "match"
NO_MATCH = "no match"


@dataclass(frozen=True, slots=True)
class Vector:
    """One expression and its answer. The cost of an expression that does not compile is 0."""

    expression: str
    answer: str
    message: str
    cost: int


@dataclass(frozen=True, slots=True)
class VectorFile:
    """Vectors with what they are asked of. `document` is the device as the conformance cases write it."""

    document: dict[str, Any]
    vectors: tuple[Vector, ...]

    @property
    def device(self) -> DeviceView:
        return device_of(self.document)


# The gates of all vectors: everything is known.
FEATURES = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)


def ours(expression: str, device: DeviceView, features: LanguageFeatures = FEATURES) -> Vector:
    """What our implementation answers."""
    try:
        selector = compile_selector(expression, features, new=True)
    except CompileError as error:
        return Vector(expression, COMPILE_ERROR, error.message, 0)
    outcome, cost = selector.evaluate_with_cost(device)
    if isinstance(outcome, Failed):
        return Vector(expression, ERROR, outcome.reason, cost)
    return Vector(expression, MATCH if isinstance(outcome, Match) else NO_MATCH, "", cost)


def differences(wanted: Vector, answered: Vector) -> list[str]:
    """What differs between two answers, in words."""
    if wanted.answer != answered.answer:
        return [f"wanted {wanted.answer} ({wanted.message}), answered {answered.answer} ({answered.message})"]
    found = []
    if wanted.message not in answered.message:
        found.append(f"wanted message {wanted.message!r}, answered {answered.message!r}")
    if wanted.cost != answered.cost:
        found.append(f"wanted cost {wanted.cost}, answered {answered.cost}")
    return found


def read(path: Path) -> VectorFile:
    """Read a file of vectors."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return VectorFile(document["device"], tuple(Vector(*fields) for fields in document["vectors"]))


def write(path: Path, file: VectorFile) -> None:
    """Write a file of vectors, one on a line."""
    lines = ",\n".join(
        json.dumps([each.expression, each.answer, each.message, each.cost], ensure_ascii=False) for each in file.vectors
    )
    path.write_text(f'{{"device": {json.dumps(file.document)},\n"vectors": [\n{lines}\n]}}\n', encoding="utf-8")
