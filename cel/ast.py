"""The syntax tree of an expression. Macros are expanded: a node is what is checked and evaluated.

Nodes are compared by identity, so the checker can keep what it finds out beside the tree. `position` is the offset in
characters where errors about the node point: the operator of an operation, the parenthesis of a call, else the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node. `height` counts the levels of the tree below and with this node."""

    position: int
    height: int = field(default=1, kw_only=True)

    @property
    def children(self) -> tuple[Node, ...]:
        """The nodes directly below."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Node):
    """A value written out: number, text, bytes, true, false, null."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Ident(Node):
    """A variable or the name of a type. `rooted` names begin with a dot and mean no local variable."""

    name: str
    rooted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Select(Node):
    """`operand.field`; with `test_only` it is `has(operand.field)`, with `optional` `operand.?field`."""

    operand: Node
    field_name: str
    test_only: bool = False
    optional: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        """The operand."""
        return (self.operand,)


@dataclass(frozen=True, slots=True, eq=False)
class Index(Node):
    """`operand[index]`; with `optional` `operand[?index]`."""

    operand: Node
    index: Node
    optional: bool = False

    @property
    def children(self) -> tuple[Node, ...]:
        """Operand and index."""
        return (self.operand, self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Call(Node):
    """A function or operator with its arguments. `target` is the receiver of `target.function(…)`."""

    function: str
    target: Node | None
    arguments: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """The receiver, then the arguments."""
        return self.arguments if self.target is None else (self.target, *self.arguments)


@dataclass(frozen=True, slots=True, eq=False)
class ListLiteral(Node):
    """`[a, ?b]`: elements, each with whether it is optional."""

    elements: tuple[Node, ...]
    optional: tuple[bool, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """The elements."""
        return self.elements


@dataclass(frozen=True, slots=True, eq=False)
class MapLiteral(Node):
    """`{k: v, ?k: v}`."""

    keys: tuple[Node, ...]
    values: tuple[Node, ...]
    optional: tuple[bool, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        """Keys and values in turn."""
        return tuple(node for pair in zip(self.keys, self.values, strict=True) for node in pair)


@dataclass(frozen=True, slots=True, eq=False)
class MessageLiteral(Node):
    """`Name{…}`. The environment knows no message types, so the checker refuses it; the fields are not kept."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bind(Node):
    """`cel.bind(name, value, body)`: the value is computed when `body` first asks for it, and at most once."""

    name: str
    value: Node
    body: Node

    @property
    def children(self) -> tuple[Node, ...]:
        """Value and body."""
        return (self.value, self.body)


@dataclass(frozen=True, slots=True, eq=False)
class Fold(Node):
    """A macro that walks a list or map.

    `kind` is "all", "exists", "exists_one", "list" (map, filter, transformList), "map" (transformMap) or "entries"
    (transformMapEntry). `names` are one or two loop variables: of one the element or the key, of two the index and the
    element or the key and the value. `condition` is the predicate or the filter, `transform` what is collected.
    """

    kind: str
    range: Node
    names: tuple[str, ...]
    condition: Node | None
    transform: Node | None

    @property
    def children(self) -> tuple[Node, ...]:
        """Range, condition and transform, as far as there are any."""
        return tuple(node for node in (self.range, self.condition, self.transform) if node is not None)


def walk(root: Node) -> Iterator[Node]:
    """The node and everything below it, parents first. Nodes that a macro uses twice come once."""
    waiting = [root]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting.extend(reversed(node.children))
