"""Search for selectors that take longer than their budget says: random, seeded, worst first. For developers.

    PYTHONPATH=tests .venv/bin/python -P -m bench.selector_search SECONDS [--seed N] [--planted]

Each is at most 10 KiB. Times are CPU time of this process. `--planted` takes the charge off compiling and searching
patterns, and must find selectors far above all others.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from dracaena.cel import CompileError, DeviceView, Failed, LanguageFeatures, compile_selector
from dracaena.cel.values.regex import engine, matching
from support.hostile_selectors import DEVICE_ATTRIBUTES, DRIVER, MOST_BYTES

_FEATURES: Final = LanguageFeatures(consumable_capacity=True, list_type_attributes=True)
_SHOWN: Final = 8
_ATTRIBUTES: Final = f'device.attributes["{DRIVER}"]'

# Texts are `t`, lists `l`, whole numbers `i`; names in scope stand for the large values that bindings made.
_TEXT_PARTS: Final = r"""
    t t t string(i) t.lowerAscii() t.upperAscii() t.replace('a','b') (t+'x') t.trim() t.substring(1) t.reverse()
    t.find('{p}') l.join(',') '%s'.format([t]) strings.quote(t) t.split('').join('') string(b'{c}')
"""
_LIST_PARTS: Final = r"""
    l l [i,i,i] t.split('a') l.map(i,i) l.filter(i,i>0) l.slice(0,1) l.sort() l.distinct() l.reverse() [l,l].flatten()
    lists.range(50) t.findAll('{p}') l.sortBy(i,-i) (l+l)
"""
_TRUTH_PARTS: Final = r"""
    {t}.matches('{p}') {t}.matches({t}) {t}.contains({t}) {t}.startsWith({t}) {t}.endsWith({t}) {t}=={t}
    {t}<{t} ip.isCanonical({t})
    ({t}in[{t},{t}]) {l}=={l} ({l}in[{l},{l}]) (i)in({l}) {l}.size()>3 {t}.indexOf({t})>0 {t}.lastIndexOf({t})>0
    {l}.indexOf(-1)>0 {l}.lastIndexOf(i)>0 isURL({t}) isIP({t}) isQuantity({t}) isSemver({t}) isSemver({t},true)
    isCIDR({t})
    {l}.isSorted() {l}.sum()>0 {l}.min()>0 sets.contains({l},{l}) sets.intersects({l},{l}) sets.equivalent({l},{l})
    int({t})>0 double({t})>0.0 timestamp({t})>timestamp(0) duration({t})>duration('1s') quantity({t}).isInteger()
    bytes({t}).size()>0 url({t}).getHost()=='' semver({t}).major()>0 {t}.findAll({t}).size()>0 dyn({l})=={l}
    format.dns1123Label().validate({t}).hasValue() {l}.includes(i) [{l},{l}].distinct().size()>0
    {l}.all(i,{b}) {l}.exists(i,{b}) {l}.exists_one(i,{b}) {l}.map(i,{b}).size()>0 {l}.transformMap(j,i,{b}).size()>0
    !{b} {b}&&{b} {b}||{b} ({b}?{b}:{b}) optional.of({l}).optMap(l,{b}).orValue(true) {{i:{l}}}.size()>0
    cel.bind(l,{l},{b}) cel.bind(t,{t},{b})
"""
_PATTERN_PARTS: Final = r"""
    (abcdefghijklmnopq){1000} (?:a?b?){300}c [ab]*a[ab]{900} \\pL{60} (?i)[^a]{500} a* () .*.*x (a|b|ab)*c
    [\\pL\\pN]{1,20}x \\b. (?:.?){400}9 \\B
