"""`includes`: whether an attribute that may be one value or a list of them holds a value (Kubernetes 1.36)."""

from __future__ import annotations

from typing import Any, Final

from dracaena.api.limits import DEVICE_ATTRIBUTE_VALUES
from dracaena.cel import types
from dracaena.cel.cost import tree_size
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, member
from dracaena.cel.standard.collections import search_work
from dracaena.cel.value import equal


def _includes(target: Any, wanted: Any) -> bool:
    if type(target) is not tuple:
        return equal(target, wanted)
    for number, element in enumerate(target):
        if number >= DEVICE_ATTRIBUTE_VALUES:
            raise EvaluationError(
                f"'includes' function cannot be applied to lists longer than {DEVICE_ATTRIBUTE_VALUES} values"
            )
        if equal(element, wanted):
            return True
    return False


def _work(target: Any, wanted: Any) -> int:
    return search_work(wanted, target) if type(target) is tuple else tree_size(target)


FUNCTION: Final = Function(
    "includes", (member("dra_includes_dyn_dyn", (types.DYN, types.DYN), types.BOOL, _includes, work=_work),)
)
