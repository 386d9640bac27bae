"""What is wrong with opaque parameters, in words for their author."""

from __future__ import annotations

from dracaena.api.errors import BadInputError


class ConfigError(BadInputError):
    """Opaque parameters for our driver cannot be read: their author must correct them."""

    def __init__(self, path: str, seen: object, expected: str) -> None:
        super().__init__(f"{path}: {_short(seen)}, expected {expected}")
        self.path = path
        """JSON path of the value, `$` being the parameters."""
        self.seen = seen
        self.expected = expected


class UnreadableTextError(ConfigError):
    """The parameters as a whole are too long, too deep, or no JSON object."""

    def __init__(self, seen: str, expected: str) -> None:
        super().__init__("$", _Words(seen), expected)


class _Words(str):
    """Describes a value that cannot be shown itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _short(value: object) -> str:
    """Show a value in a message: 80 characters are enough to recognise it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
