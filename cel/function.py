"""How a function of CEL is declared: the contract for authors of a library.

A library is a module in `cel/library/` with one constant `FUNCTIONS: tuple[Function, ...]`; `cel/library/__init__.py`
joins them to `LIBRARIES: tuple[Function, ...]`. Two `Function`s of one name (say `indexOf` of strings and of lists) are
merged by the environment: their overloads are tried in the order of the libraries. Names may hold dots
(`sets.contains`, `ip.isCanonical`): a namespaced function is global, and its first dotted part is not a receiver.

Values (see `cel/value.py`):

    int       int (never bool), always within int64       list       tuple
    uint      UInt (subclass of int), within uint64        map        Map (immutable; 1, 1u and true are three keys)
    double    float                                        null       None
    bool      bool                                         optional   OptionalValue
    string    str (no lone surrogates)                     timestamp  Timestamp (exact nanoseconds)
    bytes     bytes                                        duration   Duration (exact nanoseconds)
    type      TypeValue                                    opaque     an `Opaque` of `cel/values/`

An implementation is a plain callable over values, without state and without side effects. It is called only with values
of its declared parameter types: the receiver first, then the arguments; `dyn` and type parameters may be anything. Of a
list or map only the outer type is guaranteed if the checker could not know the elements (`list_of(STRING)` may contain
an int that came from `dyn`), so check elements that you rely on. It returns a value of the result type or raises
EvaluationError(message), and no other exception. Results of int arithmetic go through `checked_int`.
Compare values with `value.equal`, never with `==`: in Python True == 1.

Macros are not functions: the parser expands `sortBy` to `@sortByAssociatedKeys(list, keys)`, receiver style, and
`cel.bind`, `all`, `map`, `optMap`, … are core. Operators, `size`, `contains`, `startsWith`, `endsWith`, conversions,
time and `matches` are core too (patterns: `cel/values/regex/matching.py`).

Costs. The reference charges by function name or by overload:
* `Function.cost`: used for every call of that name (the table of Kubernetes' estimator). None: not in that table.
* `Overload.cost`: used when the function has no cost and the checker settled on this one overload.
* else 1. A cost is an int, or a callable `(args, result) -> int` that is called afterwards; `size_of` and
  `traversal_cost` of `cel/cost.py` give the sizes.

Safety. The cost of the reference says nothing about memory, and is 1 for some functions that take long. `Overload.work`
is an upper bound of what a call builds or walks (characters, bytes, list elements, comparisons), computed *before* the
call from the same arguments and taken from the evaluation's work budget (`WORK_LIMIT`). Set it whenever the result can
be larger than all arguments together (replace, join, format, flatten, range), or the time is more than linear in them
(distinct, sets.*, min of lists in lists). Linear functions need none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dracaena.cel.types import Type

CostFunction = Callable[[tuple[Any, ...], Any], int]


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function with its implementation.

    `id` is the overload's name in the reference, such as "quantity_add_int". `parameters` begin with the receiver when
    `member` is true (`q.add(1)`).
    """

    id: str
    parameters: tuple[Type, ...]
    result: Type
    call: Callable[..., Any]
    member: bool = False
    cost: int | CostFunction | None = None
    work: Callable[..., int] | None = None
    generic: bool = field(init=False, default=False)
    """Whether its types have type parameters; derived from them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "generic", any(each.is_open for each in (self.result, *self.parameters)))


@dataclass(frozen=True, slots=True)
class Function:
    """A name with its overloads, tried in this order; they differ in the number or the types of their parameters."""

    name: str
    overloads: tuple[Overload, ...]
    cost: int | CostFunction | None = None


def member(id_: str, parameters: tuple[Type, ...], result: Type, call: Callable[..., Any], **more: Any) -> Overload:
    """An overload that is called on its first parameter: `receiver.name(…)`."""
    return Overload(id_, parameters, result, call, member=True, **more)


def global_(id_: str, parameters: tuple[Type, ...], result: Type, call: Callable[..., Any], **more: Any) -> Overload:
    """An overload that is called by its name: `name(…)`."""
    return Overload(id_, parameters, result, call, **more)
