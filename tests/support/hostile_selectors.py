"""Selectors made to cost as much as they can: each is at most 10 KiB long, which is what the API server takes.

They are made for a device of the driver `DRIVER` with the attribute `text`, 64 characters long, as `DEVICE_ATTRIBUTES`
says. `compiled` are worst where they are read, checked and planned, `evaluated` where they are asked about a device.
"""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 10 * 1024

DRIVER: Final = "gpu.example.com"
DEVICE_ATTRIBUTES: Final[dict[str, str | int | bool]] = {
    "text": "ab" * 32,
    "uuid": "GPU-" + "0123456789abcdef" * 2,
    "index": 3,
}

_TEXT: Final = f'device.attributes["{DRIVER}"].text'
_UUID: Final = f'device.attributes["{DRIVER}"].uuid'
_LONG: Final = "[" + ",".join(["1"] * 300) + "]"
_LETTERS: Final = "abcdefghijklmnopq"


def _filled(opening: str, part: str, separator: str, closing: str) -> str:
    """As many parts as fit."""
    room = MOST_BYTES - len((opening + closing).encode())
    return opening + separator.join([part] * ((room + len(separator)) // len((part + separator).encode()))) + closing


def _doubled(start: str, times: int, use: str) -> str:
    """`use` of a variable `$` that holds the start added to itself this many times."""
    bindings = "".join(f"cel.bind(v{n + 1}, v{n} + v{n}, " for n in range(times))
    return f"cel.bind(v0, {start}, {bindings}{use.replace('$', f'v{times}')}{')' * (times + 1)}"


def _nested(levels: int, use: str) -> str:
    """`use` of `$`, a list of ten lists of ten lists …: little memory, but 10^levels values to walk."""
    bindings = "".join(f"cel.bind(v{n + 1}, [{', '.join([f'v{n}'] * 10)}], " for n in range(levels))
    return f"cel.bind(v0, [1], {bindings}{use.replace('$', f'v{levels}')}{')' * (levels + 1)}"


def _types(levels: int, step: str) -> str:
    """Variables whose types grow: `step` says what each makes of the one before, `$`."""
    bindings = "".join(f"cel.bind(v{n + 1}, {step.replace('$', f'v{n}')}, " for n in range(levels))
    return f"cel.bind(v0, 1, {bindings}true{')' * (levels + 1)}"


def compiled() -> dict[str, str]:
    """What costs most before any device is seen."""
    return {
        "types that double": _types(200, "{$: $}"),
        "types that double in lists": _types(150, "[[], [{$: $}]]"),
        "types that grow": _types(200, '{"a": $}'),
        "lists of lists": _filled("[", "[]", ",", "].size() > 0"),
        "lists of maps": _filled("[", "{}", ",", "].size() > 0"),
        "a list": _filled("[", "1", ",", "].size() > 0"),
        "lists in lists": "[" * 240 + "1" + "]" * 240 + ".size() > 0",
        "maps in maps": "{1:" * 240 + "1" + "}" * 240 + ".size() > 0",
        "a chain of terms": _filled("", "[]==[]", "||", ""),
        "a chain of look-ups": _filled("", "1 in [1]", "&&", ""),
        "a chain of conversions": _filled("", "int('1')==1", "&&", ""),
        "a chain of sums": "||".join(["+".join(["1"] * 240) + "==1"] * 20),
        "comparisons of optionals": _filled("", "optional.none()==optional.none()", "||", ""),
        "loops": _filled("", "[].all(x,true)", "&&", ""),
        "loops in loops": "[1].all(x," * 120 + "true" + ")" * 120,
        "optional maps": "optional.of(1)" + ".optMap(x,x)" * 60 + ".hasValue()",
        "constant calls": _filled("", "lists.range(199999).size()>0", "&&", ""),
        "constant patterns": "||".join(f"'a'.matches('{n}({_LETTERS}){{1000}}')" for n in range(100, 300)),
        "constant patterns of letters": _filled("", r"'a'.find('\\pL{70}')==''", "&&", ""),
        "errors": _filled("", "x", "+1==", ""),
        "a text": "'" + "a" * (MOST_BYTES - 12) + "'.size()>0",
        "escapes": "'" + r"\n" * ((MOST_BYTES - 12) // 2) + "'.size()>0",
        "formats": _filled("'", "%s", "", "'.format([1])==''"),
    }


def evaluated() -> dict[str, str]:
    """What costs most when it is asked about a device."""
    pattern = f"({_LETTERS}){{1000}}"
    return {
        "loops in loops": f"{_LONG}.all(a, {_LONG}.all(b, {_LONG}.all(c, true)))",
        "lists of lists": f"{_LONG}.map(a, {_LONG}.map(b, {_LONG}.map(c, 1))).size() > 0",
        "loops without a cost": f"{_LONG}.exists_one(a, {_LONG}.exists_one(b, {_LONG}.exists_one(c, false)))",
        "look-ups in loops": f"{_LONG}.exists_one(x, {_LONG}.exists_one(y, [1].exists_one(z, x in [5] || y in [7])))",
        "receivers that double": "optional.of(1)" + ".optMap(x, x)" * 60 + ".hasValue()",
        "errors in loops": f"{_LONG}.all(a, {_LONG}.all(b, 1 / 0 == 1))",
        "text that doubles": _doubled(_TEXT, 60, "$.size() > 0"),
        "lists that double": _doubled("[1, 2]", 60, "$.size() > 0"),
        "text searched in text": _doubled(_TEXT, 14, "$.contains($ + 'x')"),
        "lists compared again and again": _nested(4, f"{_LONG}.all(x, $ == $)"),
        "lists searched": _nested(4, f"{_LONG}.all(x, $ in [$, $])"),
        "lists within lists": _nested(30, "$ == $"),
        "sorted lists": f"{_LONG}.all(a, {_LONG}.sortBy(x, -x).size() > 0)",
        "distinct lists": f"{_LONG}.all(a, {_LONG}.map(x, [x]).distinct().size() > 0)",
        "joined text": f"{_LONG}.all(a, {_LONG}.map(x, {_TEXT}).join(', ').size() > 0)",
        "formatted text": f"{_LONG}.all(a, {_LONG}.map(x, '%s %d'.format([{_TEXT}, x])).size() > 0)",
        "split text": f"{_LONG}.all(a, {_TEXT}.split('').size() > 0)",
        "replaced text": f"{_LONG}.all(a, {_TEXT}.replace('a', {_TEXT}).size() > 0)",
        "quantities": f"{_LONG}.all(a, {_LONG}.all(b, quantity('1' + {_TEXT}.substring(0, 0) + 'Gi').isInteger()))",
        "versions": f"{_LONG}.all(a, {_LONG}.all(b, semver('1.2.' + string(b)).major() == 1))",
        "times": f"{_LONG}.all(a, {_LONG}.all(b, timestamp('2026-01-01T00:00:0' + string(b) + 'Z').getHours() == 0))",
        "many large patterns": "||".join(f"{_TEXT}.matches('{n}{pattern}')" for n in range(100, 220)),
        "a large pattern in a loop": f"{_LONG}.all(a, {_TEXT}.matches('{pattern}') || true)",
        "a pattern from the device": f"{_TEXT}.matches('(' + {_UUID} + '){{500}}')",
        "patterns from the device, many": f"{_LONG}.all(a, !{_TEXT}.matches('(' + {_UUID} + string(a) + '){{300}}'))",
        "a pattern that grows": _doubled(f"{_TEXT} + '?'", 12, f"{_TEXT}.matches($)"),
        "a text that grows": _doubled(_TEXT, 12, "$.matches('(?:a?b?){300}c')"),
        "all matches": _doubled(_TEXT, 8, "$.findAll('(?:a?b?){30}c').size() == 0"),
        "all letters": f"{_LONG}.all(a, {_TEXT}.find(r'\\pL{{60}}') != '')",
        "patterns of one kind of state": f"{_LONG}.all(a, {_TEXT}.find('[ab]*a[ab]{{{{900}}}}') == '')".replace(
            "{{", "{"
        ).replace("}}", "}"),
        "patterns that are refused": _doubled("'a'", 13, f"{_LONG}.all(x, {_TEXT}.matches($ + '(') || true)"),
    }
