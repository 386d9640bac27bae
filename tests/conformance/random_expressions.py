"""Random selectors from a seed: mostly well typed, most of the language, some mistakes on purpose.

In a template `<int>` stands for an expression of that type and `<+int>` for a new variable of it, known to what follows
in the template.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Final

# The device that the paths below lead into; `conformance.vectors` files have it as their device.
DOCUMENT: Final = {
    "driver": "dra.example.com",
    "allowMultipleAllocations": None,
    "attributes": {
        "name": {"string": "fish"},
        "b": {"bool": True},
        "i": {"int": 3},
        "v": {"version": "1.2.3"},
        "oth.example.com/x": {"ints": [1, 2]},
    },
    "capacity": {"memory": {"value": "40Gi"}},
}

_OWN: Final = 'device.attributes["dra.example.com"]'
_OTHER: Final = 'device.attributes["oth.example.com"]'

LEAVES: Final[Mapping[str, Sequence[str]]] = {
    "bool": ("true", "false", "device.allowMultipleAllocations", f"{_OWN}.b"),
    "int": ("0", "1", "2", "3", "-1", "7", "10", "9223372036854775807", "-9223372036854775808"),
    "uint": ("0u", "1u", "3u", "18446744073709551615u"),
    "double": ("0.0", "1.0", "-1.5", "2.5", "1e300", "3.0"),
    "string": ('""', '"a"', '"fish"', '"abc"', "device.driver", '"name"', '"a text of more than ten"', '"é"'),
    "list": ("[]", "[1]", "[1, 2, 3]", "[3, 1]"),
    "map": ("{}", "{'a': 1}", "{'fish': 3}"),
    "optional": ("optional.none()", "optional.of(1)"),
    "dyn": (f"{_OWN}.name", f"{_OWN}.b", f"{_OWN}.i", f"{_OWN}.nosuch", f"{_OTHER}.x", f"{_OTHER}.x[0]", "dyn(1)"),
}

TEMPLATES: Final[Mapping[str, Sequence[str]]] = {
    "bool": (
        "(<bool> && <bool>)",
        "(<bool> || <bool>)",
        "!(<bool>)",
        "(<bool> ? <bool> : <bool>)",
        "(<int>) == (<int>)",
        "(<dyn>) == (<any>)",
        "(<any>) != (<dyn>)",
        "(<string>) == (<string>)",
        "(<list>) == (<list>)",
        "<map> == <map>",
        "(<double>) >= (<double>)",
        "(<int>) < (<uint>)",
        "(<double>) > (<int>)",
        "(<string>) <= (<string>)",
        "(<dyn>) < (<any>)",
        "(<int>) in <list>",
        "(<dyn>) in <list>",
        "(<string>) in <map>",
        "(<string>).contains(<string>)",
        "(<string>).startsWith(<string>)",
        "(<dyn>).endsWith(<string>)",
        '(<string>).matches("^[a-z]+$")',
        "<list>.all(<+int>, <bool>)",
        "<list>.exists(<+int>, <bool>)",
        "<list>.exists_one(<+int>, <bool>)",
        "<list>.all(<+int>, <+int>, <bool>)",
        "<list>.existsOne(<+int>, <+int>, <bool>)",
        "<map>.exists(<+string>, <+int>, <bool>)",
        "<dyn>.exists(<+dyn>, <bool>)",
        "device.attributes.exists_one(<+string>, <bool>)",
        "cel.bind(<+int>, <int>, <bool>)",
        "cel.bind(<+list>, <list>, <bool>)",
        "cel.bind(<+dyn>, <dyn>, <bool>)",
        f"has({_OWN}.nosuch)",
        "<optional>.hasValue()",
        "(<dyn>).includes(<any>)",
        "type(<any>) == type(<any>)",
    ),
    "int": (
        "(<int> + <int>)",
        "(<int> - <int>)",
        "(<int> * <int>)",
        "(<int> / <int>)",
        "(<int> % <int>)",
        "-(<int>)",
        "<list>.size()",
        "size(<string>)",
        "<map>.size()",
        "<list>[<int>]",
        "<map>[<string>]",
        "int(<double>)",
        "int(<uint>)",
        "(<bool> ? <int> : <int>)",
        "<optional>.orValue(<int>)",
        "(<dyn>).orValue(<int>)",
        "cel.bind(<+int>, <int>, <int>)",
    ),
    "uint": ("(<uint> + <uint>)", "(<uint> - <uint>)", "(<uint> * <uint>)", "(<uint> / <uint>)", "uint(<int>)"),
    "double": ("(<double> + <double>)", "(<double> * <double>)", "(<double> / <double>)", "double(<int>)"),
    "string": (
        "(<string> + <string>)",
        "string(<int>)",
        "string(<uint>)",
        "(<bool> ? <string> : <string>)",
        "(<dyn>).orValue(<string>)",
    ),
    "list": (
        "[<int>, <int>]",
        "[?<optional>, <int>]",
        "(<dyn>).orValue(<list>)",
        "(<list> + <list>)",
        "<list>.map(<+int>, <int>)",
        "<list>.map(<+int>, <bool>, <int>)",
        "<list>.filter(<+int>, <bool>)",
        "<list>.transformList(<+int>, <+int>, <int>)",
        "<map>.transformList(<+string>, <+int>, <bool>, <int>)",
    ),
    "map": (
        "{<string>: <int>}",
        "{?<string>: <optional>}",
        "<map>.transformMap(<+string>, <+int>, <int>)",
        "<map>.transformMap(<+string>, <+int>, <bool>, <int>)",
        "[<int>].transformMapEntry(<+int>, <+int>, {string(<int>): <int>})",
    ),
    "optional": (
        "optional.of(<int>)",
        "optional.ofNonZeroValue(<int>)",
        "<map>[?<string>]",
        "<list>[?<int>]",
        "<map>.?fish",
        "<optional>.or(<optional>)",
        "(<dyn>).or(<optional>)",
        "<optional>.optMap(<+int>, <int>)",
        "<optional>.optFlatMap(<+int>, <optional>)",
    ),
    "dyn": ("dyn(<any>)", f"{_OTHER}.x[<int>]", "device.attributes[<string>].i", "dyn(<list>)[<dyn>]"),
}

_PART: Final = re.compile(r"<(\+?)([a-z]+)>")
_ANY: Final = ("int", "string", "bool", "double", "uint", "list", "map")

# Shares: of variables where one of the type is at hand, and of parts that are of another type than they should be.
_VARIABLES: Final = 0.5
_MISTAKES: Final = 0.02


class Generator:
    """Expressions from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._known: list[tuple[str, str]] = []
        self._names = 0

    def selector(self) -> str:
        """A selector of a random size."""
        return self.expression("bool", self._random.randint(1, 4))

    def expression(self, type_: str, depth: int) -> str:
        """An expression of a type that nests at most this deep."""
        if type_ == "any" or self._random.random() < _MISTAKES:
            type_ = self._random.choice(_ANY)
        variables = [name for name, known in self._known if known == type_]
        if variables and self._random.random() < _VARIABLES:
            return self._random.choice(variables)
        if depth <= 0:
            return self._random.choice(LEAVES[type_])
        before = len(self._known)
        made = _PART.sub(lambda part: self._part(part, depth - 1), self._random.choice(TEMPLATES[type_]))
        del self._known[before:]
        return made

    def _part(self, part: re.Match[str], depth: int) -> str:
        if not part.group(1):
            return self.expression(part.group(2), depth)
        self._names += 1
        name = f"v{self._names}"
        self._known.append((name, part.group(2)))
        return name
