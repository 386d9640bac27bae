"""`includes`: whether an attribute that may be one value or a list of them holds a value (Kubernetes 1.36)."""

from __future__ import annotations

from typing import Any, Final

from dracaena.cel import types
from dracaena.cel.cost import tree_size
from dracaena.cel.errors import EvaluationError
from dracaena.cel.function import Function, member
from dracaena.cel.standard.collections import search_work
from dracaena.cel.value import equal

# resource.k8s.io/v1 ResourceSliceMaxAttributeValuesPerDevice: the most values the attributes of a device may have.
MOST_VALUES: Final = 48


def _includes(target: Any, wanted: Any) -> bool:
    if type(target) is not tuple:
        return equal(target, wanted)
    for number, element in enumerate(target):
        if number >= MOST_VALUES:
            raise EvaluationError(f"'includes' function cannot be applied to lists longer than {MOST_VALUES} values")
        if equal(element, wanted):
            return True
    return False


def _work(target: Any, wanted: Any) -> int:
    return search_work(wanted, target) if type(target) is tuple else tree_size(target)


FUNCTION: Final = Function(
    "includes", (member("dra_includes_dyn_dyn", (types.DYN, types.DYN), types.BOOL, _includes, work=_work),)
)