"""
_TEXTS, _LISTS, _TRUTHS, _PATTERNS = (
    tuple(parts.split()) for parts in (_TEXT_PARTS, _LIST_PARTS, _TRUTH_PARTS, _PATTERN_PARTS)
)


class Generator:
    """Selectors from one seed: large values bound to `t` and `l`, loops around what uses them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def selector(self) -> str:
        """A selector that most likely compiles."""
        doublings = self._random.choice((0, 0, 4, 8, 12, 14))
        inner = self._truth(self._random.randint(1, 3))
        for _ in range(self._random.choice((0, 1, 1, 2, 2, 3))):
            inner = f"l.{self._random.choice(('all', 'exists', 'exists_one'))}(i,{inner})"
        number = self._random.choice((10, 100, 300))
        text = f"{_ATTRIBUTES}.{self._random.choice(('text', 'uuid'))}"
        bound = f"cel.bind(i,1,cel.bind(l,[{','.join(map(str, range(number)))}],cel.bind(t,{text},"
        for _ in range(doublings):
            bound += "cel.bind(t,t+t," if self._random.random() < 0.8 else "cel.bind(l,l+l,"
        return f"{bound}{inner}{')' * (3 + doublings)}"

    def _truth(self, depth: int) -> str:
        made = self._random.choice(_TRUTHS)
        for mark, make in (("{t}", self._text), ("{l}", self._list)):
            while mark in made:
                made = made.replace(mark, f" {make()} ", 1)
        while "{b}" in made:
            made = made.replace("{b}", self._truth(depth - 1) if depth > 0 else "i==3", 1)
        return made.replace("{{", "{").replace("}}", "}") if "{p}" not in made else self._with_patterns(made)

    def _with_patterns(self, made: str) -> str:
        while "{p}" in made:
            made = made.replace("{p}", self._random.choice(_PATTERNS), 1)
        return made

    def _text(self) -> str:
        return self._with_patterns(self._random.choice(_TEXTS)).replace("{c}", "abc")

    def _list(self) -> str:
        return self._with_patterns(self._random.choice(_LISTS))


def _milliseconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return 1e3 * (time.process_time() - before)


def main(arguments: Sequence[str]) -> int:
    """Search for so many seconds and print the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args(arguments)
    if options.planted:
        matching._WORK_OF_INSTRUCTION = 0  # type: ignore[misc]
        matching._STEPS_OF_WORK = 10**9  # type: ignore[misc]
    device = DeviceView.of_names(DRIVER, DEVICE_ATTRIBUTES)
    worst: dict[str, list[tuple[float, str, str]]] = {"compile": [], "evaluate": []}
    seed, tried, refused = options.seed, 0, 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        seed += 1
        expression = Generator(seed).selector()
        if len(expression.encode()) > MOST_BYTES:
            continue
        tried += 1
        engine._ready.cache_clear()
        before = time.process_time()
        try:
            selector = compile_selector(expression, _FEATURES)
        except CompileError:
            refused += 1
            continue
        heapq.heappush(worst["compile"], (1e3 * (time.process_time() - before), expression, ""))
        answers: list[object] = []
        took = _milliseconds(lambda: answers.append(selector.evaluate(device)))  # noqa: B023
        answer = answers[0].reason if isinstance(answers[0], Failed) else type(answers[0]).__name__
        heapq.heappush(worst["evaluate"], (took, expression, answer))
        for each in worst.values():
            if len(each) > _SHOWN:
                heapq.heappop(each)
    for kind, found in worst.items():
        print(f"{kind}: the worst of {tried}, {refused} of them refused")
        for took, expression, answer in sorted(found, reverse=True):
            start = expression.index(f"cel.bind(t,{_ATTRIBUTES}")
            texts, lists = expression.count("cel.bind(t,t+t,"), expression.count("cel.bind(l,l+l,")
            shown = expression[start:].replace("cel.bind(t,t+t,", "").replace("cel.bind(l,l+l,", "")
            size = expression[:start].count(",") - 1
            print(f"{took:9.1f} ms  {answer[-40:]:40}  l={size}*2^{lists} t=2^{texts} {shown[46:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
