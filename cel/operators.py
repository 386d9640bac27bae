"""The operators that are evaluated specially: equality, `&&`, `||`, `? :`, `or`, `orValue`, `in` a list of literals."""

from __future__ import annotations

from typing import Any

from dracaena.cel.calls import value_or_failed
from dracaena.cel.cost import size_of, tenth
from dracaena.cel.errors import EvaluationError
from dracaena.cel.folds import no_overload
from dracaena.cel.standard.comparison import equality_cost
from dracaena.cel.state import FAILED, EvaluationState, Run
from dracaena.cel.types import Opaque
from dracaena.cel.value import Map, OptionalValue, equal


def equals(left: Run, right: Run, *, negated: bool) -> Run:
    """`==` and `!=` of any two values."""

    def compare(state: EvaluationState) -> bool:
        try:
            first = left(state)
        except EvaluationError as error:
            second = value_or_failed(state, right)
            state.cost += equality_cost(FAILED, second)
            raise error from None
        try:
            second = right(state)
        except EvaluationError:
            state.cost += _equality_price(first, FAILED, negated=negated)
            raise
        return _compared(state, first, second, negated=negated)

    return compare


def _equality_price(first: Any, second: Any, *, negated: bool) -> int:
    return 1 if isinstance(first, Opaque) and not negated else equality_cost(first, second)


def _compared(state: EvaluationState, first: Any, second: Any, *, negated: bool) -> bool:
    """The answer, paid for. Lists and maps are counted before they are compared; opaque ones are compared by type."""
    state.cost += _equality_price(first, second, negated=negated)
    if type(first) is tuple or type(first) is Map or type(first) is OptionalValue:
        state.spend_on(first)
    elif isinstance(first, Opaque) and type(second) is not type(first) and second is not None and not negated:
        raise no_overload()
    return equal(first, second) is not negated


def equals_constant(left: Run, constant: Any, *, negated: bool) -> Run:
    """`==` and `!=` with a literal text, int or bool on the right: the common case."""
    kind, size = type(constant), size_of(constant)
    failed = tenth(min(1, size))
    # Comparing costs a tenth of the shorter text, rounded up: looked up by the other text's length.
    prices = [tenth(length) for length in range(size)] if kind is str else []
    whole_price = tenth(size)

    def compare_text(state: EvaluationState) -> bool:
        try:
            value = left(state)
        except EvaluationError:
            state.cost += failed
            raise
        if type(value) is str:
            length = len(value)
            state.cost += prices[length] if length < size else whole_price
            return bool(value == constant) is not negated
        return _compared(state, value, constant, negated=negated)

    def compare_scalar(state: EvaluationState) -> bool:
        try:
            value = left(state)
        except EvaluationError:
            state.cost += failed
            raise
        if type(value) is kind:
            state.cost += 1
            return bool(value == constant) is not negated
        return _compared(state, value, constant, negated=negated)

    return compare_text if kind is str else compare_scalar


def logical(terms: tuple[Run, ...], *, decisive: bool) -> Run:
    """`||` (true decides) and `&&` (false decides) of any number of terms.

    If one term decides, it is the answer, whatever the others are. Else it is the first error, if there is one.
    """

    otherwise = not decisive

    def decide(state: EvaluationState) -> bool:
        error: EvaluationError | None = None
        for term in terms:
            try:
                found = term(state)
            except EvaluationError as raised:
                error = error or raised
                continue
            if found is decisive:
                return not otherwise
            if type(found) is not bool:
                error = error or no_overload()
        if error is not None:
            raise error
        return otherwise

    return decide


def conditional(condition: Run, chosen: Run, otherwise: Run) -> Run:
    """`? :`, which evaluates only one of its branches."""

    def choose(state: EvaluationState) -> Any:
        decided = condition(state)
        if decided is True:
            return chosen(state)
        if decided is False:
            return otherwise(state)
        raise no_overload()

    return choose


def optional_or(optional: Run, otherwise: Run, *, unwraps: bool, strict: bool) -> Run:
    """`or` and `orValue`, which evaluate their argument only if there is no value.

    A value that is no optional, which only a receiver of unknown type can give, is an error if `strict`, and else the
    answer.
    """

    def choose(state: EvaluationState) -> Any:
        value = optional(state)
        if type(value) is not OptionalValue:
            if strict:
                raise no_overload()
            return value
        if value.has_value:
            return value.value if unwraps else value
        return otherwise(state)

    return choose


def among(element: Run, elements: tuple[Any, ...]) -> Run:
    """`in` a literal list of texts, numbers and truth values: free, as in the reference."""
    known = Map((each, True) for each in elements)
    return lambda state: element(state) in known
