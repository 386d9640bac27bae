"""The cases of the folder `allocator`: one file a case, with what Kubernetes allocates.

support.allocator_cases says what stands in a case.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from conformance.case import Case, UnreadableCasesError
from dracaena.controller.allocation.structured.cel_selectors import CelSelectors
from dracaena.controller.allocation.structured.features import Features
from support.allocator_cases import answer, difference

FOLDER = "allocator"


def cases(folder: Path) -> list[Case]:
    """The cases of the folder's folder `allocator`, by name; none if it has none."""
    return [_read(path) for path in sorted((folder / FOLDER).glob("*.json"))]


def _read(path: Path) -> Case:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Case(f"{FOLDER}/{document['name']}", partial(_differences, document))
    except (ValueError, TypeError, KeyError) as error:
        raise UnreadableCasesError(f"{path}: wanted a JSON object with a name: {error}") from error


def _differences(document: dict[str, Any]) -> list[str]:
    given = answer(document, CelSelectors(Features.of_gates(document["features"])))
    found = difference(document, given)
    return [found] if found else []
