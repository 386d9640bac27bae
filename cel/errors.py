"""The two ways an expression can fail: when it is compiled, and when it is evaluated."""

from __future__ import annotations


class CompileError(Exception):
    """The expression is not valid, whatever the device.

    `message` says what is wrong, `position` is the offset in the expression (in characters, from 0), `line` counts
    from 1 and `column` from 1; `rendered` holds every problem found, each with its line and a caret.
    """

    def __init__(self, message: str, position: int = 0, line: int = 1, column: int = 1, rendered: str = "") -> None:
        super().__init__(rendered or message)
        self.message = message
        self.position = position
        self.line = line
        self.column = column
        self.rendered = rendered or message


class ResultTypeError(CompileError):
    """The expression is valid, but the type of its value is not allowed there."""


class EvaluationError(Exception):
    """The expression has no value for these arguments: the one error that a function raises.

    `&&`, `||`, `all` and `exists` may absorb it, as CEL defines. `message` is one line, without the position.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class CostLimitError(Exception):
    """The expression used up its budget. No expression can absorb this, so it is not an EvaluationError."""

    def __init__(self, message: str = "operation cancelled: actual cost limit exceeded") -> None:
        super().__init__(message)
        self.message = message


class DeviceDataError(Exception):
    """The device has data without a value in CEL, such as a version that is not a semantic version."""
