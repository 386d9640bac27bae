"""From the tree of a pattern to the instructions of a nondeterministic automaton (Thompson 1968, Pike's machine).

Literature: K. Thompson, "Regular Expression Search Algorithm", CACM 11(6), 1968; R. Cox, "Regular Expression Matching:
the Virtual Machine Approach", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from dracaena.cel.values.regex.characters import CharacterSet
from dracaena.cel.values.regex.syntax import (
    Alternation,
    Assertion,
    Class,
    Concatenation,
    Literal,
    Node,
    RegexError,
    Repetition,
    parse,
)

# Instructions of one pattern. RE2 allows 3.3 million; 20,000 hold any pattern that a person writes (a DNS name takes
# 150), and keep the 32 programs that are remembered below 64 MB.
MAX_SIZE: Final = 20_000
_REMEMBERED: Final = 32


class Operation(Enum):
    """What an instruction does."""

    MATCH = "match"
    CHARACTER = "character"  # argument: the one character
    SET = "set"  # argument: a CharacterSet
    SPLIT = "split"  # argument: the instruction of the second choice
    ASSERT = "assert"  # argument: the kind of the Assertion


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step; `next` is the instruction that follows (for SPLIT the preferred one)."""

    operation: Operation
    next: int
    argument: str | CharacterSet | int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """The instructions of a pattern and where it begins."""

    instructions: tuple[Instruction, ...]
    start: int


@lru_cache(maxsize=_REMEMBERED)
def compile_pattern(pattern: str) -> Program:
    """The program of a pattern. Raises RegexError for what RE2 refuses, and above MAX_SIZE instructions."""
    tree = parse(pattern)
    if tree.size > MAX_SIZE:
        raise RegexError("expression too large", pattern)
    code = _Code()
    match = code.add(Operation.MATCH, 0)
    start = code.emit(tree, match)
    return Program(tuple(code.instructions), start)


class _Code:
    """Emits backwards: each node is told where to go on, so only loops are written twice."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def add(self, operation: Operation, then: int, argument: str | CharacterSet | int = 0) -> int:
        self.instructions.append(Instruction(operation, then, argument))
        return len(self.instructions) - 1

    def emit(self, node: Node, then: int) -> int:
        """Add the node, which goes on at `then`; return where it begins."""
        match node:
            case Literal():
                return self.add(Operation.CHARACTER, then, node.character)
            case Class():
                return self.add(Operation.SET, then, node.set)
            case Assertion():
                return self.add(Operation.ASSERT, then, node.kind)
            case Concatenation():
                for part in reversed(node.parts):
                    then = self.emit(part, then)
                return then
            case Alternation():
                start = self.emit(node.parts[-1], then)
                for part in reversed(node.parts[:-1]):
                    start = self.add(Operation.SPLIT, self.emit(part, then), start)
                return start
            case Repetition():
                return self._repetition(node, then)
        raise TypeError(type(node).__name__)

    def _repetition(self, node: Repetition, then: int) -> int:
        start, copies = then, node.low
        if node.high is None:
            choice = self.add(Operation.MATCH, 0)  # holds the place: the part before it must know where to come back to
            start = self.emit(node.part, choice)
            self.instructions[choice] = _split(start, then, greedy=node.greedy)
            if node.low == 0:
                # A part that can match nothing comes before the choice, or the order of preference would be wrong.
                return self._choice(node, start, then) if node.part.nullable else choice
            copies -= 1
        else:
            for _ in range(node.high - node.low):
                start = self._choice(node, self.emit(node.part, start), then)
        for _ in range(copies):
            start = self.emit(node.part, start)
        return start

    def _choice(self, node: Repetition, part: int, then: int) -> int:
        self.instructions.append(_split(part, then, greedy=node.greedy))
        return len(self.instructions) - 1


def _split(part: int, then: int, *, greedy: bool) -> Instruction:
    return Instruction(Operation.SPLIT, part, then) if greedy else Instruction(Operation.SPLIT, then, part)
