"""From the checked tree to closures: everything that does not depend on the device is decided here, once.

As in the reference, literals and conversions of literals are computed now, and a failure is a compile error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dracaena.cel import calls, folds, operators, paths
from dracaena.cel.ast import (
    Bind,
    Call,
    Fold,
    Ident,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
)
from dracaena.cel.checker import Checked, ResolvedCall
from dracaena.cel.cost import LIST_COST, MAP_COST, NODE_WORK, tree_size
from dracaena.cel.device import DeviceValues
from dracaena.cel.environment import DEVICE
from dracaena.cel.errors import CompileError, CostLimitError, EvaluationError
from dracaena.cel.source import Diagnostic, compile_error
from dracaena.cel.state import UNSET, EvaluationState, Raised, Run
from dracaena.cel.types import DYN, Type
from dracaena.cel.value import Map, OptionalValue, UInt
from dracaena.cel.values.regex import matching

_CONVERSIONS: Final = frozenset(
    ("bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint")
)
_PATTERNS: Final = frozenset(("matches", "find", "findAll"))
# Values that may be literal keys, and that a set can hold: `in` a list of these is a look-up.
_SIMPLE_TYPES: Final = frozenset((str, int, UInt, float, bool))


@dataclass(frozen=True, slots=True)
class Planned:
    """How a node is evaluated. `resolve` omits the 1 that a path costs: a branch of `? :` does not pay it."""

    run: Run
    resolve: Run
    constant: bool = False
    value: Any = None


def _plain(run: Run) -> Planned:
    return Planned(run, run)


def _constant(value: Any) -> Planned:
    def give(_state: EvaluationState) -> Any:
        return value

    return Planned(give, give, constant=True, value=value)


@dataclass(frozen=True, slots=True)
class SelectorProgram:
    """A selector ready to run on a State with this many slots for variables."""

    run: Run
    slots: int


def plan(root: SyntaxNode, checked: Checked, text: str, *, strict_optionals: bool = False) -> SelectorProgram:
    """The program of a checked tree. A literal whose conversion fails is a CompileError."""
    planner = _Planner(checked, text, strict_optionals=strict_optionals)
    planned = planner.plan(root)
    return SelectorProgram(planned.run, planner.slots)


class _Planner:
    def __init__(self, checked: Checked, text: str, *, strict_optionals: bool) -> None:
        self.slots = 0
        self._checked = checked
        self._text = text
        self._strict_optionals = strict_optionals
        self._planned: dict[SyntaxNode, Planned] = {}
        self._locals: list[tuple[str, Planned]] = []
        self._folding = EvaluationState(_NO_DEVICE, 0, _FOLDING_LIMIT, work=_FOLDING_LIMIT)
        self._plans: dict[type[SyntaxNode], Callable[[Any], Planned]] = {
            Literal: self._literal,
            Ident: self._ident,
            Select: self._path,
            Index: self._path,
            Call: self._call,
            ListLiteral: self._list,
            MapLiteral: self._map,
            Bind: self._bind,
            Fold: self._fold,
        }
        self._operators: dict[str, Callable[[Call], Planned]] = {
            "_&&_": self._logical,
            "_||_": self._logical,
            "_?_:_": self._conditional,
            "_==_": self._equality,
            "_!=_": self._equality,
            "@in": self._in,
        }

    def plan(self, node: SyntaxNode) -> Planned:
        """How the node is evaluated. A node that a macro uses twice is planned once."""
        known = self._planned.get(node)
        if known is None:
            type_value = self._checked.type_values.get(node)
            known = self._form(node)(node) if type_value is None else _constant(type_value)
            self._planned[node] = known
        return known

    def _form(self, node: SyntaxNode) -> Callable[[Any], Planned]:
        if isinstance(node, Call) and node.function in self._operators:
            return self._operators[node.function]
        return self._plans[type(node)]

    def _static(self, node: SyntaxNode) -> Type:
        """The type that values of the node certainly have, or dyn."""
        return DYN if self._checked.guesses else self._checked.type_of(node)

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _failing_literal(self, node: SyntaxNode, error: EvaluationError) -> CompileError:
        return compile_error(self._text, [Diagnostic(node.position, f"program instantiation failed: {error.message}")])

    # Literals

    def _literal(self, node: Literal) -> Planned:
        return _constant(node.value)

    def _list(self, node: ListLiteral) -> Planned:
        elements = list(map(self.plan, node.elements))
        if all(element.constant for element in elements):
            return _constant(tuple(element.value for element in elements))
        if any(node.optional):
            return _plain(_list_with_optionals([element.run for element in elements], node.optional))
        return _plain(_list_of([element.run for element in elements]))

    def _map(self, node: MapLiteral) -> Planned:
        keys = list(map(self.plan, node.keys))
        values = list(map(self.plan, node.values))
        if all(each.constant for each in (*keys, *values)):
            try:
                return _constant(Map(zip((key.value for key in keys), (value.value for value in values), strict=True)))
            except EvaluationError as error:
                raise self._failing_literal(node, error) from None
        return _plain(_map_of([key.run for key in keys], [value.run for value in values], node.optional))

    # Names and paths

    def _ident(self, node: Ident) -> Planned:
        if not node.rooted:
            for name, planned in reversed(self._locals):
                if name == node.name:
                    return planned
        return _path_planned(_whole_device, ())

    def _path(self, node: Select | Index) -> Planned:
        steps: list[paths.Step] = []
        below: SyntaxNode = node
        while isinstance(below, Select | Index) and below not in self._checked.type_values:
            steps.append(self._step(below))
            below = below.operand
        steps.reverse()
        fast = self._device_attribute(below, steps)
        if fast is not None:
            return fast
        root = self.plan(below)
        if isinstance(below, Call) and below.function == "_?_:_":
            return _plain(paths.path(root.run, 0, tuple(steps)))
        if steps[-1].tests:
            return _plain(paths.path(root.resolve, 0, tuple(steps)))
        return _path_planned(root.resolve, tuple(steps))

    def _step(self, node: Select | Index) -> paths.Step:
        if isinstance(node, Select):
            return paths.Step(node.field_name, optional=node.optional, tests=node.test_only)
        index = self.plan(node.index)
        if index.constant:
            if type(index.value) not in _SIMPLE_TYPES:
                raise self._failing_literal(node.index, EvaluationError("invalid qualifier type"))
            return paths.Step(index.value, optional=node.optional)
        return paths.Step(key=index.resolve, optional=node.optional)

    def _device_attribute(self, root: SyntaxNode, steps: list[paths.Step]) -> Planned | None:
        """The fast form of `device.driver`, `device.attributes["domain"].name` and the same for capacity."""
        if not isinstance(root, Ident) or self._checked.type_of(root) != DEVICE or self._is_local(root):
            return None
        if any(step.key is not None or step.optional or step.tests for step in steps):
            return None
        keys = [step.constant for step in steps]
        if keys == ["driver"]:
            return Planned(_driver, _resolved(_driver))
        if len(keys) == 3 and keys[0] in ("attributes", "capacity") and all(type(key) is str for key in keys):
            run = paths.attribute(keys[1], keys[2], capacity=keys[0] == "capacity")
            return Planned(run, _resolved(run))
        return None

    def _is_local(self, node: Ident) -> bool:
        return not node.rooted and any(name == node.name for name, _ in self._locals)

    # Calls

    def _call(self, node: Call) -> Planned:
        resolved = self._checked.calls[node]
        nodes = node.arguments if node.target is None or resolved.namespaced else (node.target, *node.arguments)
        arguments = tuple(map(self.plan, nodes))
        if node.function in ("or", "orValue") and len(arguments) == 2:
            unwraps = node.function == "orValue"
            optional, otherwise = (argument.run for argument in arguments)
            return _plain(operators.optional_or(optional, otherwise, unwraps=unwraps, strict=self._strict_optionals))
        static = tuple(map(self._static, nodes))
        pattern = arguments[1] if node.function in _PATTERNS and len(arguments) == 2 else None
        known_pattern = pattern is not None and pattern.constant
        run = calls.call(resolved, tuple(argument.run for argument in arguments), static, stops=known_pattern)
        if node.function in _CONVERSIONS and len(arguments) == 1 and arguments[0].constant:
            return self._converted(node, resolved, arguments[0].value)
        if pattern is not None and pattern.constant:
            self._check_pattern(node, pattern.value)
        if arguments and all(argument.constant for argument in arguments):
            run = self._computed_once(run)
        return _plain(run)

    def _converted(self, node: SyntaxNode, resolved: ResolvedCall, value: Any) -> Planned:
        try:
            for overload in resolved.overloads:
                if all(map(calls.accepts, overload.parameters, (value,))):
                    return _constant(overload.call(value))
            raise folds.no_overload()
        except EvaluationError as error:
            raise self._failing_literal(node, error) from None

    def _check_pattern(self, node: SyntaxNode, pattern: Any) -> None:
        if isinstance(pattern, str):
            try:
                matching.check(pattern)
            except EvaluationError as error:
                raise self._failing_literal(node, error) from None

    def _computed_once(self, run: Run) -> Run:
        """A call with literal arguments, such as `quantity("40Gi")`: made now, but paid for each time.

        If it fails, it fails at evaluation; if its result is large, it is called each time, because selectors are
        kept for long. So are all calls once the planner's own budget is used up.
        """
        before = self._folding.cost
        try:
            self._folding.check_limit()
            self._folding.spend(1)
            value = run(self._folding)
        except (EvaluationError, CostLimitError):
            return run
        if tree_size(value, _LARGEST_KEPT) > _LARGEST_KEPT:
            return run
        cost = self._folding.cost - before

        def give(state: EvaluationState) -> Any:
            state.cost += cost
            return value

        return give

    def _logical(self, node: Call) -> Planned:
        """A chain of one operator is one loop over its terms, in their order."""
        terms: list[Run] = []
        waiting: list[SyntaxNode] = [node]
        while waiting:
            term = waiting.pop()
            if isinstance(term, Call) and term.function == node.function:
                waiting.extend(reversed(term.arguments))
            else:
                terms.append(self.plan(term).run)
        return _plain(operators.logical(tuple(terms), decisive=node.function == "_||_"))

    def _conditional(self, node: Call) -> Planned:
        condition, chosen, otherwise = map(self.plan, node.arguments)
        return _plain(operators.conditional(condition.run, chosen.resolve, otherwise.resolve))

    def _equality(self, node: Call) -> Planned:
        left, right = map(self.plan, node.arguments)
        negated = node.function == "_!=_"
        if right.constant and type(right.value) in (str, int, bool):
            return _plain(operators.equals_constant(left.run, right.value, negated=negated))
        return _plain(operators.equals(left.run, right.run, negated=negated))

    def _in(self, node: Call) -> Planned:
        resolved = self._checked.calls[node]
        element, elements = map(self.plan, node.arguments)
        in_list = len(resolved.overloads) == 1 and resolved.overloads[0].id == "in_list"
        if in_list and elements.constant and type(elements.value) is tuple:
            if not elements.value:
                return _constant(value=False)
            if all(type(each) in _SIMPLE_TYPES for each in elements.value):
                return _plain(operators.among(element.run, elements.value))
        static = tuple(map(self._static, node.arguments))
        return _plain(calls.call(resolved, (element.run, elements.run), static))

    # Variables

    def _bind(self, node: Bind) -> Planned:
        slot = self._slot()
        value = self.plan(node.value)
        self._locals.append((node.name, _path_planned(_bound(slot, value.run), ())))
        body = self.plan(node.body)
        self._locals.pop()
        return _plain(_binding(slot, body.run))

    def _fold(self, node: Fold) -> Planned:
        range_ = self.plan(node.range).run
        slots = tuple(self._slot() for _ in node.names)
        self._locals.extend(
            (name, _path_planned(_variable(slot), ())) for name, slot in zip(node.names, slots, strict=True)
        )
        condition = None if node.condition is None else self.plan(node.condition).run
        transform = None if node.transform is None else self.plan(node.transform)
        del self._locals[len(self._locals) - len(slots) :]
        turn = _turn(node)
        if transform is not None and node.kind == "list":
            constant = transform.constant
            return _plain(folds.collect_list(range_, slots, condition, transform.run, turn=turn, constant=constant))
        if transform is not None:
            entries = node.kind == "entries"
            return _plain(folds.collect_map(range_, slots, condition, transform.run, turn=turn, entries=entries))
        assert condition is not None
        if node.kind == "exists_one":
            return _plain(folds.exists_one(range_, slots, condition, turn=turn))
        return _plain(folds.quantifier(range_, slots, condition, turn=turn, decisive=node.kind == "exists"))


def _turn(fold: Fold) -> int:
    """The work of one turn of a loop: its nodes, without those within loops of their own, which pay for themselves."""
    seen: set[SyntaxNode] = set()
    waiting = [part for part in (fold.condition, fold.transform) if part is not None]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend((node.range,) if isinstance(node, Fold) else node.children)
    return NODE_WORK * len(seen)


# Cost and work of all calls with literals that are made while one selector is planned, 10 ms at most. A call in a
# sensible selector takes less than 100.
_FOLDING_LIMIT: Final = 50_000
# Values; a list of this many takes some 10 KiB, like the rest of a selector.
_LARGEST_KEPT: Final = 1_000

_NO_DEVICE: Final = DeviceValues("", {}, {}, allow_multiple_allocations=False)


def _path_planned(root: Run, steps: tuple[paths.Step, ...]) -> Planned:
    """A path that costs 1 and its steps, and the same without the 1."""
    if steps:
        return Planned(paths.path(root, 1, steps), paths.path(root, 0, steps))

    def run(state: EvaluationState) -> Any:
        state.cost += 1
        return root(state)

    return Planned(run, root)


def _resolved(run: Run) -> Run:
    def resolve(state: EvaluationState) -> Any:
        state.cost -= 1
        return run(state)

    return resolve


def _whole_device(state: EvaluationState) -> Map:
    return state.values.as_map()


def _driver(state: EvaluationState) -> str:
    state.cost += 2
    return state.driver


def _variable(slot: int) -> Run:
    return lambda state: state.slots[slot]


def _bound(slot: int, value: Run) -> Run:
    """A variable of cel.bind: computed at its first use and then kept, even if it is an error."""

    def read(state: EvaluationState) -> Any:
        found = state.slots[slot]
        if found is UNSET:
            try:
                found = value(state)
            except EvaluationError as error:
                found = Raised(error)
            state.slots[slot] = found
        if type(found) is Raised:
            raise found.error
        return found

    return read


_BINDING_WORK: Final = 8 * NODE_WORK  # the nodes of an optMap


def _binding(slot: int, body: Run) -> Run:
    """Each optMap evaluates its receiver twice, so a chain of them doubles: the checks here end it at the limits."""

    def bind(state: EvaluationState) -> Any:
        state.slots[slot] = UNSET
        state.check_limit()
        state.spend(_BINDING_WORK)
        return body(state)

    return bind


def _list_of(elements: list[Run]) -> Run:
    def make(state: EvaluationState) -> tuple[Any, ...]:
        state.cost += LIST_COST
        made = tuple([element(state) for element in elements])
        state.spend_on(made)
        return made

    return make


def _list_with_optionals(elements: list[Run], optional: tuple[bool, ...]) -> Run:
    def make(state: EvaluationState) -> tuple[Any, ...]:
        state.cost += LIST_COST
        made: list[Any] = []
        for element, is_optional in zip(elements, optional, strict=True):
            value = element(state)
            if not is_optional:
                made.append(value)
            elif type(value) is not OptionalValue:
                raise EvaluationError("cannot initialize optional list element from non-optional value")
            elif value.has_value:
                made.append(value.value)
        state.spend_on(tuple(made))
        return tuple(made)

    return make


def _map_of(keys: list[Run], values: list[Run], optional: tuple[bool, ...]) -> Run:
    def make(state: EvaluationState) -> Map:
        state.cost += MAP_COST
        made: list[tuple[Any, Any]] = []
        for key_run, value_run, is_optional in zip(keys, values, optional, strict=True):
            key, value = key_run(state), value_run(state)
            if not is_optional:
                made.append((key, value))
            elif type(value) is not OptionalValue:
                raise EvaluationError("cannot initialize optional entry from non-optional value")
            elif value.has_value:
                made.append((key, value.value))
        result = Map(made)
        state.spend_on(result)
        return result

    return make
