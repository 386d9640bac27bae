"""A compiled selector: what `cel.expression` of a DeviceClass or a request becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dracaena.api.limits import EXPRESSION_COST
from dracaena.cel import types
from dracaena.cel.ast import SyntaxNode
from dracaena.cel.checker import check
from dracaena.cel.device import AttributeValue, DeviceView, LanguageFeatures, Version
from dracaena.cel.environment import environment_of
from dracaena.cel.errors import CompileError, CostLimitError, DeviceDataError, EvaluationError, ResultTypeError
from dracaena.cel.footprint import Footprint, footprint_of
from dracaena.cel.outcome import MATCH, NO_MATCH, Failed, Outcome
from dracaena.cel.parser import parse
from dracaena.cel.planner import SelectorProgram, plan
from dracaena.cel.source import Diagnostic, compile_error
from dracaena.cel.state import EvaluationState
from dracaena.cel.value import OptionalValue, type_name
from dracaena.cel.values.semver import Semver

_Told = TypeVar("_Told")

TOO_DEEP = "expression nests too deeply for the calling program's stack"


@dataclass(frozen=True, slots=True, eq=False)
class Selector:
    """A selector that can be evaluated for any number of devices, from any number of threads.

    `footprint` says which parts of a device it can read: devices that agree in these get the same answer.
    """

    expression: str
    features: LanguageFeatures
    footprint: Footprint
    _program: SelectorProgram

    def evaluate(self, device: DeviceView, cost_limit: int = EXPRESSION_COST) -> Outcome:
        """MATCH, NO_MATCH, or Failed with the reason. Never raises, and always ends within the cost limit."""
        return self.evaluate_with_cost(device, cost_limit)[0]

    def evaluate_with_cost(self, device: DeviceView, cost_limit: int = EXPRESSION_COST) -> tuple[Outcome, int]:
        """The answer, and what it cost in the units of Kubernetes' model."""
        outcome, state = self._run(device, cost_limit, None, _outcome)
        return outcome, 0 if state is None else state.cost

    def evaluate_charged(self, device: DeviceView, charge: Callable[[int], None]) -> tuple[Outcome, int]:
        """The answer, and what `charge` still has to be told when the answer has been remembered.

        `charge` is told what the evaluation takes while it runs (state.State); what it raises is raised here.
        """
        outcome, state = self._run(device, EXPRESSION_COST, charge, _outcome)
        return outcome, 0 if state is None else state.untold

    def value_charged(self, device: DeviceView, charge: Callable[[int], None]) -> tuple[AttributeValue | Failed, int]:
        """The value of a derived attribute; `charge` as in evaluate_charged()."""
        value, state = self._run(device, EXPRESSION_COST, charge, _attribute_value)
        return value, 0 if state is None else state.untold

    def _run(
        self,
        device: DeviceView,
        cost_limit: int,
        charge: Callable[[int], None] | None,
        told: Callable[[Any], _Told],
    ) -> tuple[_Told | Failed, EvaluationState | None]:
        try:
            values = device.values(self.features)
        except DeviceDataError as error:
            return Failed(str(error)), None
        program = self._program
        state = EvaluationState(values, program.slots, cost_limit, charge=charge)
        try:
            result = program.run(state)
            if state.cost > cost_limit:
                raise CostLimitError
            return told(result), state
        except EvaluationError as error:
            reason = CostLimitError().message if state.cost > cost_limit else error.message
            return Failed(reason), state
        except CostLimitError as error:
            return Failed(error.message), state
        except RecursionError:
            return Failed(TOO_DEEP), state
        except _FAULTS as error:
            return Failed(f"{FAULT}: {type(error).__name__}: {error}"), state


_FAULTS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a mistake in this package raises. A selector that runs into one has no answer, as with any other failure, so it
stops the pods that use it and no others."""

FAULT: Final = "Dracaena's CEL evaluator failed, please report the expression"


def compile_selector(expression: str, features: LanguageFeatures | None = None, *, new: bool = False) -> Selector:
    """Check an expression and make it ready for evaluation.

    Stored expressions may use everything that this version knows, whatever the feature gates say, so that switching a
    gate off breaks no object. `new` is for expressions that are being written now: then gates count. CompileError lists
    every problem with its place.
    """
    return _compile(expression, features or LanguageFeatures(), _check_result, new=new)


def compile_derived_attribute(expression: str, features: LanguageFeatures | None = None) -> Selector:
    """Check a stored expression of a claim's derivedAttributes, and make it ready for value_charged()."""
    return _compile(expression, features or LanguageFeatures(), _check_attribute, new=False)


def _compile(expression: str, features: LanguageFeatures, check_result: _ResultCheck, *, new: bool) -> Selector:
    try:
        tree = parse(expression)
        environment = environment_of(features, new=new)
        checked = check(tree, environment, expression)
        check_result(checked.type_of(tree), tree, features.list_type_attributes or not new, expression)
        program = plan(tree, checked, expression, strict_optionals=features.strict_optionals)
        return Selector(expression, features, footprint_of(tree), program)
    except RecursionError:
        raise CompileError(TOO_DEEP) from None


def _check_result(result: types.Type, tree: SyntaxNode, lists: bool, expression: str) -> None:  # noqa: FBT001
    allowed = [types.BOOL, types.ANY, *([types.DYN] if lists else [])]
    if result not in allowed:
        message = f"must evaluate to bool or the unknown type, not {result}"
        raise compile_error(expression, [Diagnostic(tree.position, message)], ResultTypeError)


_ResultCheck = Callable[[types.Type, SyntaxNode, bool, str], None]
"""Of the type of a tree; the third says whether attributes may be lists."""

_SCALARS: Final = (types.BOOL, types.INT, types.STRING, types.ANY, types.DYN, types.SEMVER)
_VALUES: Final = (*_SCALARS, *map(types.list_of, _SCALARS))
"""Types that a derived attribute may have."""


def _check_attribute(result: types.Type, tree: SyntaxNode, _lists: bool, expression: str) -> None:  # noqa: FBT001
    if result not in _VALUES:
        scalars = "a primitive scalar (string, integer, boolean, semver)"
        message = f"must evaluate to {scalars} or a list of these scalars, not {result}"
        raise compile_error(expression, [Diagnostic(tree.position, message)], ResultTypeError)


def _attribute_value(result: Any) -> AttributeValue:
    if not isinstance(result, tuple):
        return _scalar_value(result)
    values = tuple(map(_scalar_value, result))
    if len(set(map(type, values))) > 1:
        raise EvaluationError("the elements of a list must be of one type")
    return values


def _scalar_value(result: Any) -> str | int | bool | Version:
    if type(result) in (bool, int, str):
        scalar: str | int | bool = result
        return scalar
    if isinstance(result, Semver):
        return Version(str(result))
    raise EvaluationError(f"CEL result of type {type_name(result)} is not a value of an attribute")


def _outcome(result: Any) -> Outcome:
    if result is True:
        return MATCH
    if result is False:
        return NO_MATCH
    name = type_name(result)
    while isinstance(result, OptionalValue):
        if not result.has_value:
            return Failed(f"CEL result of type {name} could not be converted to bool: optional.none() dereference")
        result = result.value
    if type(result) is bool:
        return MATCH if result else NO_MATCH
    return Failed(f"CEL result of type {name} could not be converted to bool")
