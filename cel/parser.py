"""From tokens to the syntax tree: precedence climbing, macros expanded on the way.

How deep an expression may nest is bounded as in the reference: 250 levels of brackets or of operators in a chain.
`&&` and `||` chains of any length become balanced trees. The first syntax error ends parsing.
"""

from __future__ import annotations

from typing import Final, NoReturn

from dracaena.cel import macros
from dracaena.cel.ast import (
    Call,
    Ident,
    Index,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    Select,
    SyntaxNode,
)
from dracaena.cel.lexer import END, Token, float_value, int_value, string_value, tokens_of, uint_value
from dracaena.cel.source import Diagnostic, compile_error

# Levels of nesting. The reference has the same limit; three Python frames per level stay below the interpreter's 1,000.
NESTING_LIMIT: Final = 250
# Levels of the tree, whatever they are made of. The reference counts each kind of operator separately; this is slightly
# more than the 250 that a chain of one kind may have.
HEIGHT_LIMIT: Final = 255

RESERVED: Final = frozenset(
    (
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "namespace",
        "null",
        "package",
        "return",
        "true",
        "var",
        "void",
        "while",
    )
)

_PRECEDENCE: Final = {
    **dict.fromkeys(("||",), 1),
    **dict.fromkeys(("&&",), 2),
    **dict.fromkeys(("<", "<=", ">=", ">", "==", "!=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
_FUNCTIONS: Final = {operator: f"_{operator}_" for operator in _PRECEDENCE} | {"in": "@in"}
_NUMBERS: Final = frozenset({"int", "float"})

_WANTED: Final = {"ident": "an identifier", END: "an operator"}

# An item of a comma-separated list: whether it is optional, its key (maps only), its value.
_Item = tuple[bool, SyntaxNode | None, SyntaxNode]


def parse(text: str) -> SyntaxNode:
    """The syntax tree of an expression, or CompileError with the place of the first error."""
    parser = _Parser(text)
    root = parser.expression(0)
    parser.expect(END)
    return root


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._next = 0
        self._depth = 0

    # Tokens

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _accept(self, kind: str) -> Token | None:
        if self._tokens[self._next].kind == kind:
            return self._take()
        return None

    def expect(self, kind: str) -> Token:
        """The next token, which must be of this kind."""
        token = self._tokens[self._next]
        if token.kind != kind:
            self._unexpected(
                token, "an identifier" if kind == "ident" else f"'{kind}'" if kind != END else "an operator"
            )
        return self._take()

    def _unexpected(self, token: Token, wanted: str) -> NoReturn:
        seen = f"'{token.text}'" if token.kind != END else "end of expression"
        self._fail(token.position, f"Syntax error: unexpected {seen}, expecting {wanted}")

    def _fail(self, position: int, message: str) -> NoReturn:
        raise compile_error(self._text, [Diagnostic(position, message)])

    # Nodes

    def _bounded(self, node: SyntaxNode) -> SyntaxNode:
        if node.height > HEIGHT_LIMIT:
            self._fail(node.position, "max recursion depth exceeded")
        return node

    def _call(
        self, position: int, function: str, target: SyntaxNode | None, arguments: tuple[SyntaxNode, ...]
    ) -> SyntaxNode:
        """A call, or what its macro expands to."""
        try:
            expanded = macros.expand(position, function, target, arguments)
        except macros.MacroError as error:
            self._fail(error.position, error.message)
        if expanded is None:
            operands = arguments if target is None else (target, *arguments)
            expanded = Call(position, function, target, arguments, height=1 + macros.height(*operands))
        return self._bounded(expanded)

    # Grammar

    def expression(self, weakest: int) -> SyntaxNode:
        """Operands joined by operators of at least this precedence; 0 also allows the conditional."""
        self._depth += 1
        if self._depth > NESTING_LIMIT:
            self._fail(self._tokens[self._next].position, f"expression recursion limit exceeded: {NESTING_LIMIT}")
        left = self._operand()
        while True:
            token = self._tokens[self._next]
            strength = _PRECEDENCE.get(token.kind, 0)
            if strength == 0 or strength < weakest:
                break
            if strength <= 2:
                left = self._logical(token.kind, left, strength)
                continue
            self._take()
            right = self.expression(strength + 1)
            left = self._call(token.position, _FUNCTIONS[token.kind], None, (left, right))
        if weakest == 0 and (question := self._accept("?")):
            chosen = self.expression(1)
            self.expect(":")
            left = self._call(question.position, "_?_:_", None, (left, chosen, self.expression(0)))
        self._depth -= 1
        return left

    def _logical(self, operator: str, first: SyntaxNode, strength: int) -> SyntaxNode:
        """A chain of one logical operator as a balanced tree, so that its length costs no depth."""
        terms, positions = [first], []
        while token := self._accept(operator):
            positions.append(token.position)
            terms.append(self.expression(strength + 1))
        return self._balanced(_FUNCTIONS[operator], terms, positions, 0, len(positions) - 1)

    def _balanced(
        self, function: str, terms: list[SyntaxNode], positions: list[int], low: int, high: int
    ) -> SyntaxNode:
        middle = (low + high + 1) // 2
        left = terms[middle] if middle == low else self._balanced(function, terms, positions, low, middle - 1)
        right = terms[middle + 1] if middle == high else self._balanced(function, terms, positions, middle + 1, high)
        return self._call(positions[middle], function, None, (left, right))

    def _operand(self) -> SyntaxNode:
        """An operand with its prefixes (`!`, `-`) and suffixes (`.field`, `.call()`, `[index]`)."""
        prefixes = self._prefixes()
        token = self._take()
        node: SyntaxNode
        if token.kind == "(":
            node = self.expression(0)
            self.expect(")")
        elif token.kind == "[":
            node = self._list(token, self._sequence("]"))
        elif token.kind == "{":
            node = self._map(token, self._sequence("}"))
        elif token.kind in ("ident", "."):
            name, rooted = self._name(token)
            if opening := self._accept("("):
                arguments = tuple(item[2] for item in self._sequence(")"))
                node = self._call(opening.position, name, None, arguments)
            elif self._is_message():
                node = self._message(name)
            else:
                node = Ident(token.position, name, rooted)
        else:
            node = self._literal(token)
        while (suffix := self._tokens[self._next]).kind in (".", "["):
            self._take()
            optional = self._accept("?") is not None
            if suffix.kind == "[":
                index = self.expression(0)
                self.expect("]")
                node = Index(suffix.position, node, index, optional, height=1 + macros.height(node, index))
            else:
                field = self._field()
                if not optional and (opening := self._accept("(")):
                    arguments = tuple(item[2] for item in self._sequence(")"))
                    node = self._call(opening.position, field, node, arguments)
                else:
                    node = Select(suffix.position, node, field, optional=optional, height=1 + node.height)
            self._bounded(node)
        return self._prefixed(prefixes, node)

    def _prefixes(self) -> list[Token]:
        """The signs before an operand: all `!` or all `-`. A single `-` before a number belongs to the number."""
        first = self._tokens[self._next]
        prefixes: list[Token] = []
        if first.kind not in ("!", "-"):
            return prefixes
        while token := self._accept(first.kind):
            prefixes.append(token)
        number_follows = self._tokens[self._next].kind in _NUMBERS
        if first.kind == "-" and len(prefixes) == 1 and number_follows:
            self._next -= 1
            return []
        return prefixes

    def _prefixed(self, prefixes: list[Token], node: SyntaxNode) -> SyntaxNode:
        if len(prefixes) % 2 == 0:
            return node
        function = "!_" if prefixes[0].kind == "!" else "-_"
        return self._call(prefixes[0].position, function, None, (node,))

    def _sequence(self, closing: str) -> list[_Item]:
        """Items between brackets, with their comma and the closing bracket. Lists and maps may end with a comma."""
        items: list[_Item] = []
        optional_allowed = closing != ")"
        while not self._accept(closing):
            if items:
                self.expect(",")
            elif optional_allowed and self._accept(","):
                self.expect(closing)
                break
            if items and optional_allowed and self._accept(closing):
                break
            optional = optional_allowed and self._accept("?") is not None
            value = self.expression(0)
            key = None
            if closing == "}":
                self.expect(":")
                key, value = value, self.expression(0)
            items.append((optional, key, value))
        return items

    def _list(self, opening: Token, items: list[_Item]) -> SyntaxNode:
        elements = tuple(item[2] for item in items)
        optional = tuple(item[0] for item in items)
        return self._bounded(ListLiteral(opening.position, elements, optional, height=1 + macros.height(*elements)))

    def _map(self, opening: Token, items: list[_Item]) -> SyntaxNode:
        keys = tuple(item[1] for item in items if item[1] is not None)
        values = tuple(item[2] for item in items)
        optional = tuple(item[0] for item in items)
        height = 1 + macros.height(*keys, *values)
        return self._bounded(MapLiteral(opening.position, keys, values, optional, height=height))

    def _name(self, token: Token) -> tuple[str, bool]:
        rooted = token.kind == "."
        if rooted:
            token = self.expect("ident")
        if token.text in RESERVED:
            self._fail(token.position, f"reserved identifier: {token.text}")
        return token.text, rooted

    def _field(self) -> str:
        token = self._tokens[self._next]
        if token.kind == "quoted":
            self._fail(token.position, "unsupported syntax: '`'")
        return self.expect("ident").text

    def _is_message(self) -> bool:
        """Whether `{` follows, possibly after more parts of a dotted name."""
        ahead = self._next
        while self._tokens[ahead].kind == "." and self._tokens[ahead + 1].kind == "ident":
            ahead += 2
        return self._tokens[ahead].kind == "{"

    def _message(self, name: str) -> SyntaxNode:
        while self._accept("."):
            name += f".{self.expect('ident').text}"
        opening = self.expect("{")
        first = True
        while not self._accept("}"):
            if not first:
                self.expect(",")
                if self._accept("}"):
                    break
            first = False
            self._accept("?")
            self._field()
            self.expect(":")
            self.expression(0)
        return MessageLiteral(opening.position, name)

    def _literal(self, token: Token) -> SyntaxNode:
        if token.kind == "-":
            number = self._take()
            return self._number(Token(number.kind, f"-{number.text}", token.position))
        if token.kind in ("int", "uint", "float"):
            return self._number(token)
        if token.kind == "string":
            value = string_value(token.text)
            if value is None:
                self._fail(token.position, "invalid escape in a string or bytes literal")
            return Literal(token.position, value)
        constants = {"true": True, "false": False, "null": None}
        if token.kind not in constants:
            self._unexpected(token, "an operand")
        return Literal(token.position, constants[token.kind])

    def _number(self, token: Token) -> SyntaxNode:
        names = {"int": "int", "uint": "uint", "float": "double"}
        readers = {"int": int_value, "uint": uint_value, "float": float_value}
        value = readers[token.kind](token.text)
        if value is None:
            self._fail(token.position, f"invalid {names[token.kind]} literal")
        return Literal(token.position, value)
