"""Recorded machines: the ones in this package by name, others by the path of their file."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.api.machine_json import MachineJsonError, decode_machine

_SUFFIX = ".json"
_MOST_BYTES = 1 << 20
"""Largest file that is read: the largest machine of the package, 16 GPUs, has 6 KB."""


def machine_names() -> tuple[str, ...]:
    """Return the names of the recorded machines in this package, sorted."""
    names = (entry.name for entry in _folder().iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


def read_machine(name_or_path: str) -> Machine:
    """Return a recorded machine. A text with a slash or the suffix `.json` is a path, anything else a name.

    Raises BadInputError naming the machine or file, and for an unknown name all names that are known.
    """
    if "/" in name_or_path or name_or_path.endswith(_SUFFIX):
        return _decode(name_or_path, Path(name_or_path))
    if name_or_path not in machine_names():
        known = ", ".join(machine_names())
        raise BadInputError(
            f"no recorded machine is called {name_or_path!r}, "
            f"expected a file (its path with a / or .json at the end) or one of {known}"
        )
    return _decode(name_or_path, _folder() / f"{name_or_path}{_SUFFIX}")


class RecordedMachine:
    """A machine source that returns the same recorded machine each time, read from its file again."""

    def __init__(self, name_or_path: str) -> None:
        self._name_or_path = name_or_path

    def read(self) -> Machine:
        """Return the machine. Raises BadInputError as read_machine does."""
        return read_machine(self._name_or_path)


def _folder() -> Traversable:
    return resources.files("dracaena.kubelet_plugin") / "machines"


def _decode(name: str, file: Traversable) -> Machine:
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise BadInputError(f"{name}: is larger than {_MOST_BYTES >> 20} MiB, expected a recorded machine")
        return decode_machine(text)
    except OSError as error:
        raise BadInputError(f"{name}: cannot be read: {error.strerror or error}") from error
    except MachineJsonError as error:
        raise BadInputError(f"{name}: {error}") from error
