"""The values of the annotations on pods that say which GPUs they got (keys: dracaena.api.names).

Both are observations for people and monitoring. No decision of ours depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from dracaena.api.device_share import DeviceShare
from dracaena.api.errors import BadInputError


class RequestDevices(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one request of one claim gave to a container."""

    claim: str
    """Name of the ResourceClaim object in the pod's namespace."""
    request: str
    """As in the claim: `request` or `request/subrequest`."""
    uuids: tuple[str, ...]
    shares: tuple[DeviceShare, ...] = ()
    """What it has of the devices among them that others may share."""


def encode_devices(containers: Mapping[str, Sequence[RequestDevices]]) -> str:
    """Return the value of `<driver>/devices`: compact JSON, container → what each request gave, sorted by container."""
    return msgspec.json.encode({name: tuple(containers[name]) for name in sorted(containers)}).decode()


def decode_devices(value: str) -> dict[str, tuple[RequestDevices, ...]]:
    """Read the value of `<driver>/devices`. Raises BadInputError when it is not of this shape."""
    try:
        return msgspec.json.decode(value, type=dict[str, tuple[RequestDevices, ...]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInputError(f"devices annotation does not decode: {error}") from error


def encode_uuids(uuids: Iterable[str]) -> str:
    """Return the value of `<driver>/uuids`: each UUID once, in the order given, joined by commas."""
    return ",".join(dict.fromkeys(uuids))


def decode_uuids(value: str) -> tuple[str, ...]:
    """Read the value of `<driver>/uuids`."""
    return tuple(part for part in value.split(",") if part)
