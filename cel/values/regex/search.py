"""Running a program over a text: all threads advance together, one character at a time, so nothing is tried twice.

At each character an instruction is entered at most once, so the steps are at most (characters + 1) × 2 × instructions.
"""

from __future__ import annotations

from typing import Final

from dracaena.cel.values.regex.characters import CharacterSet
from dracaena.cel.values.regex.program import Operation, Program

_Threads = list[tuple[int, int]]  # (instruction, where the match of this thread began), the preferred one first


class Search:
    """One text to be searched with one program. `steps` counts the instructions that were entered and tried."""

    def __init__(self, program: Program, text: str) -> None:
        self.program = program
        self.text = text
        self.steps = 0

    def matches(self) -> bool:
        """Whether the pattern matches anywhere in the text."""
        return self._run(0, any_match=True) is not None

    def find(self, start: int = 0) -> tuple[int, int] | None:
        """Where the leftmost match at or after `start` begins and ends; among those the one the pattern prefers.

        What comes before `start` still counts for `^` and `\\b`.
        """
        return self._run(start, any_match=False)

    def find_all(self, limit: int) -> list[str]:
        """The matches that do not overlap, from left to right; at most `limit` of them when it is not negative.

        An empty match right behind a match is left out.
        """
        found: list[str] = []
        at, previous_end = 0, -1
        while at <= len(self.text) and len(found) != limit:
            match = self.find(at)
            if match is None:
                break
            begin, end = match
            if end > begin or begin != previous_end:
                found.append(self.text[begin:end])
            at = end if end > at else at + 1
            previous_end = end
        return found

    def _run(self, start: int, *, any_match: bool) -> tuple[int, int] | None:
        entered = [-1] * len(self.program.instructions)  # at which character each instruction was entered last
        threads: _Threads = []
        found: tuple[int, int] | None = None
        for at in range(start, len(self.text) + 1):
            if found is None:
                self._enter(self.program.start, at, at, entered, threads)
            elif not threads:
                break
            found_here, threads = self._advance(threads, at, entered)
            if found_here is not None:
                found = (found_here, at)
                if any_match:
                    break
        return found

    def _enter(self, instruction: int, begin: int, at: int, entered: list[int], threads: _Threads) -> None:
        """Add the threads that stand before a character when `instruction` is reached without reading one."""
        instructions = self.program.instructions
        waiting = [instruction]
        while waiting:
            number = waiting.pop()
            if entered[number] == at:
                continue
            entered[number] = at
            self.steps += 1
            step = instructions[number]
            if step.operation is Operation.SPLIT:
                waiting.append(step.argument)  # type: ignore[arg-type]
                waiting.append(step.next)
            elif step.operation is Operation.ASSERT:
                if self._holds(step.argument, at):
                    waiting.append(step.next)
            else:
                threads.append((number, begin))

    def _advance(self, threads: _Threads, at: int, entered: list[int]) -> tuple[int | None, _Threads]:
        """Read the character at `at`: where the preferred match that ends before it began; the threads behind it."""
        instructions = self.program.instructions
        character = self.text[at : at + 1]
        following: _Threads = []
        for number, begin in threads:
            self.steps += 1
            step = instructions[number]
            if step.operation is Operation.MATCH:
                return begin, following  # less preferred threads end here
            if not character:
                continue
            argument = step.argument
            if character in argument if isinstance(argument, CharacterSet) else character == argument:
                self._enter(step.next, begin, at + 1, entered, following)
        return None, following

    def _holds(self, kind: object, at: int) -> bool:
        """Whether the assertion holds before the character at `at`."""
        if kind == "A":
            return at == 0
        if kind == "z":
            return at == len(self.text)
        before, after = self.text[max(0, at - 1) : at], self.text[at : at + 1]
        if kind == "^":
            return before in _LINE_END
        if kind == "$":
            return after in _LINE_END
        return ((before in _WORD) != (after in _WORD)) == (kind == "b")


_LINE_END: Final = frozenset(("", "\n"))
_WORD: Final = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz")
