"""The syntax tree of an expression, with macros expanded: its nodes are what is checked and evaluated.

Nodes are compared by identity, so the checker can keep its findings outside the tree. `position` is the offset in
characters to which errors about the node point: the operator of an operation, the parenthesis of a call, else the
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class SyntaxNode:
    """One node. `height` counts the levels of the tree from this node down, including it."""

    position: int
    height: int = field(default=1, kw_only=True)

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """The nodes directly below."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class Literal(SyntaxNode):
    """A literal value: number, text, bytes, true, false, null."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Ident(SyntaxNode):
    """A variable or the name of a type. `rooted` names begin with a dot and never mean a local variable."""

    name: str
    rooted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Select(SyntaxNode):
    """`operand.field`; with `test_only` it is `has(operand.field)`, with `optional` `operand.?field`."""

    operand: SyntaxNode
    field_name: str
    test_only: bool = False
    optional: bool = False

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """The operand."""
        return (self.operand,)


@dataclass(frozen=True, slots=True, eq=False)
class Index(SyntaxNode):
    """`operand[index]`; with `optional` `operand[?index]`."""

    operand: SyntaxNode
    index: SyntaxNode
    optional: bool = False

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """Operand and index."""
        return (self.operand, self.index)


@dataclass(frozen=True, slots=True, eq=False)
class Call(SyntaxNode):
    """A function or operator with its arguments. `target` is the receiver of `target.function(…)`."""

    function: str
    target: SyntaxNode | None
    arguments: tuple[SyntaxNode, ...]

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """The receiver, then the arguments."""
        return self.arguments if self.target is None else (self.target, *self.arguments)


@dataclass(frozen=True, slots=True, eq=False)
class ListLiteral(SyntaxNode):
    """`[a, ?b]`: elements, each with whether it is optional."""

    elements: tuple[SyntaxNode, ...]
    optional: tuple[bool, ...]

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """The elements."""
        return self.elements


@dataclass(frozen=True, slots=True, eq=False)
class MapLiteral(SyntaxNode):
    """`{k: v, ?k: v}`."""

    keys: tuple[SyntaxNode, ...]
    values: tuple[SyntaxNode, ...]
    optional: tuple[bool, ...]

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """Keys and values, alternating."""
        return tuple(node for pair in zip(self.keys, self.values, strict=True) for node in pair)


@dataclass(frozen=True, slots=True, eq=False)
class MessageLiteral(SyntaxNode):
    """`Name{…}`. The environment has no message types, so the checker refuses it; the fields are not kept."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bind(SyntaxNode):
    """`cel.bind(name, value, body)`: the value is computed when `body` first uses it, and at most once."""

    name: str
    value: SyntaxNode
    body: SyntaxNode

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """Value and body."""
        return (self.value, self.body)


@dataclass(frozen=True, slots=True, eq=False)
class Fold(SyntaxNode):
    """A macro that walks a list or map.

    `kind` is "all", "exists", "exists_one", "list" (map, filter, transformList), "map" (transformMap) or "entries"
    (transformMapEntry). `names` are one or two loop variables: one is the element or the key; two are the index and the
    element, or the key and the value. `condition` is the predicate or the filter, `transform` is what is collected.
    """

    kind: str
    range: SyntaxNode
    names: tuple[str, ...]
    condition: SyntaxNode | None
    transform: SyntaxNode | None

    @property
    def children(self) -> tuple[SyntaxNode, ...]:
        """Range, condition and transform, as far as the node has them."""
        return tuple(node for node in (self.range, self.condition, self.transform) if node is not None)


def walk(root: SyntaxNode) -> Iterator[SyntaxNode]:
    """The node and everything below it, parents first. Nodes that a macro uses twice come once."""
    waiting = [root]
    seen: set[SyntaxNode] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting.extend(reversed(node.children))
