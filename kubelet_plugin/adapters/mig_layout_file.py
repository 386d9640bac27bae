"""Reads the file of MIG layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from dracaena.api.errors import BadInputError
from dracaena.kubelet_plugin.discovery.mig_layouts import Layouts, read_layouts
from dracaena.process.settings import StrictLoader

MOST_BYTES: Final = 1 << 20
"""As much as a ConfigMap holds; NVIDIA's own file has 10 KiB."""


class _FlatLoader(StrictLoader):
    """Refuses aliases too: a small file could stand for an endless one, and mig-parted's have none."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML
            problem = f"alias *{event.anchor}, expected each value written out"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


class MigLayoutFile:
    """One file, parsed again when it has changed. For one thread."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._known: tuple[bytes, Layouts] | None = None

    def read(self) -> Layouts:
        """Return the layouts. Raises BadInputError that names the file."""
        try:
            with self._path.open("rb") as file:
                text = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise BadInputError(f"MIG layouts {self._path}: {error.strerror}") from error
        if self._known is None or self._known[0] != text:
            self._known = (text, self._parse(text))
        return self._known[1]

    def _parse(self, text: bytes) -> Layouts:
        if len(text) > MOST_BYTES:
            raise BadInputError(f"MIG layouts {self._path}: more than {MOST_BYTES >> 20} MiB")
        try:
            document = yaml.load(text.decode(), _FlatLoader)  # noqa: S506 - a safe loader with two more checks
        except RecursionError as error:
            raise BadInputError(f"MIG layouts {self._path}: nested too deep") from error
        except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, a day or a number that there is not
            raise BadInputError(f"MIG layouts {self._path}: no YAML: {' '.join(str(error).split())[:300]}") from error
        try:
            return read_layouts(document)
        except BadInputError as error:
            raise BadInputError(f"MIG layouts {self._path}: {error}") from error
