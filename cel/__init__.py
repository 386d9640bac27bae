"""The Kubernetes CEL environment for devices. From other packages it imports only the API's quantities and limits.

    selector = compile_selector('device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))')
    outcome = selector.evaluate(DeviceView.of_names("gpu.example.com", capacity={"memory": "80Gi"}))

`compile_selector` raises CompileError with the place of the mistake. `evaluate` answers `MATCH`, `NO_MATCH` or
`Failed(reason)`, and never raises. `SelectorMemo` remembers compiled selectors and answers.
"""

from dracaena.cel.device import AttributeValue, DeviceView, LanguageFeatures, Version
from dracaena.cel.errors import CompileError, ResultTypeError
from dracaena.cel.footprint import Footprint
from dracaena.cel.memo import SelectorMemo
from dracaena.cel.optional_use import misused_optional
from dracaena.cel.outcome import MATCH, NO_MATCH, Failed, Match, NoMatch, Outcome
from dracaena.cel.selector import Selector, compile_derived_attribute, compile_selector

__all__ = [
    "MATCH",
    "NO_MATCH",
    "AttributeValue",
    "CompileError",
    "DeviceView",
    "Failed",
    "Footprint",
    "LanguageFeatures",
    "Match",
    "NoMatch",
    "Outcome",
    "ResultTypeError",
    "Selector",
    "SelectorMemo",
    "Version",
    "compile_derived_attribute",
    "compile_selector",
    "misused_optional",
]
