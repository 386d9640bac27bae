"""Reads a file of layouts: of MIG instances, or of vGPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import yaml

from dracaena.api.errors import BadInputError
from dracaena.process.settings import StrictLoader

MOST_BYTES: Final = 1 << 20
"""As much as a ConfigMap holds; NVIDIA's own files have 10 KiB."""

T = TypeVar("T")


class _FlatLoader(StrictLoader):
    """Also refuses aliases: with them a small file could expand without end, and NVIDIA's files have none."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML
            problem = f"alias *{event.anchor}, expected each value written out"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class LayoutFile(Generic[T]):
    """One file, parsed again when it has changed. For one thread."""

    def __init__(self, what: str, path: str, read_layouts: Callable[[object], T]) -> None:
        """`what` precedes the path in messages. `read_layouts` decodes a document; it raises BadInputError."""
        self._name = f"{what} {path}"
        self._path = Path(path)
        self._read_layouts = read_layouts
        self._known: tuple[bytes, T] | None = None

    def read(self) -> T:
        """Return the layouts. Raises BadInputError naming the file."""
        try:
            with self._path.open("rb") as file:
                text = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise BadInputError(f"{self._name}: {error.strerror}") from error
        if self._known is None or self._known[0] != text:
            self._known = (text, self._parse(text))
        return self._known[1]

    def _parse(self, text: bytes) -> T:
        if len(text) > MOST_BYTES:
            raise BadInputError(f"{self._name}: more than {MOST_BYTES >> 20} MiB")
        try:
            document = yaml.load(text.decode(), _FlatLoader)  # noqa: S506 - a safe loader with two more checks
        except RecursionError as error:
            raise BadInputError(f"{self._name}: nested too deeply") from error
        except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an impossible date or number
            raise BadInputError(f"{self._name}: not YAML: {' '.join(str(error).split())[:300]}") from error
        try:
            return self._read_layouts(document)
        except BadInputError as error:
            raise BadInputError(f"{self._name}: {error}") from error
