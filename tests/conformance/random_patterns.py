"""Random patterns and texts from a seed: grammar of all that Go's syntax knows, damaged now and then."""

from __future__ import annotations

import random
from typing import Final

# Letters with three cases (k, s, σ), without a partner, above the first plane, unassigned; white space of all kinds.
_CHARACTERS: Final = "abcABC019_-.,:/ \nkKsSéÉß\u017f\u212a\u1e9eσςΣ漢\U0001f600\u0378\u0663\u0301ǅ\x00\x7f\t\r\v\x85ﬀİ"

_ATOM_TEXT: Final = r"""
    a b c A B C k 0 1 _ - é ſ 漢 😀 . . ^ $ \b \B \A \z \d \D \w \W \s \S \. \n \t \- \_ \x41 \x{212A} \101 \07 \0
    \pL \PL \pN \pC \PC \p{Lu} \P{Lu} \p{^Ll} \p{Greek} \p{Han} \p{Latin} \P{Latin} \p{Letter} \p{lower_case-letter}
    \p{Any} \p{ASCII} \P{ascii} \p{Assigned} \p{Cn} \p{LC} \P{LC} \p{Nd} \p{Zs} \p{Common} \Qa.b\E \Q[\E
    () (?:) { } ] a{ a{,2} a{1 - ,
"""
_WRONG_TEXT: Final = r"""
    \C \1 \8 \y \Z \G \E \xg \x{110000} \x{} \p{Nope} \pX \p{Old_Italic} \p{ \x \ (?=a) (?!a) (?<=a) (?>a) (?P=n)
    (?P<n-x>a) (?P<é>a) (?<n (?#c) (? (?i (?-) (?z) (?i-) [[:foo:]] [z-a] [ [] [a ( ) * + ? ** a{1001} a{2,1} a{1,1001}
    a{00} \é \p{^} [\b] [a-\d] a{100}{100} (?P<n>a)(?P<n>b) [[:alpha: (?P>a) (?'n'a) (?i: (?:a (?-:a) (?x)a (?s-m)a
"""
_REPETITION_TEXT: Final = "* + ? *? +? ?? {2} {0} {1,3} {0,2}? {2,} {0,} {,3} {1} {0,1} {3}? {40} {7,11}"
_FLAG_TEXT: Final = "(?i) (?m) (?s) (?U) (?-i) (?im-s) (?ims) (?) (?-U) (?i-U)"
_OPENING_TEXT: Final = "( (?: (?i: (?s-i: (?P<n> (?<n_1> (?m: (?U: (?-i:"
_CLASS_ITEM_TEXT: Final = r"""
    a b c k K s S é 0 9 _ . ^ - $ * a-c A-Z 0-9 é-ÿ \d \W \S \pL \PL \p{Lu} \pC \p{Cn} \P{Cn} \p{^LC} \p{Assigned}
    \P{Any} \P{ASCII} \p{Greek} [:alpha:] [:^digit:] [:word:] [:space:] \- \] \x00-\x{10FFFF} \x{100}-\x{2000} +--
    \n !-~ [ 漢 \x{17F} a- \Q k-s
"""
_ATOMS, _WRONG, _REPETITIONS, _FLAGS, _OPENINGS, _CLASS_ITEMS = (
    tuple(text.split())
    for text in (_ATOM_TEXT, _WRONG_TEXT, _REPETITION_TEXT, _FLAG_TEXT, _OPENING_TEXT, _CLASS_ITEM_TEXT)
)

_MISTAKE: Final = 0.03
_DAMAGE: Final = 0.1


class Generator:
    """Patterns with texts to search, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pattern(self) -> str:
        """A pattern of a random size; about one in four is refused."""
        made = self._alternatives(self._random.randint(0, 3))
        if made and self._random.random() < _DAMAGE:
            at = self._random.randrange(len(made))
            made = made[:at] + self._random.choice(("", "", *"()[]{}*+?|\\^$", "{2}")) + made[at + 1 :]
        return made

    def text(self) -> str:
        """A text that patterns often match, up to 30 characters."""
        few = self._random.sample(_CHARACTERS, self._random.randint(1, 6))
        return "".join(self._random.choice(few) for _ in range(self._random.randint(0, 30)))

    def _alternatives(self, depth: int) -> str:
        return "|".join(self._sequence(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3))))

    def _sequence(self, depth: int) -> str:
        return "".join(self._repeated(depth) for _ in range(self._random.choice((0, 1, 1, 2, 2, 3, 4))))

    def _repeated(self, depth: int) -> str:
        part = self._part(depth)
        return part + self._random.choice(_REPETITIONS) if self._random.random() < 0.35 else part

    def _part(self, depth: int) -> str:
        chance = self._random.random()
        if chance < _MISTAKE:
            return self._random.choice(_WRONG)
        if depth > 0 and chance < 0.35:
            return f"{self._random.choice(_OPENINGS)}{self._alternatives(depth - 1)})"
        if chance < 0.5:
            items = "".join(self._random.choice(_CLASS_ITEMS) for _ in range(self._random.randint(1, 4)))
            return f"[{self._random.choice(('', '', '^'))}{items}]"
        if chance < 0.58:
            return self._random.choice(_FLAGS)
        return self._random.choice(_ATOMS)
