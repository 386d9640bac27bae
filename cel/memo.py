"""Compiled selectors and their answers, remembered."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from dracaena.cel.device import DeviceView, LanguageFeatures
from dracaena.cel.errors import CompileError, DeviceDataError
from dracaena.cel.outcome import Failed, Outcome
from dracaena.cel.selector import Selector, compile_derived_attribute, compile_selector

# A cluster has about a hundred different selectors in its classes and claims.
MOST_SELECTORS: Final = 1_000
# Total characters of all of them. A compiled selector takes 35 bytes per character, a chain of sums 430, so they stay
# below 56 MB whatever they are, and there is room for 600 of usual length.
MOST_CHARACTERS: Final = 128 << 10
# Answers are per selector and kind of device. One takes about 300 bytes, and 4 KiB at the very most (all that a device
# may have in one domain), so they stay below 80 MiB whatever the devices are.
MOST_ANSWERS: Final = 20_000


class SelectorMemo:
    """Remembers by (expression, the parts of the device it can read), so that equal devices cost one evaluation.

    Memory is bounded: when it is full, it forgets everything and starts again. An expression that can read everything
    is evaluated each time. Threads may share one: at worst they compute an answer twice.
    """

    def __init__(
        self,
        features: LanguageFeatures | None = None,
        *,
        most_selectors: int = MOST_SELECTORS,
        most_answers: int = MOST_ANSWERS,
        most_characters: int = MOST_CHARACTERS,
        compiled: Callable[[str], None] = lambda expression: None,
    ) -> None:
        """`compiled` is called with each expression that was compiled and remembered; what it raises is raised here."""
        self._compiled = compiled
        self._features = features or LanguageFeatures()
        self._most_selectors = most_selectors
        self._most_answers = most_answers
        self._most_characters = most_characters
        self._characters = 0
        self._selectors: dict[tuple[str, bool], Selector | CompileError] = {}
        self._answers: dict[tuple[Selector, Hashable], Outcome] = {}

    def compile(self, expression: str, *, derived: bool = False) -> Selector:
        """The compiled selector, or derived attribute. An expression that does not compile is a CompileError, each
        time."""
        known = self._selectors.get((expression, derived))
        if known is None:
            compiler = compile_derived_attribute if derived else compile_selector
            try:
                known = compiler(expression, self._features)
            except CompileError as error:
                known = _short(error)
            self._make_room(len(expression))
            self._selectors[expression, derived] = known
            self._compiled(expression)
        if isinstance(known, CompileError):
            raise known.with_traceback(None) from None
        return known

    def evaluate(
        self, selector: Selector, device: DeviceView, charge: Callable[[int], None] = lambda units: None
    ) -> Outcome:
        """The selector's answer about the device, remembered from an equal one if there was any.

        `charge` is told in instalments what an evaluation takes, in steps of about a microsecond; what it raises is
        raised here. The last instalment comes once the answer is remembered.
        """
        if selector.footprint.everything:
            outcome, untold = selector.evaluate_charged(device, charge)
            charge(untold)
            return outcome
        try:
            device.values(selector.features)
        except DeviceDataError as error:
            return Failed(str(error))
        key = (selector, selector.footprint.key(device))
        known = self._answers.get(key)
        if known is None:
            known, untold = selector.evaluate_charged(device, charge)
            if len(self._answers) >= self._most_answers:
                self._answers.clear()
            self._answers[key] = known
            charge(untold)
        return known

    def _make_room(self, characters: int) -> None:
        if len(self._selectors) >= self._most_selectors or self._characters + characters > self._most_characters:
            self._selectors.clear()
            self._answers.clear()  # they would keep the selectors alive
            self._characters = 0
        self._characters += characters


def _short(error: CompileError) -> CompileError:
    """The error without its rendered lines, of which 20 of a long expression take 400 KB."""
    return CompileError(error.message[:_LONGEST_MESSAGE], error.position, error.line, error.column)


_LONGEST_MESSAGE: Final = 1_000  # characters; a message can quote a pattern or a type of 10 KiB
