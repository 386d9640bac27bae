"""Faults of a recorded machine's GPUs, from a file that is read at each look: to see the effect of a broken GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dracaena.api.errors import BadInputError
from dracaena.host.facts.health import GpuEvent, GpuState, Poll

_XIDS = "xids"
_STATES = {
    field.name: field.type for field in fields(GpuState) if field.name not in {"uuid", "unwatched", "unanswered"}
}
_WORDS = {"str": str, "int": int, "bool": bool}


class RecordedFaults:
    """Reports the faults in a file: a JSON object, GPU UUID → what is wrong. Without the file nothing is wrong.

    `{"GPU-…": {"recovery_action": 1, "xids": [79]}}`: the fields of GpuState, and `xids`, each of which is reported
    once while it is in the file. A GPU that is not named is healthy. For one thread.
    """

    def __init__(self, path: str, uuids: Sequence[str]) -> None:
        self._path = Path(path)
        self._uuids = tuple(uuids)
        self._told: frozenset[tuple[str, int]] = frozenset()

    def events(self) -> tuple[GpuEvent, ...]:
        """Return the XIDs that are new in the file since the last call. Raises BadInputError naming the file."""
        now = frozenset((uuid, xid) for uuid, faults in self._read().items() for xid in faults.get(_XIDS, ()))
        new, self._told = sorted(now - self._told), now
        return tuple(GpuEvent(uuid, xid) for uuid, xid in new)

    def poll(self) -> Poll:
        """Return the states of all GPUs. Raises BadInputError naming the file."""
        faults = self._read()
        return Poll(tuple(_state(uuid, faults.get(uuid, {})) for uuid in self._uuids))

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            document = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise BadInputError(f"faults {self._path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise BadInputError(f"faults {self._path}: not JSON: {error}") from error
        if not isinstance(document, dict):
            raise BadInputError(f"faults {self._path}: expected an object, GPU UUID → what is wrong")
        for uuid, faults in document.items():
            self._check(uuid, faults)
        return document

    def _check(self, uuid: str, faults: Any) -> None:
        where = f"faults {self._path}: {uuid}"
        if uuid not in self._uuids:
            raise BadInputError(f"{where}: not a GPU of this machine, expected one of {', '.join(self._uuids)}")
        if not isinstance(faults, dict):
            raise BadInputError(f"{where}: expected an object with {', '.join((*_STATES, _XIDS))}")
        for name, value in faults.items():
            if name == _XIDS:
                right = isinstance(value, list) and all(type(xid) is int for xid in value)
                expected = "a list of numbers"
            elif name in _STATES:
                expected = str(_STATES[name]).removesuffix(" | None")
                right = type(value) is _WORDS[expected]
            else:
                raise BadInputError(f"{where}: unknown {name}; known: {', '.join((*_STATES, _XIDS))}")
            if not right:
                raise BadInputError(f"{where}: {name} is {value!r}, expected {expected}")


def _state(uuid: str, faults: dict[str, Any]) -> GpuState:
    told = {"recovery_action": 0, **{name: value for name, value in faults.items() if name != _XIDS}}
    return GpuState(uuid, **told)
