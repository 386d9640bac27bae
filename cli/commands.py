"""What the sub-commands share: their parser, and options of several of them."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeAlias

from dracaena.api.errors import BadInputError
from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.reasons import nearest
from dracaena.process.loading import loading
from dracaena.process.settings import DRIVER_NAME

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no public name
"""What add_subparsers() returns."""


@contextmanager
def loading_extra(extra: str) -> Iterator[None]:
    """Load modules that need an extra of the package. Raises BadInputError that names it where it is not installed."""
    try:
        with loading():
            yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dracaena"):
            raise
        words = f"{error.name} is not installed: it comes with the extra `{extra}` of this package"
        raise BadInputError(f"{words} (pip install '.[{extra}]' in a checkout: docs/command.md)") from error


class CommandParser(argparse.ArgumentParser):
    """A parser whose help fits the terminal, and which answers a wrong argument with the usage of its own command.

    Sub-commands get the same kind of parser. In descriptions and epilogs a paragraph with an indented line stays as
    it is: an example, a table.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, **options})

    def parse_known_args(  # type: ignore[override]  # argparse's overloads say the same in three ways
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown arguments here: argparse leaves that to the outermost parser, whose usage does not help."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Name the nearest of the choices, too, if a word is none of them."""
        if wrong := _INVALID_CHOICE.search(message):
            near = nearest(wrong[1], re.findall(r"[\w-]+", wrong[2]), _NEARNESS)
            message += f": did you mean {near}?" if near else ""
        super().error(message)


_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_NEARNESS: Final = 0.6
"""As of `nearest`, for words as short as sub-commands: two swapped letters in five do."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            textwrap.indent(paragraph if "\n " in f"\n{paragraph}" else textwrap.fill(paragraph, width), indent)
            for paragraph in text.strip("\n").split("\n\n")
        )


def add_strict(parser: argparse.ArgumentParser) -> None:
    """Add --strict."""
    text = "exit with 2 if an object may make pods in a way that is not understood: a kind of others, no pod template"
    parser.add_argument("--strict", action="store_true", help=text)


def add_driver_name(parser: argparse.ArgumentParser, meaning: str = "DRA driver name") -> None:
    """Add --driver-name; a name that the API refuses ends the program as any wrong argument does."""
    parser.add_argument(
        "--driver-name",
        type=_driver_name,
        default=DEFAULT_DRIVER_NAME,
        metavar="NAME",
        help=f"{meaning} (default: %(default)s)",
    )


def _driver_name(text: str) -> str:
    if not re.fullmatch(DRIVER_NAME.pattern, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {DRIVER_NAME.expected}")
    return text
