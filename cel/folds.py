"""The loops that macros become. Their costs are those of the reference's general loop, step by step.

`turn` is the work of evaluating the loop's body once, except for loops within it.

An error in one step is remembered and the loop continues: another element may still decide `all` and `exists`, and the
cost of the other elements counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dracaena.cel.cost import LIST_COST
from dracaena.cel.errors import EvaluationError
from dracaena.cel.state import EvaluationState, Run
from dracaena.cel.value import Map, type_name


def no_overload() -> EvaluationError:
    """A value of a type that the operator does not know."""
    return EvaluationError("no such overload")


_GO_NAMES = {"int": "types.Int", "string": "types.String", "bool": "types.Bool", "double": "types.Double"}


def _single(state: EvaluationState, range_: Run, slots: tuple[int, ...], turn: int) -> Iterator[None]:
    """Put each element of a list, or key of a map, into its variable. Each turn of the loop costs `turn`."""
    items = range_(state)
    if type(items) is not tuple and type(items) is not Map:
        name = type_name(items)
        raise EvaluationError(f"got '{_GO_NAMES.get(name, 'cel.' + name.rpartition('.')[2])}', expected iterable type")
    variables, (slot,) = state.slots, slots
    for item in items:
        if state.cost > state.limit:
            state.over_limit()
        state.spend(turn)
        variables[slot] = item
        yield


def _pairs(state: EvaluationState, range_: Run, slots: tuple[int, ...], turn: int) -> Iterator[None]:
    """Put index and element of a list, or key and value of a map, into their variables. Each turn costs `turn`."""
    items = range_(state)
    if type(items) is not tuple and type(items) is not Map:
        name = type_name(items)
        shown = _GO_NAMES.get(name, "cel." + name.rpartition(".")[2])
        raise EvaluationError(f"unsupported comprehension range type: {shown}")
    variables, (first, second) = state.slots, slots
    for key, item in items.items() if type(items) is Map else enumerate(items):
        if state.cost > state.limit:
            state.over_limit()
        state.spend(turn)
        variables[first] = key
        variables[second] = item
        yield


def quantifier(range_: Run, slots: tuple[int, ...], predicate: Run, *, turn: int, decisive: bool) -> Run:
    """`exists` (decided by true) and `all` (decided by false)."""
    walk = _single if len(slots) == 1 else _pairs
    condition_cost = 3 if decisive else 2  # not_strictly_false(accumulator); exists negates the accumulator as well

    def fold(state: EvaluationState) -> bool:
        error: EvaluationError | None = None
        decided = False
        for _ in walk(state, range_, slots, turn):
            state.cost += condition_cost
            if decided:
                break
            state.cost += 1
            try:
                found = predicate(state)
            except EvaluationError as raised:
                error = error or raised
                continue
            if found is decisive:
                decided = True
            elif type(found) is not bool:
                error = error or no_overload()
        state.cost += 1
        if decided:
            return decisive
        if error is not None:
            raise error
        return not decisive

    return fold


def exists_one(range_: Run, slots: tuple[int, ...], predicate: Run, *, turn: int) -> Run:
    """Whether the predicate is true for exactly one element. It never stops early, and absorbs no error."""
    walk = _single if len(slots) == 1 else _pairs

    def fold(state: EvaluationState) -> bool:
        error: EvaluationError | None = None
        count = 0
        for _ in walk(state, range_, slots, turn):
            try:
                found = predicate(state)
            except EvaluationError as raised:
                error = raised
                continue
            if found is True:
                state.cost += 2
                count += 1
            elif found is not False:
                error = no_overload()
        state.cost += 2
        if error is not None:
            raise error
        return count == 1

    return fold


def collect_list(
    range_: Run, slots: tuple[int, ...], condition: Run | None, transform: Run, *, turn: int, constant: bool
) -> Run:
    """`map`, `filter` and `transformList`. A constant transformation creates no list at each step, so it costs none."""
    walk = _single if len(slots) == 1 else _pairs
    step_cost = 2 if constant else 2 + LIST_COST

    def fold(state: EvaluationState) -> tuple[Any, ...]:
        error: EvaluationError | None = None
        collected: list[Any] = []
        for _ in walk(state, range_, slots, turn):
            try:
                if condition is not None:
                    wanted = condition(state)
                    if wanted is False:
                        continue
                    if wanted is not True:
                        raise no_overload()
            except EvaluationError as raised:
                error = raised
                continue
            state.cost += step_cost
            try:
                value = transform(state)
            except EvaluationError as raised:
                error = error or raised
                continue
            state.spend_on(value)
            collected.append(value)
        state.cost += 1
        if error is not None:
            raise error
        return tuple(collected)

    return fold


def collect_map(
    range_: Run, slots: tuple[int, ...], condition: Run | None, transform: Run, *, turn: int, entries: bool
) -> Run:
    """`transformMap`, which keeps the keys, and `transformMapEntry` (`entries`), which creates a map from each pair."""

    def fold(state: EvaluationState) -> Map:
        error: EvaluationError | None = None
        collected: list[tuple[Any, Any]] = []
        keys: set[Any] = set()
        for _ in _pairs(state, range_, slots, turn):
            try:
                if condition is not None:
                    wanted = condition(state)
                    if wanted is False:
                        continue
                    if wanted is not True:
                        raise no_overload()
            except EvaluationError as raised:
                error = raised
                continue
            state.cost += 1
            if error is not None and not entries:
                continue  # inserting a key has three arguments, and stops at the first: the map that failed
            state.cost += 1 if entries else 2
            try:
                added = _entries(transform(state)) if entries else ((state.slots[slots[0]], transform(state)),)
                if error is None:
                    for key, each in added:
                        _insert(keys, key)
                        state.spend_on(each)
                        collected.append((key, each))
            except EvaluationError as raised:
                error = error or raised
        state.cost += 1
        if error is not None:
            raise error
        return Map(collected)

    return fold


def _entries(made: Any) -> Iterable[tuple[Any, Any]]:
    if type(made) is not Map:
        raise no_overload()
    return made.items()


def _insert(keys: set[Any], key: Any) -> None:
    """Refuse a key that the map under construction already has."""
    try:
        slot = (type(key), key)
        if slot in keys:
            raise EvaluationError(f"insert failed: key {key} already exists")
    except TypeError:
        raise EvaluationError("unsupported key type") from None
    keys.add(slot)
