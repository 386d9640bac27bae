"""podlist.json: which container of this node has which GPUs, for monitoring that does not talk to the API server.

The document is a JSON array with one element per container. Its first four keys are the published contract, in that
order; readers must ignore further keys. It is an observation, never an input of a decision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from operator import itemgetter
from typing import Any, Final

import msgspec

from dracaena.api.device_share import DeviceShare
from dracaena.api.errors import BadInputError

PODLIST: Final = "podlist.json"
"""Name of the file, in kubelet's folder pod-resources."""

HEARTBEAT_S: Final = 60.0
"""The file's modification time is never older than this while the plugin keeps the file right."""


class PodlistEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One container that has GPUs."""

    name: str
    """Of the pod."""
    namespace: str
    container: str
    gpu_list: tuple[str, ...]
    """UUIDs as NVML prints them, in the order of the allocation, each once; or another form that an admin chose."""
    uid: str = ""
    """Of the pod. From here on: keys of our own."""
    claims: tuple[str, ...] = ()
    """UIDs of the ResourceClaims that gave these GPUs, sorted."""
    mig: dict[str, str] = {}
    """The parent's UUID for each entry of gpu_list that is a MIG device, sorted."""

    shares: tuple[DeviceShare, ...] = ()
    """Each share of a GPU, in the order of the allocation; a GPU may have several."""

    @property
    def order(self) -> tuple[str, str, str]:
        """Entries are sorted by this, so that equal facts are equal bytes."""
        return (self.namespace, self.name, self.container)


PodlistLine = tuple[tuple[str, str, str], bytes]
"""PodlistEntry.order of one entry, and the entry as it is in the file."""


def podlist_line(entry: PodlistEntry) -> PodlistLine:
    """Return one entry encoded, for join_lines."""
    return entry.order, msgspec.json.encode(entry)


def join_lines(lines: Iterable[PodlistLine]) -> bytes:
    """Return the file's content: sorted by namespace, pod and container; `[]` when no container has a GPU."""
    encoded = [*map(itemgetter(1), sorted(lines, key=itemgetter(0)))]
    if not encoded:
        return b"[]\n"
    return b"[\n" + b",\n".join(encoded) + b"\n]\n"  # one line per container: people read and diff this file


def decode_podlist(data: bytes) -> tuple[PodlistEntry, ...]:
    """Read a podlist, unknown keys ignored. Raises BadInputError when it is not of this shape."""
    try:
        return tuple(msgspec.json.decode(data, type=list[PodlistEntry]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInputError(f"podlist does not decode: {error}") from error


def podlist_schema() -> dict[str, Any]:
    """Return the JSON Schema of the file, for authors of readers."""
    text = resources.files(__package__).joinpath("podlist.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
