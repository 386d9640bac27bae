"""podlist.json: which container of this node has which GPUs, for monitoring that does not speak to the API server.

The document is a JSON array with one element a container. Its first four keys are the published contract, in that
order; readers must ignore further keys. It is an observation, never an input of a decision.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dracaena.api.errors import BadInputError


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
    """For each entry of gpu_list that is a MIG device the UUID of its parent, sorted."""

    @property
    def order(self) -> tuple[str, str, str]:
        """Entries stand sorted by this, so that equal facts are equal bytes."""
        return (self.namespace, self.name, self.container)


def encode_podlist(entries: Iterable[PodlistEntry]) -> bytes:
    """Return the file's content: sorted by namespace, pod and container; `[]` when no container has a GPU."""
    encoded = [msgspec.json.encode(entry) for entry in sorted(entries, key=lambda entry: entry.order)]
    if not encoded:
        return b"[]\n"
    return b"[\n" + b",\n".join(encoded) + b"\n]\n"  # one line a container: people read and diff this file


def decode_podlist(data: bytes) -> tuple[PodlistEntry, ...]:
    """Read a podlist, unknown keys ignored. Raises BadInputError when it is not of this shape."""
    try:
        return tuple(msgspec.json.decode(data, type=list[PodlistEntry]))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"podlist does not decode: {error}") from error
