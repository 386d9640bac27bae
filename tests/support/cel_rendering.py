"""Values of CEL as JSON, for vectors: each value is an object whose one key is its type, as in {"int": "3"}."""

from __future__ import annotations

import base64
from typing import Any

from dracaena.api.limits import EXPRESSION_COST
from dracaena.cel.checker import check
from dracaena.cel.device import DeviceView, LanguageFeatures
from dracaena.cel.environment import environment_of
from dracaena.cel.parser import parse
from dracaena.cel.planner import plan
from dracaena.cel.standard.times import timestamp_text
from dracaena.cel.state import EvaluationState
from dracaena.cel.value import Duration, Map, OptionalValue, Timestamp, TypeValue, UInt
from dracaena.cel.values.ip import Address, Network
from dracaena.cel.values.named_format import NamedFormat
from dracaena.cel.values.quantity import QuantityValue
from dracaena.cel.values.semver import Semver
from dracaena.cel.values.url import Url

FEATURES = LanguageFeatures(list_type_attributes=True)
NO_DEVICE = DeviceView("gpu.example.com")


def evaluate(expression: str, device: DeviceView = NO_DEVICE) -> tuple[Any, int]:
    """The value of an expression of any type and its cost. Raises CompileError, EvaluationError or CostLimitError."""
    tree = parse(expression)
    environment = environment_of(FEATURES, new=False)
    program = plan(tree, check(tree, environment, expression), expression)
    state = EvaluationState(device.values(FEATURES), program.slots, EXPRESSION_COST)
    return program.run(state), state.cost


def render(value: Any) -> dict[str, Any]:
    """A value as JSON: numbers as text, maps as lists of pairs sorted by key, bytes in base64, durations in ns."""
    match value:
        case bool():
            return {"bool": value}
        case UInt():
            return {"uint": str(int(value))}
        case int():
            return {"int": str(value)}
        case float():
            return {"double": repr(value)}
        case str():
            return {"string": value}
        case bytes():
            return {"bytes": base64.b64encode(value).decode()}
        case None:
            return {"null": True}
        case tuple():
            return {"list": [render(element) for element in value]}
        case Map():
            return {"map": sorted(([render(key), render(entry)] for key, entry in value.items()), key=str)}
        case OptionalValue():
            return {"optional": render(value.value)} if value.has_value else {"none": True}
        case _:
            return _render_other(value)


def _render_other(value: Any) -> dict[str, Any]:
    match value:
        case Timestamp():
            return {"timestamp": timestamp_text(value)}
        case Duration():
            return {"duration": str(value.nanoseconds)}
        case TypeValue() | NamedFormat():
            return {"type" if isinstance(value, TypeValue) else "format": value.name}
        case QuantityValue() | Semver() | Address() | Network() | Url():
            return {_OPAQUE[type(value)]: str(value)}
    raise TypeError(type(value).__name__)


_OPAQUE: dict[type, str] = {QuantityValue: "quantity", Semver: "semver", Address: "ip", Network: "cidr", Url: "url"}
